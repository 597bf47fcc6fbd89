"""Runs of strangers: each names one thing that would leave a mark if it were loaded or started."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_engine.config.parse import build, merge
from grpo_engine.run import checkpoint
from grpo_tui.experiments.db.paths import run_folder
from grpo_tui.experiments.queue import RunQueue
from grpo_tui.experiments.store import ExperimentStore

EVIL = """
from pathlib import Path
Path({mark!r}).touch()
rows = [{{"prompt": "1 + 1 = ", "answer": "2"}}] * 8

def f(*_, **__):
    return 1.0
"""
JUDGE = {
    "endpoint": "http://127.0.0.1:9/v1",
    "model": "m",
    "key_variable": "SECRET_KEY",
    "criteria": {"good": "Is it good?"},
}
# by name: the settings, and what the question must say of them
NAMED: Mapping[str, tuple[dict[str, Any], str]] = {
    "task": ({"task": {"name": "{here}/evil.py:rows"}}, "import {here}/evil.py:rows"),
    "task options": (
        {"task": {"name": "evil_module:f", "options": {"cmd": "id > x"}}},
        'import evil_module:f ({here}/evil_module.py) with {{"cmd": "id > x"}}',
    ),
    "other task": (
        {"task": {"others": {"more": {"name": "{here}/evil.py:rows"}}}},
        "import {here}/evil.py:rows (task.others.more.name)",
    ),
    "reward": ({"rewards": {"functions": ["{here}/evil.py:f"]}}, "import {here}/evil.py:f"),
    "reward options": (
        {"rewards": {"functions": ["{here}/evil.py:f"], "options": {"f": {"x": 1}}}},
        'import {here}/evil.py:f with {{"x": 1}}',
    ),
    "reward of another task": (
        {"task": {"others": {"guess": {"name": "guess", "rewards": {"{here}/evil.py:f": 1}}}}},
        "import {here}/evil.py:f (task.others.guess.rewards)",
    ),
    "tool": ({"task": {"tools": ["{here}/evil.py:f"]}}, "import {here}/evil.py:f (task.tools)"),
    "environment": (
        {"task": {"environment": "{here}/evil.py:f"}},
        "import {here}/evil.py:f (task.environment)",
    ),
    "agent": ({"task": {"environment": {"a": "agent: touch {mark}"}}}, "run touch {mark} in "),
    "server of tools": ({"task": {"tools": ["mcp: touch {mark}"]}}, "run touch {mark} in "),
    "server of tools elsewhere": (
        {"task": {"tools": ["mcp+https://example.org/mcp"]}},
        "contact the MCP server at https://example.org/mcp (task.tools)",
    ),
    "choice": ({"algorithm": {"signal": "{here}/evil.py:f"}}, "import {here}/evil.py:f"),
    "interpreter": ({"task": {"interpreter": "{here}/evil.sh"}}, "run {here}/evil.sh"),
    "judge": (
        {"rewards": {"functions": ["judge:{here}/judge.yaml"]}},
        "contact the judge m at http://127.0.0.1:9/v1/chat/completions with the value of "
        "$SECRET_KEY, by {here}/judge.yaml",
    ),
    "template": ({"task": {"chat_template": "{here}/t.jinja"}}, "read {here}/t.jinja"),
    "model with code": (
        {"model": {"path": "{here}/model", "trust_remote_code": True}},
        "run {here}/model with the code that comes with it",
    ),
    "hub model with code": (
        {"model": {"path": "org/evil", "trust_remote_code": True}},
        "run the hub's model org/evil with the code that comes with it",
    ),
    "hub model": ({"model": {"path": "org/model"}}, "contact the hub's model org/model"),
    "adapter": ({"model": {"adapter": "{here}/adapter"}}, "read {here}/adapter"),
    "teacher": (
        {"teacher": {"path": "{here}/model"}, "algorithm": {"recipe": "distill"}},
        "read {here}/model (teacher.path)",
    ),
    "data": ({"task": {"name": "{here}/data.jsonl"}}, "read {here}/data.jsonl"),
    "hub data": ({"task": {"name": "org/data"}}, "contact the hub's data set org/data"),
    "data of a built-in task": (
        {"task": {"name": "gsm8k", "options": {"path": "{here}/data.jsonl"}}},
        "read {here}/data.jsonl",
    ),
    "pass rates": ({"task": {"pass_rates": "{here}/data.jsonl"}}, "read {here}/data.jsonl"),
    "optimiser": ({"optimizer": {"start": "{here}/adapter"}}, "read {here}/adapter"),
    "tracker": ({"record": {"trackers": ["wandb"]}}, "contact the tracker wandb"),
    "taskset": ({"task": {"name": "verifiers:evil"}}, "import the package of verifiers:evil"),
    "package's reward": (
        {"rewards": {"functions": ["evil-reward"]}},
        "import evil-reward of the package evil (evil_module:f, {here}/evil_module.py)",
    ),
}


@dataclass(frozen=True)
class Planted:
    """A stranger's store with one run and one queued run, and the mark that they would leave."""

    store: Path
    here: Path
    mark: Path
    says: str


def write_theirs(folder: Path, mark: Path) -> None:
    """Write all that strangers' runs name; a package with an entry point, too."""
    for part in ("model", "adapter", "evil-1.dist-info"):
        (folder / part).mkdir(parents=True)
    for file in ("evil.py", "evil_module.py", "model/evil.py"):
        (folder / file).write_text(EVIL.format(mark=str(mark)))
    (folder / "evil.sh").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (folder / "evil.sh").chmod(0o755)
    (folder / "judge.yaml").write_text(json.dumps(JUDGE))
    (folder / "t.jinja").write_text("{{ messages }}")
    (folder / "data.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    (folder / "model/config.json").write_text('{"model_type": "llama", "model_file": "evil.py"}')
    (folder / "evil-1.dist-info/METADATA").write_text("Name: evil\nVersion: 1\n")
    (folder / "evil-1.dist-info/entry_points.txt").write_text(
        "[grpo_tui.rewards]\nevil-reward = evil_module:f\n"
    )


def filled(value: Any, **words: object) -> Any:
    """A tree with the words in its texts."""
    if isinstance(value, dict):
        return {filled(k, **words): filled(v, **words) for k, v in value.items()}
    if isinstance(value, list):
        return [filled(item, **words) for item in value]
    for name, word in words.items() if isinstance(value, str) else ():
        value = value.replace(f"{{{name}}}", str(word))
    return value


def tree_of(name: str, here: Path) -> dict[str, Any]:
    """The settings of a run that names one of these things."""
    changes = filled(NAMED[name][0], here=here, mark=here.parent / "mark")
    base = {"steps": 3, "task": {"held_out_size": 2}}
    return build(merge(base, changes)).model_dump(mode="json")


def plant(name: str, here: Path, store: Path) -> Planted:
    """A store with a run `theirs`, its checkpoint, and an item in the queue."""
    tree, mark = tree_of(name, here), here.parent / "mark"
    with ExperimentStore(store) as opened:
        row = opened.create_run(tree, name="theirs", status="stopped", origin="here")
        RunQueue(opened).add(tree, name="waiting")
    folder = run_folder(store, row.short)
    folder.mkdir(parents=True)
    state = {"config": tree, "progress": {"best_step": None}}
    checkpoint.save(folder, 2, tensors={}, state=state)
    return Planted(
        store,
        here,
        mark,
        NAMED[name][1]
        .replace("{{", "{")
        .replace("}}", "}")
        .replace("{here}", str(here))
        .replace("{mark}", str(mark)),
    )
