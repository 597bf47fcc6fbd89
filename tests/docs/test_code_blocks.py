"""Every code block of README.md and docs/ runs as it stands, or is listed here with the reason.

Each page runs in an environment of its own, with what the page tells to install and nothing else.
Runs are made shorter: see `SHORTER`. What a page takes for granted is in `FILES`.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

import pytest

from grpo_engine.config.parse import build
from grpo_engine.config.safe_yaml import parse_yaml
from grpo_engine.extends import EXTENDS
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.rewards.rubric import Rubric
from tests.docs import fresh
from tests.docs.blocks import PAGES, ROOT, SHEETS, Block, blocks
from tests.e2e.training import environment

NETWORK, MINUTES = "installs from the network", "takes ten minutes or more"
SCREEN = "opens the workbench, as the tests in tests/e2e do"
CHAIN = "needs answers of more tokens than here, as in tests/app/cli/test_examples_first.py"
# Commands that are not run, by how they begin.
NOT_RUN: Mapping[str, str] = {
    "make run": NETWORK,
    "make test": NETWORK,
    "pip install": NETWORK,
    "python -m venv": NETWORK,
    "grpo-tui train --set task.name=verifiers": "needs the package that is installed there",
    "./grpo-tui demo": SCREEN,
    "./grpo-tui tour": SCREEN,
    "grpo-tui watch": SCREEN,
    "ssh -t HOST": "needs another machine",
    "python -c 'from textual_serve": "serves until it is stopped",
    "mlx.launch --hostfile": "needs other machines",
    "mlx.launch -n 2": "two processes, as in tests/e2e/test_launcher.py",
    "mlx_lm.server": "serves until it is stopped, as in tests/engine/rewards/test_judge_runs.py",
    "grpo-tui runs import rollouts --follow": "goes on until it is stopped, as in tests/foreign",
    "grpo-tui doctor --remote": "needs a server, as in tests/app/test_server_health.py",
    "grpo-tui train --preset starter --set model.path=Qwen": "needs a server with the weights",
    "python -m tests.tools.skyrl": "needs SkyRL, of 7 GB",
    "make device": MINUTES,
    "make bench-quick": MINUTES,
    "python -m bench": MINUTES,
    "python -m tools.make_guess": MINUTES,
    "grpo-tui train --set algorithm.recipe=sft": CHAIN,
    "grpo-tui train --from": CHAIN,
    "grpo-tui train --preset starter --set 'record.trackers": "needs an account of wandb",
    "grpo-tui eval @last --lm-eval": "needs lm-eval, as in tests/engine/evaluation",
    "grpo-tui plot b0-s0": "needs a sweep and matplotlib, as in tests/app/cli/test_plot.py",
}
# Blocks of Python that are only compiled, by page and how they begin.
ONLY_COMPILED = {
    ("docs/maths.md", "totals = totals_of("): "a part of a trainer, whose names are the reader's",
    ("docs/other-trainers.md", "from trl import"): "needs PyTorch: see tests/tools/trl_runs.py",
    ("docs/environments.md", "# counts.py"): "is started by the command after it, with a row",
    ("docs/environments.md", "# distances.py"): "is started by the command after it",
}
# Blocks that are no code, by page and how they begin.
STARTER, GUESS = SHEETS
NO_CODE = {
    ("README.md", "app/"),
    ("docs/architecture.md", "  settings"),
    ("docs/beyond-one-machine.md", "git clone"),
    ("docs/beyond-one-machine.md", "--backend-config"),
    ("docs/beyond-one-machine.md", "export TINKER_API_KEY"),
    ("docs/environments.md", "<tool_call>"),
    (GUESS, "60 to 92"),
    (STARTER, "textbook"),
    (STARTER, "74 + 96"),
}
FAILS = {
    # a run of one step
    "grpo-tui train --detach --name night": "step >= 50 did not hold",
    "grpo-tui audit night": "night is already completed",
}
CHAT = '{"prompt": [{"role": "user", "content": "%s"}], "answer": "%s"}\n'
FILES: Mapping[str, Mapping[str, str]] = {
    "docs/comparing.md": {"base.yaml": "{extends: starter, algorithm: {recipe: dapo}}"},
    "docs/other-trainers.md": {"mine.yaml": "{steps: 3, algorithm: {recipe: dapo}}"},
    "docs/tasks.md": {
        "CONFIG.yaml": "{rollout: {prompts: 2, group_size: 2}}",
        "quiz.csv": "Frage,Lösung\n" + "".join(f"{n} + 1 = ?,{n + 1}\n" for n in range(40)),
        "data/words.jsonl": CHAT % ("Say one.", "one") + CHAT % ("Say two.", "two"),
    },
}
COPIED: Mapping[str, Mapping[str, str]] = {
    "docs/other-trainers.md": {"rollouts": "tests/foreign/verl"},
    "docs/results.md": {"docs/results.db.xz": "docs/results.db.xz"},
}
SHORTER = """#!{python}
import os, sys
sys.path.insert(0, {root!r})
from tests.e2e.training import command
words = sys.argv[1:]
for option, most in (("--steps", 2), ("--prompts", 8)):
    if option in words:
        place = words.index(option) + 1
        words[place] = str(min(most, int(words[place])))
if words[0] in ("train", "sweep"):
    words += [] if "--steps" in words else ["--steps", "1"]
    for change in ("evaluation.problems=4", "evaluation.pinned=0", "rollout.prompts=4"):
        words += ["--set", change]
