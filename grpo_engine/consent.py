"""What a run's settings would load, start and contact; asked before, where the run began elsewhere.

A store, a checkpoint or a queue comes from whoever wrote it, and so do the uid, the name and the
origin that it states: none of these is believed. What counts is kept in the user's own folder of
settings as empty files, whose names are digests:

- `here`: all settings of a run that began here (without name, seed and steps), with every file
  that they name resolved in the folder of that time. A stranger who repeats exactly these makes
  nothing happen that the user did not start; one other setting, such as the beginning of an
  answer that calls a tool, or the same relative path in another folder, is another digest.
- `yes`: the same with digests of the files, after a yes. What a file holds later is asked again.
- `elsewhere` and `own`: code by its name, whichever came first, for `is_foreign`.

What comes with this program is no item. A model or data set of the hub is one: it is fetched with
the user's token. A package's recipe is imported when settings with it are read.
"""

import hashlib
import importlib.util
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import PathFinder
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from grpo_engine import names
from grpo_engine.config import parse
from grpo_engine.config.custom import is_name
from grpo_engine.config.recipes import OPEN, RECIPES
from grpo_engine.config.removed import without_removed
from grpo_engine.config.settings import (
    ModelConfig,
    RemoteConfig,
    RewardsConfig,
    RunConfig,
    TaskConfig,
)
from grpo_engine.errors import ConfigError, EngineError, RewardError
from grpo_engine.platform.private import private_folder
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.rewards.builtins import BUILT_IN as REWARDS
from grpo_engine.rewards.rubric import read_rubric
from grpo_engine.tasks.base import BUILT_IN as TASKS
from grpo_engine.tasks.base import is_code, json_of

Action = Literal["import", "run", "read", "contact", "send"]
FILES: Final = 2_000  # files of a folder that are digested
LIMIT: Final = 256 << 20  # bytes of a file that is digested as a whole
PIECES, PIECE = 64, 1 << 16  # number and bytes of the pieces of a larger file
LONGEST: Final = 2_000  # characters of an item on a screen
AGENT, TASKSET = "agent:", "verifiers:"
SERVER, REMOTE_SERVER = "mcp:", "mcp+"
VARYING = ("name", "seed", "steps")  # settings in which a run and its clone may differ
READ = ("model", "teacher", "remote", "optimizer", "rewards", "task", "record", "sandbox")

_digests: set[str] = set()  # of this process, also where the folder cannot be written
_accepting = False


@dataclass(frozen=True, slots=True)
class TrustItem:
    """One thing that a setting names: what happens to it, and the files that it consists of."""

    action: Action
    path: str  # the setting's
    target: str
    files: tuple[Path, ...] = ()

    @property
    def is_code(self) -> bool:
        return self.action in ("import", "run")

    def __str__(self) -> str:
        text = self.target
        if len(text) > LONGEST:
            text = f"{text[:LONGEST]}… ({len(text):,} characters, sha256 {_digest_of(text)})"
        text = text.replace("\n", "↵")  # lines would look like several items
        return f"{self.action} {text} ({self.path})"


@dataclass(frozen=True)
class Question:
    """What a run would load, start and contact, for a yes or a no."""

    subject: str
    settings: Mapping[str, Any]
    items: tuple[TrustItem, ...]

    @cached_property
    def began(self) -> str:
        """The digest of the settings and of what they name."""
        return _digest_of([dict(self.settings), [(i.action, i.path, i.target) for i in self.items]])

    @cached_property
    def content(self) -> str:
        """The same with the files, as they were when this was read first."""
        return _digest_of([self.began, [_digest_of_file(f) for i in self.items for f in i.files]])

    @property
    def is_allowed(self) -> bool:
        return not self.items or _has("here", self.began) or _has("yes", self.content)

    @property
    def _codes(self) -> list[str]:
        return [_digest_of(item.target) for item in self.items if item.is_code]

    @property
    def is_foreign(self) -> bool:
        """Whether code in it was allowed before it was part of a run that began here."""
        return any(_has("elsewhere", code) and not _has("own", code) for code in self._codes)

    def allow(self) -> str:
        """Store the yes; return why it lasts only as long as this process, if so."""
        foreign = [f"elsewhere-{code}" for code in self._codes if not _has("own", code)]
        return _store(f"yes-{self.content}", *foreign)

    def begin(self) -> str:
        """Note that a run with this begins here; return why that cannot be stored, if so."""
        if not self.items:
            return ""
        if self.is_foreign:
            return _store(f"yes-{self.content}")
        return _store(f"here-{self.began}", *(f"own-{code}" for code in self._codes))


