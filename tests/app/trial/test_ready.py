"""Settings that would fail at the first step are refused before a run begins, and only those."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError, DataError, RewardError
from grpo_engine.events import NoteWritten, RunFailed
from grpo_engine.presets import preset
from grpo_engine.rewards.client import RewardClient
from grpo_tui.app.trial.client import MAY_FETCH
from grpo_tui.app.trial.ready import refuse, require, require_apart
from grpo_tui.app.trial.service import Trials, explain
from tests.engine.runs import events_of, settings, write_world
from tests.engine.tiny import write_model

BROKEN = """
def raises(completions, **_):
    raise ValueError("no such table")

def one_score(completions, **_):
    return [1.0]

def needs_color(completions, color):
    return [1.0 for _ in completions]
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("world"))
    (folder / "broken.py").write_text(BROKEN)
    (folder / "empty").mkdir()
    write_model(folder / "other-tokens", vocab_size=40)
    (folder / "model.gguf").write_bytes(b"GGUF")
    (folder / "question.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n' * 2)
    chat = [{"role": "user", "content": "say 1"}]
    (folder / "chat.jsonl").write_text(
        "".join(json.dumps({"prompt": chat, "answer": str(i)}) + "\n" for i in range(4))
    )
    return folder


@pytest.fixture(scope="module")
def ready() -> Iterator[Trials]:
    with closing(Trials()) as trials:
        yield trials


def tried(trials: Trials, config: RunConfig) -> dict[str, Any]:
    return trials.ready(config.model_dump(mode="json"))


def test_a_package_that_a_model_lacks_is_no_fault_of_the_rewards(
    world: Path, ready: Trials, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model")
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"llama"', '"olmo"'))
    ((setting, words),) = tried(ready, settings(world, model={"path": str(folder)}))["problems"]
    assert setting == "model.path"
    assert words.endswith("To run olmo install ai2-olmo: pip install ai2-olmo")


@pytest.mark.slow
def test_rows_that_cannot_be_used_are_refused_or_skipped_and_noted(
    world: Path, ready: Trials, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    long = json.dumps({"prompt": "long " * 200, "answer": "1"})
    file.write_text((world / "problems.jsonl").read_text() + f"{long}\n{{broken\n")
    task = {"name": str(file), "held_out_size": 6}
    ((_, words),) = tried(ready, settings(world, task=task))["problems"]
    assert f"1 of 42 rows cannot be used: {file}:42: not JSON" in words
    skipping = settings(world, task={**task, "bad_rows": "skip"}, steps=1)
    assert tried(ready, skipping)["problems"] == []
    notes = [
        one.text for one in events_of(skipping, tmp_path / "run") if isinstance(one, NoteWritten)
    ]
    said = [note.partition(":")[0] for note in notes if "skipped" in note]
    assert said == ["1 of 42 rows are skipped", "1 of 41 rows are skipped"]


WRONG: tuple[tuple[str, dict[str, Any]], ...] = (
    ("rewards.functions", {"rewards": {"functions": ["abc"]}}),
    ("rewards.functions", {"rewards": {"functions": ["{world}/rewards.py"]}}),
    ("rewards.functions", {"rewards": {"functions": ["{world}/nowhere.py:words"]}}),
    ("rewards.functions", {"rewards": {"functions": ["{world}/broken.py:raises"]}}),
    ("rewards.functions", {"rewards": {"functions": ["{world}/broken.py:one_score"]}}),
    ("rewards.functions", {"rewards": {"functions": ["{world}/broken.py:needs_color"]}}),
    ("rewards.functions", {"rewards": {"functions": ["no.such.module:score"]}}),
    ("rewards.functions", {"rewards": {"functions": ["http://127.0.0.1:9/score"]}}),
    ("rewards.options", {"rewards": {"options": {"wrods": {"longest": 3}}}}),
    ("model.path", {"model": {"path": "{world}/nowhere"}}),
    ("model.path", {"model": {"path": "{world}/empty"}}),
    ("model.path", {"model": {"path": "{world}/model.gguf"}}),
    ("model.adapter", {"model": {"adapter": "{world}/empty"}}),
    ("model.lora_keys", {"model": {"lora_keys": ["q_project"]}}),
    ("model.lora_layers", {"model": {"lora_layers": 99}}),
    ("task.name", {"task": {"name": "{world}/nowhere.jsonl"}}),
    ("task.name", {"task": {"name": "arithmatic"}}),
    ("task.columns", {"task": {"name": "{world}/question.jsonl"}}),
    ("task.columns", {"task": {"columns": {"answer": "solution"}}}),
    ("task.splits", {"task": {"splits": {"held_out": "tests"}}}),
    ("task.options", {"task": {"options": {"kinds": ["divide"]}}}),
    ("model.path", {"model": {"path": "{world}/other-tokens"}}),
    (
        "task.chat_template",
        {
            "task": {
                "chat_template": "{world}/nowhere.jinja",
                "name": "{world}/chat.jsonl",
                "held_out_size": 1,
            },
            "rewards": {"functions": ["numeric_answer"]},
        },
    ),
    ("rollout.max_new_tokens", {"rollout": {"max_new_tokens": 131072}}),
    ("algorithm.options", {"algorithm": {"recipe": "dapo", "options": {"refill_on": "nothing"}}}),
    ("task.max_prompt_tokens", {"task": {"max_prompt_tokens": 1}}),
    ("optimizer.options", {"optimizer": {"name": "sgd", "options": {"epsilon": 1e-4}}}),
    ("optimizer.weight_decay", {"optimizer": {"name": "adam", "weight_decay": 0.1}}),
)


def config_of(world: Path, changes: dict[str, Any]) -> RunConfig:
    return settings(world, **json.loads(json.dumps(changes).replace("{world}", str(world))))


@pytest.mark.parametrize(("setting", "changes"), WRONG)
def test_a_setting_that_fails_at_the_first_step_is_refused_by_its_name(
    setting: str, changes: dict[str, Any], world: Path, ready: Trials, tmp_path: Path
) -> None:
    config = config_of(world, changes)
    found = tried(ready, config)
    assert [name for name, _ in found["problems"]] == [setting]
    assert setting in found["problems"][0][1]
    with pytest.raises(ConfigError, match=setting):
        refuse(found)
    # and a run would indeed not begin
    assert isinstance(events_of(config, tmp_path)[-1], RunFailed)


def test_the_setting_to_change_is_what_the_error_says_and_not_a_name_in_its_words() -> None:
    words = "`rollout.max_new_tokens` is a bad name for a file"
    assert explain(DataError(words), "task.name") == ("task.name", f"task.name: {words}")
    assert explain(DataError(words, "task.options"), "task.name")[0] == "task.options"
    assert explain(OSError("no task.options"), "task.name")[0] == "task.name"


def test_a_faulty_function_of_the_recipe_is_refused(
    world: Path, ready: Trials, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    for code, text in (("return 1.0", "returned a Python float"), ("return rewards_PG", "")):
        file.write_text(f"def signal(rewards_PG):\n    {code}\n")
        problems = tried(ready, settings(world, algorithm={"signal": f"{file}:signal"}))["problems"]
        assert [setting for setting, _ in problems] == ["algorithm.signal"] * bool(text)
        assert all(text in problem for _, problem in problems)


def test_only_functions_that_are_not_the_tasks_own_are_tried_in_a_process(
    world: Path, ready: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []

    def start(worker: RewardClient) -> RewardClient:
        started.append(worker)
        raise RewardError("it was started")

    monkeypatch.setattr(RewardClient, "__enter__", start)
    starter = preset("starter").tree
    assert tried(ready, build(starter))["problems"] == []
    assert not started
    wrong = {"recipe": "dapo", "options": {"refill_on": "nothing"}}
    found = tried(ready, build({**starter, "algorithm": wrong}))["problems"]
    assert [setting for setting, _ in found] == ["algorithm.options"]
    assert not started
    for rewards in (
        {"functions": [f"{world}/rewards.py:letters"]},
        {"functions": ["numeric_answer", "exact_answer"]},
        {"functions": ["format_all"], "options": {"format_all": {"no": 1}}},
    ):
        found = tried(ready, build({**starter, "rewards": rewards}))["problems"]
        assert found == [("rewards.functions", "rewards.functions: it was started")]
    assert len(started) == 3


def test_every_problem_is_told_at_once_and_a_repaired_file_is_tried_again(
    world: Path, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def other(completions, **_): return [1.0] * len(completions)\n")
    config = settings(world, rewards={"functions": [f"{file}:mine"]}, model={"path": "nowhere"})
    with pytest.raises(ConfigError) as caught:
        require(config)
    assert caught.value.settings == ("rewards.functions", "model.path")
    assert "it has other" in str(caught.value)
    file.write_text("def mine(completions, **_): return [1.0] * len(completions)\n")
    require(settings(world, rewards={"functions": [f"{file}:mine"]}))


def test_too_little_memory_refuses_a_run_that_starts_now_but_not_a_queued_one(
    world: Path, ready: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_engine.setup.preflight.memory_limit", lambda *_: 1000)
    found = tried(ready, settings(world))
    assert "GB may be used" in found["now"]
    with pytest.raises(ConfigError, match="GB may be used"):
        refuse(found)
    refuse(found, later=True)


@pytest.mark.slow
def test_a_model_of_the_hub_is_named_as_a_download_and_not_fetched(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = settings(world, model={"path": "someone/not-on-this-machine"})
    assert require_apart([settings(world), absent], later=False) == (
        "model.path someone/not-on-this-machine is not on this machine: a run downloads it.",
    )
    # a run that may not use the network could not start
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv(MAY_FETCH, raising=False)
    with pytest.raises(ConfigError, match=r"model\.path"):
        require_apart([absent], later=True)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("num_attention_heads", "0", "num_attention_heads is 0; models have 1 to"),
        ("rms_norm_eps", "-1e-6", "rms_norm_eps is -1e-06; it must be a positive number"),
        ("rope_theta", "NaN", "rope_theta is nan; it must be a positive number"),
        ("num_hidden_layers", '"x"', "num_hidden_layers is 'x'; it must be a number"),
    ],
)
def test_a_model_whose_configuration_is_wrong_is_the_only_thing_blamed(
    world: Path, ready: Trials, tmp_path: Path, name: str, text: str, words: str
) -> None:
    folder = write_model(tmp_path / "model")
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: json.loads(text)}))
    changes = {"model": {"path": str(folder)}, "rewards": {"functions": ["length"]}}
    ((setting, said),) = tried(ready, config_of(world, changes))["problems"]
    assert (setting, words in said) == ("model.path", True)


@pytest.mark.slow
def test_a_teacher_is_tried_before_a_run(world: Path, tmp_path: Path) -> None:
    def problems(path: str) -> list[tuple[str, str]]:
        config = settings(world, algorithm={"recipe": "distill"}, teacher={"path": path})
        with closing(Trials()) as trials:
            found: list[tuple[str, str]] = tried(trials, config)["problems"]
            return found

    assert problems(str(write_model(tmp_path / "teacher"))) == []
    ((setting, text),) = problems("")
    assert setting == "teacher.path"
    assert "a teacher needs both" in text
    ((setting, text),) = problems(str(write_model(tmp_path / "small", vocab_size=250)))
    assert setting == "teacher.path"
    assert "it has 250 logits and the policy 261" in text


def test_a_run_on_a_server_is_tried_with_the_tokenizer_and_has_no_memory(
    world: Path, ready: Trials, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model")
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    remote = {"url": "http://localhost:1"}
    config = settings(
        world, model={"path": str(folder)}, remote=remote, optimizer={"micro_rows": 0}
    ).model_dump(mode="json")
    assert ready.ready(config) == {"problems": [], "now": "", "fetches": []}
    memory = ready.memory(config)
    assert memory["server"]["calls"].startswith("at most")
    assert "sampled" in memory["server"]["its tokens"]
    assert "peak" not in memory
    assert len(ready.examples(config)["examples"]) > 0


def test_a_run_on_a_server_without_the_sdk_is_refused(
    world: Path, ready: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_tui.app.trial.service.find_spec", lambda _: None)
    config = settings(world, remote={"url": "http://localhost:1"}, optimizer={"micro_rows": 0})
    problems = dict(tried(ready, config)["problems"])
    assert "pip install 'grpo-tui[remote]'" in problems["remote.url"]