line = command(*words)
os.execv(line[0], line)
"""
LEARNED = """
right, rewards = run.metrics["eval/accuracy"], run.metrics["reward"]
assert right[20] > right[0] + 0.2, dict(right)
assert min(rewards.values()) > -2, dict(rewards)
"""
# A model that a page names and that would come from the hub, in whose place the starter is trained.
OF_THE_HUB = "mlx-community/Qwen3-0.6B-bf16"
ANSWERS = "1\n2\n3\n" * 5  # to commands that ask
ALL = [block for page in PAGES for block in blocks(page) if block.language != "diff"]
RUN_PAGES = sorted({block.page for block in ALL if block.language in ("python", "sh", "yaml")})


def reason(line: str) -> str:
    """Why a command is not run; empty if it is."""
    return next((why for start, why in NOT_RUN.items() if line.startswith(start)), "")


def starts(block: Block) -> Iterator[tuple[str, str]]:
    """How a block is named in a table of exceptions, which has it at most once."""
    for page, start in (*ONLY_COMPILED, *NO_CODE):
        if page == block.page and block.text.startswith(start):
            yield page, start


def test_every_exception_is_of_a_block() -> None:
    used = {
        start
        for block in ALL
        if block.language == "sh"
        for line in block.commands
        for start in (*NOT_RUN, *FAILS)
        if line.startswith(start)
    }
    assert used == {*NOT_RUN, *FAILS}
    assert {name for block in ALL for name in starts(block)} == {*ONLY_COMPILED, *NO_CODE}


@pytest.mark.parametrize("block", ALL, ids=str)
def test_a_block_is_of_a_language_that_is_run_or_read(block: Block) -> None:
    match block.language:
        case "python":
            compile(block.text, str(block), "exec")
        case "json":
            json.loads(block.text)
        case "toml":
            tomllib.loads(block.text)
        case "yaml" if block.file:
            tree = parse_yaml(block.text)
            if tree.pop(EXTENDS, ""):
                build(tree)
            else:
                Rubric.model_validate(tree)
        case "yaml":
            build(parse_yaml(block.text))
        case "text":
            assert list(starts(block)), f"say what {block} is: run it, or list it"
        case language:
            assert language == "sh"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", RUN_PAGES)
def test_a_page_runs_from_its_first_block_to_its_last(page: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    env = prepared(here, page)
    script = ""
    for block in (block for block in ALL if block.page == page):
        if block.language == "sh":
            for line in block.commands:
                run_command(line, block, here, env)
        elif block.language == "yaml" and not block.file:
            (here / "block.yaml").write_text(block.text)
            run_command("grpo-tui train block.yaml", block, here, env)
        elif block.file:
            (here / block.file).write_text(block.text)
            if block.language == "python" and not list(starts(block)):
                run(["python", block.file], block, here, env)
        elif block.language == "python" and not list(starts(block)):
            # in one process, as the cells of a notebook
            source = "\n" * (block.line - 1) + block.text
            script += f"exec(compile({source!r}, {page!r}, 'exec'))\n"
    if script:
        (here / "cells.py").write_text(script)
        run(["python", "cells.py"], page, here, env)


@pytest.mark.slow
def test_the_reward_function_of_the_page_teaches_the_model_in_its_steps(tmp_path: Path) -> None:
    here = tmp_path / "here"
    env = prepared(here, "docs/python.md")
    (block,) = [b for b in ALL if b.page == "docs/python.md" and "def near(" in b.text]
    (here / "cells.py").write_text(f"import grpo_engine as grpo\n{block.text}{LEARNED}")
    run(["python", "cells.py"], block, here, env)


def prepared(here: Path, page: str) -> dict[str, str]:
    """A folder with the command and the files of a page, and the variables for it."""
    (here / "bin").mkdir(parents=True)
    shell = [block for block in ALL if block.page == page and block.language == "sh"]
    lines = [line for block in shell for line in block.commands]
    python = fresh.make(here / ".venv", chain.from_iterable(map(fresh.installed_by, lines)))
    for place in (here / "bin" / "grpo-tui", here / "grpo-tui"):
        place.write_text(SHORTER.format(python=python, root=str(ROOT)))
        place.chmod(0o755)
    for name, text in FILES.get(page, {}).items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)
    for name, source in COPIED.get(page, {}).items():
        (here / name).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, here / name)
    if page == STARTER:  # begins in a checkout
        (here / "grpo_engine").symlink_to(ROOT / "grpo_engine")
    hub = here / OF_THE_HUB
    shutil.copytree(EMBEDDED["starter"], hub)
    settings = json.loads((hub / "config.json").read_text())
    (hub / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 4096}))
    paths = os.environ["PATH"].split(os.pathsep)
    others = (path for path in paths if Path(path) != Path(sys.executable).parent)
    return environment(here) | {
        "PATH": os.pathsep.join([str(here / "bin"), str(python.parent), *others])
    }


def run_command(line: str, block: Block, here: Path, env: Mapping[str, str]) -> None:
    if reason(line):
        return
    expected = next((text for start, text in FAILS.items() if line.startswith(start)), "")
    output = run(["bash", "-c", line], f"{block}: {line}", here, env, fails=bool(expected))
    assert expected in output


def run(
    words: list[str], what: object, here: Path, env: Mapping[str, str], *, fails: bool = False
) -> str:
    words = [shutil.which(words[0], path=env["PATH"]) or words[0], *words[1:]]
    done = subprocess.run(
        words, cwd=here, env=dict(env), input=ANSWERS, capture_output=True, text=True, check=False
    )
    output = f"{done.stdout}\n{done.stderr}"
    assert bool(done.returncode) == fails, f"{what}\n{output[-4000:]}"
    return output
