"""mlx-lm's own commands generate from a run's output, fuse it, and agree with the engine."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.events import EvaluationFinished, Event, Group, GroupScored, RunFinished
from grpo_engine.run import checkpoint
from tests.e2e.training import environment
from tests.engine.runs import events_of, settings
from tests.engine.tiny import SPECIAL, write_model
from tests.smollm2 import model_folder

RULE = "=" * 10  # mlx_lm.generate prints the answer between two of these


def mlx_lm(home: Path, *words: str | Path, prompt: str = "") -> str:
    """Run one of mlx-lm's commands as users do."""
    done = subprocess.run(
        [sys.executable, "-m", "mlx_lm", *map(str, words)],
        input=prompt.encode(),
        capture_output=True,
        env=environment(home),
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def text_of(home: Path, *words: str | Path, prompt: str, tokens: int) -> str:
    """mlx-lm's greedy answer to a text that is already a whole prompt."""
    said = mlx_lm(
        home,
        "generate",
        *words,
        "--prompt",
        "-",
        "--ignore-chat-template",
        "--max-tokens",
        str(tokens),
        "--temp",
        "0",
        prompt=prompt,
    )
    answer = said.split(f"{RULE}\n", 1)[1].rsplit(f"\n{RULE}", 1)[0]
    for marker in SPECIAL:  # mlx-lm prints special tokens, texts for people omit them
        answer = answer.replace(marker, "")
    return answer


def greedy_groups(events: list[Event], moment: str) -> list[Group]:
    """The groups of the greedy evaluation before or after the run."""
    finished = [e for e in events if isinstance(e, EvaluationFinished)]
    (step,) = [e.step for e in finished if (e.moment, e.mode) == (moment, "greedy")]
    return [
        e.group
        for e in events
        if isinstance(e, GroupScored) and e.step == step and e.group.origin == "eval"
    ]


def check(home: Path, folder: Path, events: list[Event], base: Path, tokens: int) -> None:
    """Generate and fuse; both give the engine's greedy text, which differs from the one before."""
    assert isinstance(events[-1], RunFinished), events[-1]
    before, after = greedy_groups(events, "before"), greedy_groups(events, "after")
    pairs = zip(before, after, strict=True)
    moved = [(b, a) for b, a in pairs if b.rollouts[0].text != a.rollouts[0].text]
    assert moved, "training changed no greedy answer"
    group, said = moved[0][1], moved[0][1].rollouts[0].text
    saved = checkpoint.folder(folder, checkpoint.newest_step(folder))
    whole = not (saved / "adapters.safetensors").exists()
    words: list[str | Path] = (
        ["--model", saved] if whole else ["--model", base, "--adapter-path", saved]
    )
    assert text_of(home, *words, prompt=group.prompt_text, tokens=tokens) == said
    bare = text_of(home, "--model", base, prompt=group.prompt_text, tokens=tokens)
    assert bare == moved[0][0].rollouts[0].text
    if whole:
        return
    # fusing into quantized weights would round them again
    mlx_lm(home, "fuse", *words, "--save-path", home / "fused", "--dequantize")
    fused = text_of(home, "--model", home / "fused", prompt=group.prompt_text, tokens=tokens)
    assert fused == said


CASES: dict[str, dict[str, Any]] = {
    "lora": {},
    "lora on some layers": {"lora_layers": 1, "lora_keys": ("q_proj", "down_proj")},
    "dora": {"tuning": "dora"},
    "full": {"tuning": "full"},
    "quantised": {"quantized": "auto"},
    "quantised and kept": {"quantized": "keep"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["lora", *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if n != "lora")]
)
def test_mlx_lm_says_what_the_engine_says(world: Path, tmp_path: Path, name: str) -> None:
    from mlx_lm import convert

    base = world / "model"
    if "quantized" in CASES[name]:
        plain = write_model(tmp_path / "plain", hidden_size=64, intermediate_size=128)
        base = tmp_path / "packed"
        convert(str(plain), str(base), quantize=True, q_group_size=32, q_bits=8)
    config = settings(
        world,
        steps=3,
        model={"path": str(base), **CASES[name]},
        evaluation={"problems": 6, "pinned": 0, "before_and_after": True, "samples": 0},
        optimizer={"learning_rate": 3e-3 if name == "full" else 3e-2, "micro_rows": 4},
    )
    check(tmp_path, tmp_path / "run", events_of(config, tmp_path / "run"), base, 12)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mlx_lm_says_what_the_engine_says_with_smollm2(world: Path, tmp_path: Path) -> None:
    base = model_folder()
    config = settings(
        world,
        steps=2,
        model={"path": str(base), "lora_rank": 8},
        optimizer={"learning_rate": 3e-3, "micro_rows": 4},
        evaluation={"problems": 2, "pinned": 0, "before_and_after": True, "samples": 0},
    )
    check(tmp_path, tmp_path / "run", events_of(config, tmp_path / "run"), base, 12)
