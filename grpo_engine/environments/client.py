"""The environments of all rows, called in a few processes of the sandbox, side by side.

An instance lives in one process. A call that hangs or crashes loses its process; then the other
episodes of that process are repeated in a new one from the completions so far, each before its next
call. A rollout whose environment fails has an error, and the run continues.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from grpo_engine.config.settings import RunConfig
from grpo_engine.environments import agents, verifiers
from grpo_engine.environments.tool_servers import is_server
from grpo_engine.errors import BrokenEnvironmentError, DataError
from grpo_engine.frozen import frozen
from grpo_engine.rewards.rubric import key_variables
from grpo_engine.rollouts.dialogue import NO_USAGE, EnvironmentReply, Usage
from grpo_engine.rollouts.prompts import Opening
from grpo_engine.rollouts.types import EnvironmentOutcome
from grpo_engine.sandbox.client import Sandbox, ServiceCall, finish, poll
from grpo_engine.tasks.base import Task

REPLY = TypeAdapter(EnvironmentReply)
SERVICE = "grpo_engine.environments.service:EnvironmentService"
PROCESSES = 2
CHOOSES = "environment"  # column: the name of a row's environment, where there are several
SAMPLING = ("temperature", "top_p")  # settings that a request may repeat
MIN_LOAD_S = 30.0  # a new interpreter and its imports, on a busy machine
START_SERVERS_S = 120.0  # servers of tools, whose programs may be fetched first
LOAD_ELSEWHERE_S = 300.0  # the imports of a package in its own interpreter


@frozen
class EnvironmentSpec:
    """An environment as its process describes it."""

    name: str
    has_reward: bool
    tools: Sequence[Mapping[str, Any]] = ()  # schemas
    by_turn: bool = False  # Replies have rewards.
    is_agent: bool = False  # A program sends requests.


@dataclass(slots=True, eq=False, kw_only=True)
class Episode:
    """One rollout's dialogue: which environment, its row of the data, its seed and its number.

    It lives in one process, and has what it takes to repeat it in another.
    """

    environment: str
    row: Mapping[str, Any]
    seed: int
    index: int
    slot: int = 0
    process: int = 0
    spec: EnvironmentSpec = field(init=False)
    # The arguments of each step and the messages of its reply.
    past: list[tuple[Mapping[str, Any], Any]] = field(default_factory=list)
    opening: Opening = field(default_factory=Opening)
    last: EnvironmentReply = field(default_factory=EnvironmentReply)
    calls: int = 0
    failures: int = 0
    end: Mapping[str, Any] = field(default_factory=dict)  # reward and state

    @property
    def start(self) -> dict[str, Any]:
        """The arguments of its reset."""
        return {"row": dict(self.row), "seed": self.seed, "index": self.index}

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Their schemas, for the next turn."""
        return self.last.tools or self.spec.tools

    def fail(self, error: str, ms: float = 0.0) -> None:
        """End it with an error."""
        self.last = EnvironmentReply(name=self.spec.name, error=error, ms=ms)


@dataclass(slots=True, eq=False, kw_only=True)
class _EpisodeCall(ServiceCall):
    """A call of an episode, which is repeated first in a process that has not seen it."""

    episode: Episode

    def prepare(self, process: int) -> None:
        episode, is_new = self.episode, self.episode.process != process
        if is_new and self.arguments["method"] != "reset" and "repeat" not in self.arguments:
            repeat = {"start": episode.start, "past": episode.past}
            self.arguments = {**self.arguments, "repeat": repeat}
            self.factor = 2 + len(episode.past)
        episode.process = process


def specs_of(config: RunConfig, task: Task) -> tuple[Sequence[str], Mapping[str, str]]:
    """Tools and environments by the name that a row chooses; from the settings, else the task's."""
    settings = config.task
    if settings.tools or settings.environment:
        return settings.tools, settings.environments
    return task.tools, {"": task.environment} if task.tools or task.environment else {}


def choose(names: Collection[str], row: Mapping[str, Any], location: str) -> str:
    """The name of the environment that a row chooses; empty if there is only one."""
    if "" in names:
        return ""
    name = str(row.get(CHOOSES, ""))
    if name not in names:
        raise DataError(
            f"{location}: its `environment` is {name!r}; task.environment has {', '.join(names)}"
        )
    return name