class UntrustedError(EngineError, ValueError):
    """A run that did not begin here names something that nobody has allowed yet."""

    def __init__(self, question: Question) -> None:
        self.question = question
        super().__init__(
            f"{question.subject} did not begin here, and would "
            f"{'; '.join(map(str, question.items))}. If you trust all of it, add --trust, "
            "or trust=True in Python"
        )


# -- asking -----------------------------------------------------------------------------------


def require(question: Question) -> None:
    """Raise UntrustedError unless this began here or was allowed."""
    if question.is_allowed:
        return
    if not _accepting:
        raise UntrustedError(question)
    if problem := question.allow():
        warnings.warn(problem, stacklevel=2)


def build(tree: Mapping[str, Any], subject: str) -> RunConfig:
    """The settings that a store, a checkpoint or a queue has, if they may be used."""
    require(question_of(tree, subject))
    return parse.build(tree, subject)


@contextmanager
def accepting(accept: bool) -> Iterator[None]:
    """Take everything that is asked meanwhile as allowed."""
    global _accepting
    previous, _accepting = _accepting, accept or _accepting
    try:
        yield
    finally:
        _accepting = previous


def accept_all() -> None:
    """Take everything that is asked in this process as allowed."""
    global _accepting
    _accepting = True


def begins(config: RunConfig) -> str:
    """Note that a run with these settings begins here."""
    return question_of(config.model_dump(mode="json")).begin()


def code_files(config: RunConfig) -> tuple[Path, ...]:
    """The files of functions and programs that these settings name."""
    items = question_of(config.model_dump(mode="json")).items
    return tuple(file for item in items if item.is_code for file in item.files)


def is_foreign(config: RunConfig) -> bool:
    """Whether these settings name code of a run that began elsewhere."""
    return question_of(config.model_dump(mode="json")).is_foreign


# -- what settings name -----------------------------------------------------------------------


def question_of(tree: Mapping[str, Any], subject: str = "the run") -> Question:
    """What these settings name; nothing of it is imported."""
    current, _ = without_removed(tree)
    flat = {
        f"{section}.{name}" if name else section: value
        for section, inner in current.items()
        for name, value in (inner.items() if isinstance(inner, Mapping) else [("", inner)])
    }
    settings = {k: v for k, v in parse.changed(flat).items() if k not in VARYING}
    try:
        return Question(subject, settings, tuple(dict.fromkeys(_items(current, subject))))
    except ConfigError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # no system takes such a path
        raise ConfigError(f"{subject}: {error}") from error


def question_of_functions(
    sources: Mapping[str, Mapping[str, Any]], subject: str = "the run"
) -> Question:
    """The functions of a run's choices, by the files that its record names."""
    items = []
    for choice, source in sorted(sources.items()):
        name, file = str(source.get("name", "")), Path(str(source.get("file", "")))
        if not name.startswith(names.IN_PROCESS):
            target = f"{file}:{name.rpartition(':')[2]}"
            items.append(TrustItem("import", f"algorithm.{choice}", target, (file,)))
    return Question(subject, {}, tuple(items))


def _items(tree: Mapping[str, Any], subject: str) -> Iterator[TrustItem]:
    # The section `algorithm` is left out: it would import a package's recipe.
    config = parse.build({name: tree[name] for name in READ if tree.get(name)}, subject)
    model, task, rewards = config.model, config.task, config.rewards
    yield from _model(model, "model.path", model.path)
    if model.adapter:
        yield _file("model.adapter", model.adapter)
    if teacher := config.teacher.path:
        yield from _model(model, "teacher.path", teacher)
    if config.optimizer.start:
        yield _file("optimizer.start", config.optimizer.start)
    if config.remote.url:
        yield _server(config.remote)
    for name in rewards.functions:
        yield from _reward(name, "rewards.functions", rewards)
    yield from _task(task, "task")
    for label, further in task.others.items():
        yield from _task(further, f"task.others.{label}")
        for name in further.rewards:
            yield from _reward(name, f"task.others.{label}.rewards", rewards)
    if task.pass_rates:
        yield _file("task.pass_rates", task.pass_rates)
    yield from _algorithm(tree.get("algorithm"))
    for tracker in config.record.trackers:
        if tracker != "tensorboard":
            yield TrustItem("contact", "record.trackers", f"the tracker {tracker}")
    if variables := config.sandbox.environment:
        yield TrustItem(
            "send", "sandbox.environment", f"the variables {json_of(variables)} to its code"
        )


