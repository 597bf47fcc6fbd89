"""Runs of TRL that are watched, beside a hook of their own: in TRL's environment, on the processor.

    python -m tests.tools.trl_environment                     # makes the environment, once
    ENV/bin/python -m tests.tools.trl_runs MODEL check        # numbers, and what a store costs
    ENV/bin/python -m tests.tools.trl_runs MODEL fixture tests/record/trl.json.xz
    ENV/bin/python -m tests.tools.trl_runs MODEL completions tests/foreign/trl
    ENV/bin/python -m tests.tools.trl_runs MODEL time
    ENV/bin/python -m tests.tools.trl_runs MODEL script       # one of `config export`, two steps
    ENV/bin/python -m tests.tools.trl_runs MODEL passes       # numbers of three steps of two passes
    ENV/bin/python -m tests.tools.trl_runs MODEL tools        # numbers, of a model of ChatML
    ENV/bin/torchrun --nproc_per_node 2 -m tests.tools.trl_runs MODEL ranks

MODEL is a folder in transformers' format: `grpo-tui models export RUN --to hf` writes one.
"""

import contextlib
import hashlib
import json
import lzma
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from grpo_engine import events as ev
from grpo_engine.config.parse import build
from grpo_engine.config.settings import RunConfig
from grpo_engine.config.trl_export import effective
from grpo_engine.config.trl_names import TRANSLATED
from grpo_engine.tasks.answers import texts_of
from grpo_tui import record
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.recorded_events import events_after
from grpo_tui.trl import hooks, watch
from grpo_tui.trl.script import script
from tests.record.payloads import packed

SAME = ("algorithm.", "optimizer.learning", "rollout.", "seed", "steps", "task.name")


def digits(completions: list[Any], **_: Any) -> list[float]:
    """A reward for digits."""
    return [sum(map(str.isdigit, text)) / max(1, len(text)) for text in texts_of(completions)]


def short(completions: list[Any], **_: Any) -> list[float | None]:
    """A reward for short answers; it does not apply to empty ones."""
    return [1 / len(text) if text else None for text in texts_of(completions)]


