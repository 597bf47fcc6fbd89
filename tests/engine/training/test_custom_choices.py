"""Runs whose choices are functions of the user: equal numbers, ten faults, resume."""

import hashlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from grpo_engine.config.recipes import recipe
from grpo_engine.config.settings import RunConfig
from grpo_engine.distributed.ranks import Ranks
from grpo_engine.errors import ConfigError
from grpo_engine.events import (
    AlertRaised,
    Event,
    FunctionsLoaded,
    NoteWritten,
    PassFinished,
    RunFailed,
    RunStarted,
)
from grpo_engine.run.user_objects import UserObjects
from grpo_engine.setup.functions import load_functions
from grpo_engine.setup.parts import load_tasks
from tests.engine.maths.custom_choices import RECIPES, written
from tests.engine.policy.helpers import CHOSEN_AND_GRAPH
from tests.engine.runs import events_of, of, settings

ALGORITHM = {"grpo": {"passes": 2}, "dr-grpo": {}, "gspo": {"minibatches": 2}, "cispo": {}}


def config_of(world: Path, algorithm: dict[str, Any], **changes: Any) -> RunConfig:
    return settings(world, steps=2, algorithm=algorithm, **changes)


def losses(events: list[Event]) -> list[tuple[float | None, float | None]]:
    found = [(e.loss, e.grad_norm) for e in of(PassFinished, events)]
    assert found
    return found


@pytest.mark.slow
@pytest.mark.parametrize("compute", CHOSEN_AND_GRAPH)
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_written_as_functions_train_alike(
    world: Path, tmp_path: Path, name: str, compute: str
) -> None:
    base = {"recipe": name, **ALGORITHM[name]}
    built_in, custom, one_signal = (
        losses(events_of(config_of(world, algorithm, model={"compute": compute}), tmp_path / key))
        for key, algorithm in {
            "a": base,
            "b": base | written(name),
            "c": base | written(name) | {"signal": recipe(name).signal},
        }.items()
    )
    assert np.array(custom) == pytest.approx(np.array(built_in), rel=2e-5, abs=1e-6)
    if name != "gspo":  # whose gradients, and the std of whose signal, are summed in another order
        assert one_signal == built_in
    if name == "dr-grpo":
        assert custom == built_in


def test_files_that_differ_between_ranks_are_refused(world: Path) -> None:
    config = config_of(world, {"recipe": "cispo", **written("cispo")})
    tasks = load_tasks(config, UserObjects())
    alike, apart = (
        cast(Ranks, SimpleNamespace(gather=lambda hashes, other=other: [hashes, other or hashes]))
        for other in (None, ["another", "another"])
    )
    assert load_functions(config, UserObjects(), tasks, alike).functions
    with pytest.raises(ConfigError, match="the file is not the same on every rank"):
        load_functions(config, UserObjects(), tasks, apart)