def _model(model: ModelConfig, path: str, named: str) -> Iterator[TrustItem]:
    """A model by folder or hub id, and whether its code runs."""
    if named in EMBEDDED:
        return
    code = " with the code that comes with it" * model.trust_remote_code
    if named.count("/") == 1 and _is_of_hub(named):
        yield TrustItem("run" if code else "contact", path, f"the hub's model {named}{code}")
    else:
        folder = Path(named).expanduser().absolute()
        yield TrustItem("run" if code else "read", path, f"{folder}{code}", (folder,))


def _server(remote: RemoteConfig) -> TrustItem:
    """The server that gets all prompts and answers, and whose key it gets."""
    named = "the hosted Tinker service" if remote.url == "tinker" else f"the server {remote.url}"
    variable = remote.key_env or ("TINKER_API_KEY" if remote.url == "tinker" else "")
    key = f" with the value of ${variable}" if variable else ""
    readable = ", readable on the way" if remote.insecure else ""
    return TrustItem(
        "contact", "remote.url", f"{named}{key}, for every prompt and answer{readable}"
    )


def _is_of_hub(named: str) -> bool:
    return not (named.startswith((".", "~", "/")) or Path(named).exists())


def _reward(name: str, path: str, rewards: RewardsConfig) -> Iterator[TrustItem]:
    if name.startswith(names.JUDGE):
        yield _judge(name, path)
    elif name not in REWARDS:
        keys = (name, name.rpartition(":")[2])
        options = [values for key, values in rewards.options.items() if key in keys]
        yield from _code(name, path, "rewards", *options)


def _judge(name: str, path: str) -> TrustItem:
    """The address that a judge's file names, and whose key it gets."""
    file = Path(name.removeprefix(names.JUDGE)).expanduser().absolute()
    try:
        rubric = read_rubric(file)
    except (RewardError, OSError) as error:
        reason = str(error).partition("\n")[0]
        return TrustItem(
            "contact", path, f"what {file} names, which cannot be read: {reason}", (file,)
        )
    key = f" with the value of ${rubric.key_variable}" if rubric.key_variable else ""
    return TrustItem(
        "contact", path, f"the judge {rubric.model} at {rubric.url}{key}, by {file}", (file,)
    )


def _task(task: TaskConfig, at: str) -> Iterator[TrustItem]:
    """The task, its data, tools, environment, interpreter and template."""
    source = task.name.partition(":")[0]
    if source in TASKS and f"{source}:" != TASKSET:
        if data := task.options.get("path"):
            yield _data(f"{at}.options", str(data))
    elif task.name.startswith(TASKSET) or is_code(task.name):
        yield from _code(task.name, f"{at}.name", "tasks", task.options)
    else:
        yield _data(f"{at}.name", task.name)
    for tool in task.tools:
        if tool.startswith(SERVER):
            yield _program(f"{at}.tools", tool.removeprefix(SERVER))
        elif tool.startswith(REMOTE_SERVER):
            url, _, variable = tool.removeprefix(REMOTE_SERVER).partition(" ")
            key = f" with the key in {variable}" * bool(variable)
            yield TrustItem("contact", f"{at}.tools", f"the MCP server at {url}{key}")
        else:
            yield from _code(tool, f"{at}.tools", "environments")
    for name in filter(None, task.environments.values()):
        if name.startswith(AGENT):
            yield _program(f"{at}.environment", name.removeprefix(AGENT))
        else:
            options = task.options if name.startswith(TASKSET) else {}
            yield from _code(name, f"{at}.environment", "environments", options)
    if task.interpreter:
        program = Path(task.interpreter).expanduser().absolute()
        yield TrustItem("run", f"{at}.interpreter", str(program), (program,))
    if task.chat_template not in ("", "plain", "chatml"):
        yield _file(f"{at}.chat_template", task.chat_template)


def _program(path: str, command: str) -> TrustItem:
    """A command, with the files that it names."""
    paths = (Path(part).absolute() for part in command.split())
    files = tuple(file for file in paths if file.is_file())
    return TrustItem("run", path, f"{command.strip()} in {Path.cwd()}", files)