class EnvironmentClient:
    """The processes of a run's environments; a context manager.

    With `objects`, which are tools and environments that only this process has, by name, all run in
    this process without a time limit. `interrupted` is polled while episodes begin and end; if it
    returns true, `StopNow` is raised. What runs in another interpreter, programs, and all that is
    `foreign` has the short list of variables.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        folder: Path | None,
        interrupted: Callable[[], bool] = lambda: False,
        objects: Mapping[str, Any] | None = None,
        *,
        foreign: bool = False,
    ) -> None:
        settings, self._time_limit = config.task, config.rewards.time_limit
        tools, names = specs_of(config, task)
        load_limit = START_SERVERS_S if any(map(is_server, tools)) else MIN_LOAD_S
        load_limit = LOAD_ELSEWHERE_S if settings.interpreter else load_limit
        self._load_limit = max(load_limit, self._time_limit)
        of_agents = {
            "sampling": {name: getattr(config.training, name) for name in SAMPLING},
            # Without reward functions, the exit status of a program is its reward.
            "by_status": not (config.rewards.functions or task.default_rewards),
            "named": list(config.sandbox.environment),
        }
        arguments = {
            "tools": list(tools),
            "environments": dict(names),
            "options": dict(settings.options),
            "agents": of_agents,
        }
        programs = (agents.PREFIX, verifiers.PREFIX)
        foreign |= bool(settings.interpreter) or all(n.startswith(programs) for n in names.values())
        rewards = (*config.rewards.functions, *(spec.name for spec in task.default_rewards))
        further = (name for task in settings.others.values() for name in task.rewards)
        keys = key_variables((*rewards, *further))
        loads = ", ".join(filter(None, (*tools, *names.values())))
        setup = [ServiceCall("load", arguments, self._load_limit, loads=loads)]
        self._open = ExitStack()
        self._sandboxes = [
            self._open.enter_context(
                Sandbox(
                    SERVICE,
                    folder,
                    f"environments-{number + 1}",
                    setup=setup,
                    objects=objects,
                    interpreter=settings.interpreter,
                    interrupted=interrupted,
                    foreign=foreign,
                    named=config.sandbox.environment,
                    hidden={*keys, config.remote.key_env},
                )
            )
            for number in range(1 if objects else PROCESSES)
        ]
        self.episodes: Sequence[Episode] = ()
        self._replies: dict[int, EnvironmentReply] = {}  # by slot
        self.specs: dict[str, EnvironmentSpec] = {}

    def __enter__(self) -> Self:
        with self._open:
            (call,) = self._sandboxes[0].start()
            specs = call.value_or(BrokenEnvironmentError)
            self.specs = {key: EnvironmentSpec(**values) for key, values in specs.items()}
            self._open = self._open.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    @property
    def rewards(self) -> tuple[str, ...]:
        environments = self.specs.values()
        return tuple(dict.fromkeys(e.name for e in environments if e.has_reward))

    def begin(self, episodes: Sequence[Episode]) -> None:
        """Begin episodes, whose openings are empty if they could not begin."""
        for sandbox in self._sandboxes:
            if sandbox.is_busy:  # A dropped step left calls behind.
                sandbox.close(0.0)
        self._replies.clear()
        self.episodes = episodes
        for slot, episode in enumerate(episodes):
            episode.slot, episode.spec = slot, self.specs[episode.environment]
            self._submit(episode, "reset", **episode.start)
        self._receive(finish(self._sandboxes))

    def submit(self, index: int, completion: str, usage: Usage = NO_USAGE) -> None:
        episode = self.episodes[index]
        details = asdict(usage) if episode.spec.is_agent else {}
        self._submit(episode, "step", completion=completion, **details)
        self._receive(poll(self._sandboxes, 0))

    def replies(self, seconds: float) -> list[tuple[int, EnvironmentReply]]:
        """The replies that have come, after waiting for one at most this long."""
        if not self._replies:
            self._receive(poll(self._sandboxes, seconds))
        replies, self._replies = self._replies, {}
        return sorted(replies.items())

    def last(self, index: int) -> EnvironmentReply:
        """The last reply of a row's environment, how it began or how it failed at its end."""
        return self.episodes[index].last

    def finish(self, failed: Sequence[bool]) -> list[EnvironmentOutcome]:
        """The outcomes of the dialogues; an environment that failed is not called again."""
        for episode, has_failed in zip(self.episodes, failed, strict=True):
            if not has_failed or episode.spec.is_agent:
                self._submit(episode, "drop" if has_failed else "finish")
        self._receive(finish(self._sandboxes))
        return [
            EnvironmentOutcome(
                name=episode.spec.name,
                by_turn=episode.spec.by_turn,
                calls=episode.calls,
                failures=episode.failures,
                **episode.end,
            )
            for episode in self.episodes
        ]

    def _submit(self, episode: Episode, method: str, **arguments: Any) -> None:
        named = {"method": method, "name": episode.environment, "slot": episode.slot}
        starts = method == "reset" and episode.spec.is_agent
        self._sandboxes[episode.slot % len(self._sandboxes)].submit(
            _EpisodeCall(
                "call",
                {**named, "arguments": arguments},
                self._load_limit if starts else self._time_limit,
                in_thread=True,
                episode=episode,
            )
        )

    def _receive(self, calls: Sequence[ServiceCall]) -> None:
        for call in calls:
            if not isinstance(call, _EpisodeCall):  # the setup of a new process
                continue
            episode, method = call.episode, call.arguments["method"]
            if call.failure:
                error = f"{method}: {call.failure}{call.failure.remedy}"
                episode.fail(error, 1000 * call.seconds)
            elif method in ("finish", "drop"):
                episode.end = call.value or {}
            else:
                self._replied(episode, call)
            if method == "step":
                self._replies[episode.slot] = episode.last

    def _replied(self, episode: Episode, call: ServiceCall) -> None:
        reply = REPLY.validate_python({**call.value, "ms": 1000 * call.seconds})
        episode.calls += len(reply.calls)
        episode.failures += sum(tool.failed for tool in reply.calls)
        name = ", ".join(tool.name for tool in reply.calls) or episode.spec.name
        episode.last = replace(reply, name=name + ", new context" * reply.restarts)
        if call.arguments["method"] == "step":
            episode.past.append((call.arguments["arguments"], call.value["messages"]))
        else:
            episode.opening = Opening(
                text=call.value.get("text", ""),
                messages=reply.messages,
                tools=tuple(reply.tools),
                replaces=episode.spec.is_agent,
            )