def test_bfloat16_and_columns_and_everything_that_may_be_named(world: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("""
import mlx.core as mx

def signal(rewards_PG, rewards_PGF, scored_PG, lengths_PG, mask_BT, old_logprobs_BT,
           ref_logprobs_BT, entropy_BT, sampler_logprobs_BT, step, answer, prompts=None):
    assert prompts is None and step in (1, 2) and len(answer) == rewards_PG.size
    assert rewards_PGF.shape == (*rewards_PG.shape, 2) and scored_PG.all()
    assert entropy_BT.shape == sampler_logprobs_BT.shape == mask_BT.shape == ref_logprobs_BT.shape
    return (rewards_PG - rewards_PG.mean(1)[:, None] + 0 * lengths_PG).reshape(-1, 1) * mask_BT

def trust(ratio_BT, advantages_BT, entropy_BT, ref_logprobs_BT, sampler_logprobs_BT, step, answer):
    assert len(answer) == ratio_BT.shape[0] == sampler_logprobs_BT.shape[0]
    return ratio_BT * advantages_BT + .01 * entropy_BT + 0 * ref_logprobs_BT * step
""")
    mine = f"{tmp_path}/mine.py"
    algorithm = {"recipe": "dr-grpo", "signal": f"{mine}:signal", "trust": f"{mine}:trust"}
    for dtype in ("float32", "bfloat16"):
        config = config_of(world, algorithm, model={"dtype": dtype})
        assert losses(events_of(config, tmp_path / dtype))


FAULTS = {
    # what the function's file says, and what its user is told
    "float": ("def signal(rewards_PG):\n    return 1.0", r"returned a Python float; it must"),
    "shape": (
        "def signal(rewards_PG):\n    return rewards_PG[0]",
        r"returned mlx\.core\.float32 of shape \(4,\); it must return an mx\.array, float32 of "
        r"shape \(2, 4\) or \(8, 5\)",
    ),
    "dtype": (
        "def signal(rewards_PG):\n    return rewards_PG.astype(mx.int32)",
        r"returned mlx\.core\.int32 of shape \(2, 4\)",
    ),
    "numpy": (
        "import numpy as np\ndef trust(ratio_BT):\n    return np.array(ratio_BT)",
        r"returned a Python ndarray",
    ),
    "nan": (
        "def signal(rewards_PG):\n    return rewards_PG / (rewards_PG - rewards_PG)",
        r"returned NaN or infinity for a small batch",
    ),
    "nan gradient": (
        "def trust(ratio_BT):\n    return mx.sqrt(ratio_BT - ratio_BT)",
        r"returned a gradient of NaN or infinity",
    ),
    "argument": (
        "def signal(reward_PG):\n    return reward_PG",
        r"needs the argument 'reward_PG', which there is not; there are: rewards_PG",
    ),
    "raises": ("def weight(mask_BT):\n    return mask_BT / {}['x']", r"failed: KeyError: 'x'"),
    "syntax": ("def signal(rewards_PG:\n    return 1", r"cannot be loaded: SyntaxError"),
    "missing": ("def other(rewards_PG):\n    return 1", r"has no 'signal'; it has other"),
    "no function": ("signal = 3", r"is no function but of type int"),
    "no gradient": (
        "def trust(ratio_BT):\n    return mx.stop_gradient(ratio_BT)",
        r"has gradient 0 in the log-probabilities",
    ),
    "other rows": (
        "def weight(mask_BT):\n    return mask_BT / mask_BT.sum()",
        r"gives an answer other numbers alone than beside others.*rows and tokens",
    ),
    "padding": (
        "def trust(ratio_BT, advantages_BT):\n"
        "    return ratio_BT * advantages_BT / ratio_BT.shape[1]",
        r"gives an answer other numbers alone",
    ),
    "anchor": ("def anchor(x):\n    return x", r"needs the argument 'x'.*ref_log_ratio_BT"),
    "column": (
        "def trust(ratio_BT, level):\n    return ratio_BT",
        r"needs the argument 'level'.*there are: step, answer",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_function_is_refused_before_step_1_in_one_sentence(
    world: Path, tmp_path: Path, fault: str
) -> None:
    code, message = FAULTS[fault]
    (tmp_path / "mine.py").write_text(f"import mlx.core as mx\n\n{code}\n")
    role = next(r for r in ("trust", "weight", "anchor", "signal") if r in code or r == "signal")
    name = f"{tmp_path}/mine.py:{role}"
    events = events_of(config_of(world, {"recipe": "grpo", role: name}), tmp_path / "run")
    assert not any(isinstance(event, RunStarted) for event in events)
    (text,) = (event.message for event in of(RunFailed, events))
    assert re.search(f"^(function|{role}) {re.escape(name)}.*{message}", text)
    assert "\n" not in text
    if fault not in ("missing", "no function"):  # these name the file, and have no line
        line = {"raises": 4, "float": 3, "numpy": 4}.get(fault, 3)
        assert text.endswith(f"(at {tmp_path}/mine.py:{line})"), text


def test_its_source_is_recorded_and_a_change_is_noted_on_resume(
    world: Path, tmp_path: Path
) -> None:
    file, folder = tmp_path / "mine.py", tmp_path / "run"
    file.write_text("def signal(rewards_PG):\n    return rewards_PG - rewards_PG.mean()\n")
    config = config_of(world, {"recipe": "grpo", "signal": f"{file}:signal"})
    first = events_of(config, folder)
    loaded = of(FunctionsLoaded, first)[0]
    source = loaded.sources["signal"]
    assert (source["file"], source["line"], source["text"]) == (str(file), 1, file.read_text())
    assert source["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    longer = config.model_copy(update={"steps": 3})
    assert not [
        e for e in events_of(longer, folder, resume=True) if "mine.py" in getattr(e, "text", "")
    ]
    file.write_text(file.read_text().replace("mean()", "min()"))
    now = hashlib.sha256(file.read_bytes()).hexdigest()
    notes = [
        event.text
        for event in of(
            NoteWritten, events_of(config.model_copy(update={"steps": 4}), folder, resume=True)
        )
    ]
    expected = f"the file of {file}:signal was {source['sha256'][:12]} and is {now[:12]}: "
    assert any(text.startswith(expected) for text in notes)


def test_a_function_that_gives_nan_later_is_named_where_the_update_is_left_out(
    world: Path, tmp_path: Path
) -> None:
    file = tmp_path / "late.py"
    file.write_text(
        "import mlx.core as mx\n"
        "def late(rewards_PG, step):\n"
        "    signal = rewards_PG - mx.mean(rewards_PG, axis=1, keepdims=True)\n"
        "    return signal * (float('nan') if step >= 2 else 1.0)\n"
    )
    events = events_of(config_of(world, {"signal": f"{file}:late"}), tmp_path / "run")
    alerts = of(AlertRaised, events)
    (remedy,) = [alert.remedy for alert in alerts if alert.rule == "not_finite"]
    assert remedy.startswith(f"See whether {file}:late can give NaN or infinity. ")