def add(a: int, b: int) -> int:
    """
    Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def asked(a: int, b: int) -> dict[str, Any]:
    return {"role": "user", "content": f"What is {a} + {b}?"}


def shown(a: int, b: int) -> list[dict[str, Any]]:
    """A sum that the tool has added, for a small model to continue."""
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": a, "b": b}}}
    return [
        asked(a, b),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "add", "content": str(a + b)},
        {"role": "assistant", "content": f"It is {a + b}."},
    ]


DIALOGUE = [message for pair in ((3, 4), (12, 5)) for message in shown(*pair)]
# TRL parses tool calls of the templates that it has; this one is for models of ChatML.
CHAT_TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"


def trainer_of(
    model: str, steps: int = 20, *, reward_funcs: Any = (digits, short), **options: Any
) -> Any:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    settings: dict[str, Any] = {
        "output_dir": tempfile.mkdtemp(),
        "max_steps": steps,
        "max_completion_length": 12,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "beta": 0.04,
        "learning_rate": 1e-3,
        "logging_steps": 7,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 0,
    }
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows: list[Any] = [{"prompt": f"{i} + {i + 3} = "} for i in range(64)]
    if tools := options.pop("tools", None):
        tokenizer.chat_template = CHAT_TEMPLATE.read_text()
        rows = [{"prompt": [*DIALOGUE, asked(i, i + 3)]} for i in range(64)]
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        processing_class=tokenizer,
        args=GRPOConfig(**settings | options),
        train_dataset=Dataset.from_list(rows),
        tools=tools,
        reward_funcs=list(reward_funcs),
    )


class Seen:
    """A hook that knows nothing of the watched one; it takes what TRL computes."""

    def __init__(self, trainer: Any) -> None:
        self.rewards: list[Any] = []
        self.batches: list[dict[str, Any]] = []
        self.logprobs: list[Any] = []
        self.losses: list[float] = []
        inside: list[int] = []
        rewards, generate = trainer._calculate_rewards, trainer._generate_and_score_completions
        scores, loss = trainer._get_per_token_logps_and_entropies, trainer._compute_loss

        def on_rewards(*args: Any, **more: Any) -> Any:
            self.rewards.append((result := rewards(*args, **more)).clone().numpy())
            return result

        def on_generate(inputs: Any) -> Any:
            result = generate(inputs)
            arrays = {n: v.clone().numpy() for n, v in result.items() if torch.is_tensor(v)}
            self.batches.append(arrays)
            return result

        def on_scores(*args: Any, **more: Any) -> Any:
            result = scores(*args, **more)
            if inside:
                self.logprobs.append(result[0].detach().clone().numpy())
            return result

        def on_loss(model: Any, inputs: Any) -> Any:
            inside.append(1)
            result = loss(model, inputs)
            inside.clear()
            self.losses.append(float(result.detach()))
            return result

        trainer._calculate_rewards, trainer._generate_and_score_completions = (
            on_rewards,
            on_generate,
        )
        trainer._get_per_token_logps_and_entropies, trainer._compute_loss = on_scores, on_loss


def stored(path: Path) -> list[ev.Event]:
    with StoreReader(path) as reader:
        key = reader.resolve("@last").key
        return [item.event for item in events_after(reader, key, limit=10**6)]


def check_numbers(model: str, steps: int = 20, **options: Any) -> None:
    """Every number in the store equals what the second hook saw."""
    path = Path(tempfile.mkdtemp()) / "s.db"
    trainer = trainer_of(model, steps, **options)
    seen = Seen(trainer)
    watch(trainer, "watched", store=path)
    trainer.train()
    events = stored(path)
    groups = [e.group for e in events if isinstance(e, ev.GroupScored)]
    numbers = [e.numbers for e in events if isinstance(e, ev.TokensScored)]
    answers = [answer for group in groups for answer in group.rollouts]
    tokens = [row for rows in numbers for row in rows]
    rewards, size = np.concatenate(seen.rewards), len(seen.batches[0]["advantages"])
    assert len(answers) == len(tokens) == len(rewards), (len(answers), len(tokens), len(rewards))
    for index, (answer, row) in enumerate(zip(answers, tokens, strict=True)):
        batch, at = seen.batches[index // size], index % size
        length = int(batch["completion_mask"][at].sum())
        assert answer.ids == tuple(batch["completion_ids"][at, :length].tolist())
        assert len(answer.ends) == length, answer
        assert np.float32(answer.advantage) == batch["advantages"][at]
        scores = [np.nan if r.value is None else r.value for r in answer.rewards]
        assert np.array_equal(np.array(scores, np.float32), rewards[index], equal_nan=True)
        if "ref_per_token_logps" in batch:
            assert row.reference == tuple(batch["ref_per_token_logps"][at, :length].tolist())
        if "old_per_token_logps" in batch:
            assert row.old == tuple(batch["old_per_token_logps"][at, :length].tolist())
        assert len(row.passes) == trainer.num_iterations, row
        if "tool_mask" in batch:
            check_spans(answer, row, batch["tool_mask"][at, :length])
    recorded = sorted(tuple(p) for row in tokens for p in row.passes)
    lengths = [len(row.old) for row in tokens]
    kept = {p[: max(lengths)] for p in recorded}
    every = {tuple(r[:n].tolist()) for m in seen.logprobs for r in m for n in set(lengths)}
    assert kept <= every, "log-probabilities differ"
    updates = [e for e in events if isinstance(e, ev.PassFinished)]
    parts = trainer.args.gradient_accumulation_steps
    losses = [sum(seen.losses[i : i + parts]) for i in range(0, len(seen.losses), parts)]
    counts = (len(updates), len(losses), trainer.state.global_step)
    assert len(set(counts)) == 1, counts
    assert np.allclose([update.loss or 0.0 for update in updates], losses, rtol=0, atol=1e-7)
    logged = [r for r in trainer.state.log_history if "grad_norm" in r]
    for row in logged:
        update = updates[row["step"] - 1]
        assert abs((update.grad_norm or 0.0) - row["grad_norm"]) < 1e-6, (update, row)
        assert update.learning_rate == row["learning_rate"]
    print("numbers equal:", options, len(answers), "answers,", len(updates), "updates")
    if options.get("tools"):
        calls = sum(span.kind == "environment" for answer in answers for span in answer.spans)
        assert calls, "the model has called no tool"
        print("results of tools:", calls)
    print("store:", path)


def check_spans(answer: ev.Rollout, row: ev.TokenNumbers, tool_mask: Any) -> None:
    """Tokens of tools are replies, and not in the loss."""
    kinds = [span.kind == "model" for span in answer.spans for _ in range(span.length)]
    assert kinds in ([], [bool(item) for item in tool_mask]), answer
    assert (list(row.mask) or [1] * len(tool_mask)) == tool_mask.astype(int).tolist(), row
    assert sum(span.chars for span in answer.spans) in (0, len(answer.text))


def weights_of(trainer: Any) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(trainer.model.state_dict().items()):
        digest.update(name.encode() + value.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def check_training(model: str) -> None:
    """A store that is locked, full or deleted changes no bit of what is trained."""
    trainer = trainer_of(model, 6)
    trainer.train()
    usual = weights_of(trainer)
    for trouble in ("none", "locked", "full", "deleted", "unusable"):
        path = Path(tempfile.mkdtemp()) / "s.db"
        trainer = trainer_of(model, 6)
        if trouble == "unusable":
            path = Path("/dev/null")
        if trouble == "full":  # 2 MiB: the store, and nothing more
            path = small_disk() / "s.db"
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", record.RecordWarning)
            watch(trainer, store=path)
            lock = None
            if trouble == "locked":
                lock = sqlite3.connect(path)
                lock.execute("BEGIN IMMEDIATE")
            if trouble == "deleted":
                path.unlink()
            if trouble == "full":
                fill(path.parent)
            record.CLOSE_S = 3.0
            trainer.train()
            if lock is not None:
                lock.rollback()
            if trouble == "full":
                os.system(f"umount -l {path.parent}")
        ours = [str(w.message) for w in said if isinstance(w.message, record.RecordWarning)]
        assert weights_of(trainer) == usual, trouble
        print(f"{trouble}: equal to the bit; {len(ours)} warnings {[text[:110] for text in ours]}")


def small_disk() -> Path:
    folder = Path(tempfile.mkdtemp())
    assert os.system(f"mount -t tmpfs -o size=2m tmpfs {folder}") == 0, "needs root"
    return folder


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


def write_fixture(model: str, path: Path) -> None:
    """What the hooks saw in three steps of two updates each, twice over."""
    kept: list[Any] = []
    finished = hooks._finished

    def keep(run: Any, step: int, batches: Any, facts: Any) -> None:
        kept.append((step, batches, facts))
        finished(run, step, batches, facts)

    hooks._finished = keep
    trainer = trainer_of(model, 12, num_iterations=2, steps_per_generation=4)
    watch(trainer, store=Path(tempfile.mkdtemp()) / "s.db")
    values = {name: getattr(value, "value", value) for name, value in vars(trainer.args).items()}
    trainer.train()
    known = {k: v for k, v in values.items() if k in TRANSLATED}
    tokenizer = trainer._tokenizer
    used = sorted({i for _, [b], _ in kept for i in b.arrays["completion_ids"].ravel().tolist()})
    vocabulary = {i: tokenizer.decode([i], skip_special_tokens=True) for i in used}
    content = packed(kept, json.loads(json.dumps(known, default=str)), vocabulary)
    path.write_bytes(lzma.compress(json.dumps(content).encode(), preset=9))
    print(path, path.stat().st_size, "bytes")


def check_time(model: str) -> None:
    """The time of training with and without the hooks, in turn; that of the processors as well."""
    ratios, of_cpu = [], []
    for _ in range(5):
        seconds, cpu = {}, {}
        for watched in (False, True):
            trainer = trainer_of(model, 8, per_device_train_batch_size=16, max_completion_length=96)
            if watched:
                watch(trainer, store=Path(tempfile.mkdtemp()) / "s.db")
            begun, begun_cpu = time.perf_counter(), time.process_time()
            trainer.train()
            seconds[watched] = time.perf_counter() - begun
            cpu[watched] = time.process_time() - begun_cpu
        ratios.append(seconds[True] / seconds[False])
        of_cpu.append(cpu[True] / cpu[False])
        print({k: round(v, 2) for k, v in seconds.items()}, "load", os.getloadavg()[0])
    for name, values in (("time", ratios), ("processor time", of_cpu)):
        print(name, [round(r, 3) for r in values], "median", round(statistics.median(values), 3))


def letters(completions: list[str], log_extra: Any = None, **_: Any) -> list[float]:
    """A reward for letters, with a column of its own beside the rewards."""
    if log_extra:
        log_extra("size", [len(text) for text in completions])
    return [sum(map(str.isalpha, text)) / 10 for text in completions]


def write_completions(model: str, folder: Path) -> None:
    """What TRL itself writes of a run, without the model."""
    with tempfile.TemporaryDirectory() as out:
        trainer = trainer_of(
            model,
            4,
            output_dir=out,
            log_completions=True,
            num_completions_to_print=0,
            logging_steps=1,
            save_strategy="steps",
            save_steps=4,
            reward_funcs=[digits, short, letters],
        )
        trainer.train()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(Path(out) / "completions", folder / "completions")
        state = Path("checkpoint-4") / "trainer_state.json"
        (folder / state).parent.mkdir()
        shutil.copy(Path(out) / state, folder / state)


def check_script(model: str) -> None:
    """A script of `config export` trains two steps, and the store has them."""
    folder = Path(tempfile.mkdtemp())
    config = build(
        {
            "name": "exported",
            "steps": 2,
            "model": {"path": model, "tuning": "full"},
            "rollout": {"prompts": 2, "group_size": 4, "max_new_tokens": 16},
            "algorithm": {"recipe": "grpo", "minibatches": 2},
            "evaluation": {"problems": 4},
            "checkpoint": {"every": 0},
        }
    )
    (folder / "train.py").write_text(script(config))
    env = os.environ | {"GRPO_TUI_DB": str(folder / "s.db"), "PYTHONPATH": str(Path.cwd())}
    subprocess.run([sys.executable, "train.py"], cwd=folder, env=env, check=True)
    with StoreReader(folder / "s.db") as reader:
        run = reader.resolve("exported")
        stored = reader.run(run.key).config
    names = RunConfig.model_fields
    back = build({name: value for name, value in stored.items() if name in names})
    unequal = {
        path: (value, other)
        for path, value in effective(config).items()
        if path.startswith(SAME) and value != (other := effective(back)[path])
    }
    assert (run.status, run.step, unequal) == ("completed", 2, {}), (run, unequal)
    print("script: run", run.name, run.status, "at step", run.step, "with the settings of the file")


def check_ranks(model: str) -> None:
    path = Path("/tmp/trl-ranks") / "s.db"
    if os.environ.get("RANK") == "0":
        shutil.rmtree(path.parent, ignore_errors=True)
    trainer = trainer_of(model, 4, steps_per_generation=4)
    seen = Seen(trainer)
    watch(trainer, store=path)
    trainer.train()
    if trainer.accelerator.is_main_process:
        events = stored(path)
        groups = [e.group for e in events if isinstance(e, ev.GroupScored)]
        answers = [answer for group in groups for answer in group.rollouts]
        scores = [[np.nan if r.value is None else r.value for r in a.rewards] for a in answers]
        expected = np.concatenate(seen.rewards)
        assert np.array_equal(np.array(scores, np.float32), expected, equal_nan=True)
        numbers = [row for e in events if isinstance(e, ev.TokensScored) for row in e.numbers]
        assert len(numbers) == len(answers)
        print("ranks:", len(answers), "answers of both, rewards equal")


if __name__ == "__main__":
    model, what, *rest = sys.argv[1:]
    if what == "check":
        check_numbers(model)
        check_numbers(model, num_iterations=2, steps_per_generation=4, loss_type="grpo")
        check_numbers(model, beta=0.0, loss_type="dr_grpo", logging_steps=1)
        check_training(model)
    elif what == "fixture":
        write_fixture(model, Path(rest[0]))
    elif what == "completions":
        write_completions(model, Path(rest[0]))
    elif what == "time":
        check_time(model)
    elif what == "script":
        check_script(model)
    elif what == "passes":
        check_numbers(model, 12, num_iterations=2, steps_per_generation=4)
    elif what == "tools":
        small: dict[str, Any] = {"per_device_train_batch_size": 2, "num_generations": 2}
        small |= {"max_completion_length": 64, "max_tool_calling_iterations": 2}
        check_numbers(model, 3, tools=[add], temperature=0.7, **small)
    else:
        check_ranks(model)
