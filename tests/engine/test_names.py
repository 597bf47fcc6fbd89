"""What names may refer to: what users write and packages bring, never Python's own library."""

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import names
from grpo_engine.config.custom import Custom
from grpo_engine.config.settings import TaskConfig
from grpo_engine.environments.service import EnvironmentService
from grpo_engine.errors import DataError, EngineError, RecipeError, RewardError
from grpo_engine.rewards.load import find as find_reward
from grpo_engine.sandbox.program import Server
from grpo_engine.tasks.base import load_task

PURPOSE = names.Purpose("reward x", RewardError)
USERS = """
import csv, functools, io, operator, pathlib, random, subprocess
from os import system
from collections import OrderedDict

def score(completions, length=1, **_):
    return [float(length)] * len(completions)

class Scorer:
    def __call__(self, completions, **_):
        return [1.0] * len(completions)
    def method(self, completions, **_):
        return [2.0] * len(completions)
    @staticmethod
    def free(completions, **_):
        return [3.0] * len(completions)

class Path(pathlib.PosixPath): ...
class Shell(subprocess.Popen): ...

scorer = Scorer()
longer = functools.partial(score, length=5)
twice = functools.partial(longer, length=7)
bound = scorer.method
cached = functools.lru_cache(score)
unbound = functools.singledispatch(score)
rows = [{"prompt": "2+2"}]
ordered = OrderedDict(train=rows)
endless = (row for row in rows)
table = csv.DictReader(io.StringIO("prompt"))

run = functools.partial(subprocess.getoutput, "id")
again = functools.partial(run)
wrapped = functools.lru_cache(system)
write = pathlib.Path("x").write_text
kept = pathlib.Path("x")
draw = random.random
opened = io.StringIO
picked = operator.itemgetter(0)
called = operator.methodcaller("kill")
lists = [].append
evaluate = eval
"""
ALLOWED = (
    "score", "Scorer", "Scorer.free", "scorer", "scorer.method", "longer", "twice", "bound",
    "cached", "unbound", "rows", "ordered", "endless", "table", "Path", "Shell",
)  # fmt: skip
REFUSED = (
    "subprocess.getoutput", "subprocess", "pathlib.Path.unlink", "system", "run", "again",
    "wrapped", "write", "kept", "draw", "opened", "picked", "called", "lists", "evaluate",
    "Shell.communicate", "Path.write_text", "OrderedDict", "score.__globals__", "__loader__",
    "Scorer.__subclasses__", "scorer.__class__", "__builtins__",
)  # fmt: skip
# what the engine and others have imported
THROUGH = (
    "subprocess:getoutput",
    "os:system",
    "builtins:eval",
    "_io:open",
    "posix:system",
    "importlib:import_module",
    "os.path:exists",
    "code:interact",
    "webbrowser:open",
    "grpo_engine.api.settings:subprocess.getoutput",
    "grpo_engine.names:importlib.import_module",
    "grpo_engine.names:importlib",
    "grpo_engine.config.parse:yaml.unsafe_load",
    "mlx_lm.utils:os.system",
    "grpo_engine.names:Path.unlink",
    "grpo_engine.names:cache",
)


@pytest.fixture(scope="module", params=["file", "module"])
def users(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A user's file, and the same as a module of PYTHONPATH."""
    folder = tmp_path_factory.mktemp("users")
    (folder / "their_rewards.py").write_text(USERS)
    if request.param == "file":
        yield str(folder / "their_rewards.py")
        return
    sys.path.insert(0, str(folder))
    yield "their_rewards"
    sys.path.remove(str(folder))
    sys.modules.pop("their_rewards", None)


@pytest.mark.parametrize("name", ALLOWED)
def test_what_a_user_wrote_is_found_in_whatever_form(users: str, name: str) -> None:
    assert names.find(f"{users}:{name}", PURPOSE)[0] is not None


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_of_the_standard_library_is_taken_from_a_users_file(users: str, name: str) -> None:
    with pytest.raises(RewardError, match=r"standard library|is the module|has no"):
        names.find(f"{users}:{name}", PURPOSE)


@pytest.mark.parametrize("name", THROUGH)
def test_no_name_leads_through_a_module_to_the_standard_library(name: str) -> None:
    with pytest.raises(RewardError, match=r"standard library|is the module"):
        names.find(name, PURPOSE)


def test_a_refused_module_is_not_even_imported() -> None:
    sys.modules.pop("this", None)
    with pytest.raises(RewardError, match="standard library"):
        names.find("this:s", PURPOSE)
    assert "this" not in sys.modules


@pytest.mark.parametrize("name", ["numpy:mean", "numpy:linalg.norm", "mlx_lm:load"])
def test_functions_of_installed_packages_are_found_by_the_module_that_has_them(name: str) -> None:
    if name == "numpy:linalg.norm":
        with pytest.raises(RewardError, match=r"numpy\.linalg; name that module before the colon"):
            names.find(name, PURPOSE)
        name = "numpy.linalg:norm"
    assert callable(names.find(name, PURPOSE)[0])


def test_a_function_that_another_module_exports_is_found(tmp_path: Path) -> None:
    (tmp_path / "inner_rewards.py").write_text("def score(completions, **_): return [1.0]\n")
    (tmp_path / "outer.py").write_text("from inner_rewards import score\n")
    assert callable(names.find(f"{tmp_path / 'outer.py'}:score", PURPOSE)[0])


def test_every_role_refuses_the_standard_library(tmp_path: Path) -> None:
    name, marker = "grpo_engine.api.settings:subprocess.getoutput", tmp_path / "ran"
    with pytest.raises(DataError, match="module"):
        load_task(TaskConfig(name=name, options={"cmd": f"touch {marker}"}))
    with pytest.raises(DataError, match="standard library"):
        load_task(TaskConfig(name="subprocess:getoutput", options={"cmd": f"touch {marker}"}))
    with pytest.raises(RewardError, match="module"):
        find_reward(name)
    with pytest.raises(RecipeError, match="module"):
        _ = Custom(name).function
    service = EnvironmentService(Server.__new__(Server))
    service._server.objects = {}
    for tools, environments in (([name], {}), ([], {"": name})):
        with pytest.raises(EngineError, match="module"):
            service.load(tools, environments, {}, {})
    assert not marker.exists()


@pytest.mark.parametrize(
    "value", ["subprocess:getoutput", "grpo_engine.api.settings:subprocess.getoutput"]
)
def test_an_entry_point_of_the_standard_library_is_refused(value: str) -> None:
    point: Any = EntryPoint("x", value, "grpo_tui.rewards")
    with pytest.raises(RewardError, match=r"standard library|is the module"):
        names.load(point, PURPOSE)
