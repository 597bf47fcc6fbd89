"""`grpo-tui plan`: what fits in memory, from a config.json without weights."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.models import tiny_config as architecture
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.memory import Lengths
from grpo_engine.policy.source import FAULTS
from grpo_engine.setup import preflight
from grpo_tui.app import exit_codes
from grpo_tui.app.cli.main import main
from grpo_tui.app.cli.run_config import assemble
from tests.engine.tiny import tiny_config


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(max_position_embeddings=4096)))
    return str(tmp_path)


def reported(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main(["plan", *words, "--json"])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_each_length_within_the_context_has_a_plan(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = reported(capsys, folder, "--memory", "16GB", "--set", "rollout.max_new_tokens=300")
    lengths = [plan["answer_tokens"] for plan in report["plans"]]
    assert lengths == [256, 300, 512, 1024, 2048]
    assert report["requested"]["answer_tokens"] == 300
    peaks = [
        plan["weights"] + plan["optimizer"] + max(plan["sampling"], plan["update"])
        for plan in report["plans"]
    ]
    assert [plan["peak"] for plan in report["plans"]] == peaks


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"max_position_embeddings": [5, "x"]}, "max_position_embeddings is [5, 'x']; it must be"),
        ({"vocab_size": "many"}, "vocab_size is 'many'; it must be a number"),
        ({"n_positions": {"a": 1}}, "n_positions is {'a': 1}; it must be a number"),
        ({"num_hidden_layers": 2_000}, "num_hidden_layers is 2000; models have 1 to 500"),
    ],
)
def test_a_configuration_that_is_no_model_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], problem: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(**changes)))
    assert main(["plan", str(tmp_path)]) == exit_codes.FAILED
    printed = capsys.readouterr().err
    assert problem in printed
    assert "Traceback" not in printed


def test_less_memory_gives_fewer_rows_and_then_a_remedy(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    large, small = (
        reported(capsys, folder, "--memory", memory, "--set", "rollout.max_new_tokens=1024")
        for memory in ("16GB", "0.005")
    )
    assert small["limit"] < large["limit"]
    for name in ("rows", "sampled_rows"):
        assert small["requested"][name] < large["requested"][name]
    assert large["requested"]["remedy"] == ""
    assert small["requested"]["remedy"].startswith("Try ")


def test_the_exit_status_says_whether_the_length_of_the_settings_fits(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", folder, "--memory", "16GB"]) == exit_codes.OK
    printed = capsys.readouterr().out
    assert "(rollout.max_new_tokens) fit: " in printed
    assert max(map(len, printed.splitlines()[3:9])) <= 80
    assert main(["plan", folder, "--memory", "0.01GB", "--set", "rollout.max_new_tokens=2048"]) == (
        exit_codes.FAILED
    )
    assert "do not fit. Try " in capsys.readouterr().out


def test_an_answer_beyond_the_context_does_not_fit(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = reported(capsys, folder, "--memory", "16GB", "--set", "rollout.max_new_tokens=4000")
    assert report["requested"]["remedy"] == "The model's context is 4096 tokens."


def test_a_memory_that_is_no_size_is_refused(folder: str) -> None:
    assert main(["plan", folder, "--memory", "plenty"]) == exit_codes.USAGE


def test_a_settings_file_is_planned_for_as_train_reads_it(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {{path: {folder}}}\nrollout: {{max_new_tokens: 300, prompts: 3}}\n")
    alone = reported(capsys, str(file), "--memory", "16GB")
    beside = reported(capsys, folder, str(file), "--memory", "16GB")
    assert alone == beside
    assert (alone["requested"]["answer_tokens"], alone["prompts"]) == (300, 3)


@pytest.mark.parametrize("compute", ["auto", "graph"])
def test_a_plan_has_the_numbers_of_a_run(compute: str, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [f"model.compute={compute}"]
    plan = reported(capsys, "starter", "--memory", "16GB", "--set", *sets)
    config = assemble(None, None, sets)
    policy = load_policy(config.model, seed=0)
    lengths = Lengths(plan["prompt_tokens"], config.rollout.max_new_tokens)
    chosen = preflight.plan_memory(config, policy, lengths, plan["limit"])
    estimate = preflight.estimated(config, policy, lengths, chosen)
    assert plan["requested"]["how"] == str(chosen)
    assert plan["requested"]["peak"] == estimate.peak


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*FAULTS, "olmo", "dbrx", "mamba", "qwen3"}))
def test_an_architecture_is_planned_for_or_refused_in_a_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(architecture(name)))
    status = main(["plan", str(tmp_path), "--memory", "16GB", "--prompt-tokens", "16", "--json"])
    printed = capsys.readouterr()
    if name in FAULTS or name == "olmo":
        remedies = ("model.path", "choose another model", "install ai2-olmo")
        assert any(words in printed.err for words in remedies)
    else:
        assert status == exit_codes.OK
        requested = json.loads(printed.out)["requested"]
        assert (requested["peak"] is None) == (name == "dbrx")


def test_a_plan_whose_memory_is_not_known_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(architecture("dbrx")))
    words = ["plan", str(tmp_path), "--memory", "0.01GB", "--prompt-tokens", "16"]
    assert main(words) == exit_codes.OK
    assert "the memory of a step is not known, " in capsys.readouterr().out


QWEN3 = {
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rope_theta": 1_000_000,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "memory", "shape"),
    [
        ("mac-16gb", "10.7GB", {"hidden_size": 1024, "intermediate_size": 3072}),
        (
            "mac-32gb",
            "21.3GB",
            {
                "hidden_size": 2048,
                "intermediate_size": 6144,
                "quantization": {"group_size": 64, "bits": 4},
            },
        ),
    ],
)
def test_the_presets_for_macs_fit(
    preset: str,
    memory: str,
    shape: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Metal lets a program use two thirds of the memory, in the stored format."""
    (tmp_path / "config.json").write_text(json.dumps({**QWEN3, **shape}))
    as_on_metal = ("--set", "model.dtype=bfloat16", "--set", "model.quantized=keep")
    report = reported(capsys, str(tmp_path), "--preset", preset, "--memory", memory, *as_on_metal)
    assert report["prompts"] * report["group_size"] == 64
    assert report["requested"]["answer_tokens"] == 1024
    assert report["requested"]["remedy"] == ""
    assert report["requested"]["peak"] <= report["limit"]


def test_of_a_server_the_calls_and_tokens_of_a_step_are_said_and_no_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # 16 prompts of 100 tokens, 8 answers of 50 each: 128 rows of 150 tokens
    sizes = ["rollout.prompts=16", "rollout.group_size=8", "rollout.max_new_tokens=50"]
    sets = [*sizes, "remote.url=http://localhost:8000", "remote.model=served", "algorithm.beta=0"]
    words = ["org/never-fetched", "--prompt-tokens", "100"]
    words += [word for text in sets for word in ("--set", text)]
    report = reported(capsys, *words)
    assert (report["model"], report["server"]) == ("served", "http://localhost:8000")
    assert (report["samples"], report["updates"]) == (16, 1)
    assert (report["read"], report["sampled"], report["trained"]) == (1600, 6400, 19_200)
    assert main(["plan", *words]) == exit_codes.OK
    printed = capsys.readouterr().out
    assert "16 for answers" in " ".join(printed.split())
    assert "1,600 read and 6,400 sampled" in " ".join(printed.split())
    assert "GB" not in printed