def _algorithm(section: object) -> Iterator[TrustItem]:
    """The functions that make a recipe's choices, and a package's recipe."""
    if not isinstance(section, Mapping):
        return
    for choice in OPEN:
        if is_name(name := section.get(choice)):
            yield from _code(str(name), f"algorithm.{choice}", None)
    if (recipe := str(section.get("recipe", "grpo"))) not in RECIPES:
        yield from _code(recipe, "algorithm.recipe", "recipes")


def _code(
    name: str, path: str, group: names.EntryGroup | None, *options: Mapping[str, Any]
) -> Iterator[TrustItem]:
    """A function or class by its name, where it is, and what it is called with."""
    if name.startswith(names.IN_PROCESS):
        return
    location, _, attribute = name.rpartition(":")
    files: tuple[Path, ...] = ()
    if group is not None and (point := names.installed(group).get(name)) is not None:
        files = (_module_file(point.module),)
        target = f"{name} of the package {names.package_of(point)} ({point.value}, {files[0]})"
    elif name.startswith(TASKSET):
        target = f"the package of {name}"
    elif location.endswith(".py") or "/" in location:
        files = (Path(location).expanduser().resolve(),)
        target = f"{files[0]}:{attribute}"
    elif location:
        files = (_module_file(location),)
        target = f"{name} ({files[0]})"
    else:
        return
    keywords = f" with {' or '.join(map(json_of, options))}" if any(options) else ""
    yield TrustItem("import", path, f"{target}{keywords}", files)


def _module_file(module: str) -> Path:
    """The file of a module, which is not imported; `.` where there is none."""
    name, *parts = module.split(".")
    with suppress(ImportError, ValueError, AttributeError, OSError):
        spec = importlib.util.find_spec(name)
        for part in parts:
            folders = spec.submodule_search_locations if spec is not None else None
            name = f"{name}.{part}"
            spec = PathFinder.find_spec(name, list(folders or ()))
        if spec is not None and spec.origin:
            return Path(spec.origin)
    return Path()


def _file(path: str, named: str) -> TrustItem:
    file = Path(named).expanduser().absolute()
    return TrustItem("read", path, str(file), (file,))


def _data(path: str, named: str) -> TrustItem:
    if _is_of_hub(named):
        return TrustItem("contact", path, f"the hub's data set {named}")
    return _file(path, named)


# -- digests ----------------------------------------------------------------------------------


def _digest_of(value: object) -> str:
    return hashlib.sha256(json_of(value).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _digest_of_file(path: Path) -> str:
    """A digest of a file, or of the files of a folder; of large ones pieces and their time."""
    digest = hashlib.sha256()
    if path == Path():
        return ""
    paths = sorted(islice(path.rglob("*"), FILES)) if path.is_dir() else [path]
    for file in paths:
        if not file.is_file():  # a pipe would never end
            continue
        with suppress(OSError, ValueError), file.open("rb") as stream:
            status = os.fstat(stream.fileno())
            size, limit = status.st_size, LIMIT if file == path else PIECES * PIECE
            digest.update(f"{file.name} {size}\n".encode("utf-8", "surrogateescape"))
            if size <= limit:
                while data := stream.read(1 << 20):
                    digest.update(data)
                continue
            digest.update(str(status.st_mtime_ns).encode())
            for number in range(PIECES):
                stream.seek(number * (size - PIECE) // (PIECES - 1))
                digest.update(stream.read(PIECE))
    return digest.hexdigest()


# -- the folder of digests --------------------------------------------------------------------


def folder() -> Path:
    """Where digests are stored, beside the user's settings of the workbench."""
    from platformdirs import user_config_path

    return user_config_path("grpo-tui", appauthor=False) / "trust"


def _has(group: str, digest: str) -> bool:
    name = f"{group}-{digest}"
    private = None if name in _digests else private_folder(folder())
    if private is not None and (private / name).is_file():
        _digests.add(name)
    return name in _digests


def _store(*digests: str) -> str:
    """Remember digests in this process, and in the folder; return why not there, if so."""
    _digests.update(digests)
    path = folder()
    try:
        if (private := private_folder(path)) is None:
            raise OSError("it is no folder of yours alone")  # noqa: TRY301 - as if it were closed
        for name in digests:
            # An empty file is complete as soon as it exists, whoever else writes.
            os.close(os.open(private / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        return (
            f"what you allow is kept only until this program ends: {path} cannot be written "
            f"({error.strerror or error})"
        )
    return ""
