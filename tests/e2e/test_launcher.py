"""`./grpo-tui` in a copy of the tree, with a fake uv: set up once, started, refused."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "grpo-tui",
    "tools/setup",
    "tools/setup.py",
    "tools/hatch_build.py",
    "pyproject.toml",
    "constraints.txt",
    *(f"grpo_engine/cpu/{name}.c" for name in ("matmul", "layers", "passes")),
)
LINKED = ("app", "experiments")

UV = """#!/bin/sh
echo "uv $*" >> "$LOG"
case $1 in
    --version) echo uv 1 ;;
    venv) for last; do :; done; mkdir -p "$last/bin"; cp "$STAND_IN" "$last/bin/python" ;;
    pip) sleep "${UV_TAKES:-0}"; echo "${UV_SAYS:-installed}" >&2; exit "${UV_EXIT:-0}" ;;
esac
"""

PYTHON = """#!/bin/sh
# The environment's Python: takes set-up's questions, and shows what the command is given.
case "$*" in
    "-c import sys"*) exit 0 ;;
    "-c import pip") exit 0 ;;
    "-m pip"*) echo "pip" >> "$LOG"; echo "${PIP_SAYS:-}" >&2; exit "${PIP_EXIT:-0}" ;;
esac
printf '[%s]' "$@"
exit "${COMMAND_EXIT:-0}"
"""


class Tree(NamedTuple):
    """A copy of the tree with its environment variables."""

    root: Path
    env: dict[str, str]

    def start(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / "grpo-tui"), *args],
            capture_output=True,
            text=True,
            env=self.env | env,
            check=False,
        )

    def log(self) -> str:
        file = Path(self.env["LOG"])
        return file.read_text() if file.exists() else ""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    root = tmp_path / "a tree"
    for part in PARTS:
        (root / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / part, root / part)
    for name in LINKED:
        (root / name).mkdir()
        (root / "grpo_tui").mkdir(exist_ok=True)
        (root / "grpo_tui" / name).symlink_to(f"../{name}")
    commands = tmp_path / "commands"
    script(commands / "uv", UV)
    script(commands / "nvidia-smi", "#!/bin/sh\nexit 9\n")
    stand_in = script(tmp_path / "stand-in", PYTHON)
    env = {
        "PATH": f"{commands}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "LOG": str(tmp_path / "log"),
        "STAND_IN": str(stand_in),
        "GRPO_TUI_PYTHON": sys.executable,
    }
    return Tree(root, env)


def test_the_first_start_sets_up_and_the_second_goes_straight_to_the_command(tree: Tree) -> None:
    first = tree.start("runs")
    assert first.returncode == 0, first.stderr
    assert first.stdout == "[-P][-m][grpo_tui][runs]"
    assert "setting up .venv" in first.stderr
    before = tree.log()
    second = tree.start("runs")
    assert (second.stdout, second.stderr) == ("[-P][-m][grpo_tui][runs]", "")
    assert tree.log() == before


def test_arguments_and_exit_codes_stay_intact(tree: Tree) -> None:
    args = ("--set", "a b", "", "it's", '"$HOME"', "*")
    done = tree.start(*args, COMMAND_EXIT="3")
    assert done.returncode == 3
    assert done.stdout == "[-P][-m][grpo_tui]" + "".join(f"[{arg}]" for arg in args)


def test_a_link_from_elsewhere_starts_the_same_tree(tree: Tree, tmp_path: Path) -> None:
    link = tmp_path / "bin" / "grpo-tui"
    link.parent.mkdir()
    link.symlink_to(tree.root / "grpo-tui")
    done = subprocess.run([str(link)], capture_output=True, text=True, env=tree.env, check=True)
    assert done.stdout == "[-P][-m][grpo_tui]"


@pytest.mark.parametrize("name", LINKED)
def test_a_checkout_that_lost_its_links_says_how_to_make_them(tree: Tree, name: str) -> None:
    link = tree.root / "grpo_tui" / name
    link.unlink()
    link.write_text(f"../{name}")  # as git writes it with core.symlinks=false
    done = tree.start("runs")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    subprocess.run(done.stderr.partition("run: ")[2], shell=True, check=True)
    assert link.resolve() == tree.root / name
    assert tree.start("runs").returncode == 0


@pytest.mark.parametrize(
    "name", ["pyproject.toml", "tools/hatch_build.py", "grpo_engine/cpu/matmul.c"]
)
def test_a_changed_project_file_is_set_up_again(tree: Tree, name: str) -> None:
    tree.start()
    with (tree.root / name).open("a") as file:
        file.write("\n")
    assert "setting up .venv" in tree.start().stderr


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has one build")
@pytest.mark.parametrize(
    ("driver", "extra"), [("580.1", "cuda13"), ("535.2", "cuda12"), ("470.1", "cpu")]
)
def test_the_nvidia_driver_decides_the_build_of_mlx(
    tree: Tree, driver: str, extra: str, tmp_path: Path
) -> None:
    script(tmp_path / "commands" / "nvidia-smi", f"#!/bin/sh\necho {driver}\n")
    tree.start()
    assert f"-e {tree.root}[{extra}]" in tree.log()


def test_tests_bring_their_tools_and_serve_the_command_as_well(tree: Tree) -> None:
    env = tree.env
    subprocess.run([str(tree.root / "tools/setup"), "dev"], env=env, check=True)
    assert "pytest" in tree.log()
    assert "tasks,parquet" in tree.log()
    assert tree.start("runs").stderr == ""


def test_two_first_starts_set_up_once(tree: Tree) -> None:
    command = [str(tree.root / "grpo-tui"), "runs"]
    env = tree.env | {"UV_TAKES": "0.5"}
    both = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [process.communicate()[0] for process in both] == [b"[-P][-m][grpo_tui][runs]"] * 2
    assert tree.log().count("uv pip install") == 1


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ("Temporary failure in name resolution", "the package index cannot be reached"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: no wheel for this machine", "ERROR: no wheel for this machine"),
    ],
)
def test_a_failed_set_up_ends_with_one_clear_line(tree: Tree, says: str, expected: str) -> None:
    done = tree.start(UV_EXIT="2", PIP_EXIT="1", PIP_SAYS=says)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("grpo-tui: ")
    assert expected in last
    assert "set up" in tree.start().stderr


def test_pip_takes_over_where_uv_fails(tree: Tree) -> None:
    done = tree.start("runs", UV_EXIT="2")
    assert done.returncode == 0
    assert "trying pip" in done.stderr


def test_a_machine_without_python_is_told_which_one(tree: Tree) -> None:
    done = tree.start(GRPO_TUI_PYTHON="/no/python")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()[-1:]
    assert line.startswith("grpo-tui: Python 3.11 to 3.14 with sqlite3 and ssl is missing")


def setup_module_of(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("tools_setup", root / "tools/setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_disk_without_room_is_named_before_any_download(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = setup_module_of(tree.root)
    usage = SimpleNamespace(total=1 << 40, used=1 << 40, free=1 << 29)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(SystemExit, match="1"):
        module.check_space("cpu")
    assert "1.5 GiB of disk space are needed" in capsys.readouterr().err


def test_the_makefile_passes_plain_words_on(tree: Tree) -> None:
    shutil.copy(ROOT / "Makefile", tree.root / "Makefile")
    make = ["make", "-s", "run", "ARGS=runs --json"]
    done = subprocess.run(
        make, capture_output=True, text=True, env=tree.env, cwd=tree.root, check=True
    )
    assert done.stdout.endswith("[-P][-m][grpo_tui][runs][--json]")
