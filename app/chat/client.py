"""A dialogue with both models, which answer in a process of their own."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_engine import consent
from grpo_engine.config.settings import RunConfig
from grpo_engine.control import StopNow
from grpo_engine.evaluation.target import of_run
from grpo_engine.frozen import frozen
from grpo_engine.sandbox.client import Sandbox, ServiceCall
from grpo_tui.experiments.processes import environment

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

SERVICE = "grpo_tui.app.chat.service:ChatService"


@dataclass(frozen=True, slots=True)
class Token:
    """A token of an answer, with its log-probability under the trained model and before."""

    text: str
    trained: float
    before: float


@dataclass(slots=True)
class Turn:
    """A prompt and what both models answered: as it grows, then token by token."""

    prompt: str
    texts: list[str] = field(default_factory=lambda: ["", ""])
    tokens: list[tuple[Token, ...]] = field(default_factory=lambda: [(), ()])
    problem: str = ""
    done: bool = False


@frozen
class Pair:
    """A trained model and the one that its run began with."""

    run: str
    step: int
    trained: RunConfig
    before: RunConfig


def pair_of(reader: "StoreReader", ref: str, step: int | None) -> Pair:
    """The best or the given checkpoint of a run, and the model it began with."""
    detail = reader.trained(ref, "load")
    target = of_run(Path(detail.folder), {}, step)
    model = consent.build(detail.config, f"run {detail.summary.name}").model
    before = target.config.model_copy(update={"model": model})
    return Pair(run=detail.summary.name, step=target.step, trained=target.config, before=before)


class ChatError(RuntimeError):
    """The models did not answer; the message says why."""


@dataclass(eq=False)
class Chat:
    """A dialogue; its process starts with the first question. One thread may use it."""

    pair: Pair
    temperature: float = 0.0
    tokens: int = 200

    def __post_init__(self) -> None:
        self.turns: list[Turn] = []
        self._stopped, self._closed = threading.Event(), threading.Event()
        self._calling = threading.Lock()
        self._sandbox = Sandbox(
            SERVICE,
            None,
            "chat",
            setup=[_load(self.pair.trained), _load(self.pair.before)],
            memory=inf,
            env=environment(),
            interrupted=self._closed.is_set,
        )

    def send(self, text: str) -> Iterator[Turn]:
        """Prompt both models; yield the turn whenever it has grown."""
        turn = Turn(text)
        turns = [(former.prompt, former.texts) for former in self.turns if not former.problem]
        self.turns.append(turn)
        self._stopped.clear()
        try:
            self._call(
                "begin",
                turns=[*turns, (text, [])],
                temperature=self.temperature,
                seed=len(self.turns),
                tokens=self.tokens,
            )
            while not self._stopped.is_set() and (piece := self._call("next")):
                index = piece["model"]
                turn.texts[index] += piece.get("text", "")
                turn.tokens[index] = tuple(
                    Token(token["text"], *token["logprobs"]) for token in piece.get("tokens", ())
                )
                yield turn
            self._call("stop")
        except ChatError as error:
            turn.problem = str(error)
        turn.done = True
        yield turn

    def stop(self) -> None:
        """Stop the answer that is being given; another thread may call this."""
        self._stopped.set()

    def close(self) -> None:
        """End the process; another thread may call this."""
        self._closed.set()
        with self._calling:
            self._sandbox.close()

    def _call(self, method: str, **arguments: Any) -> Any:
        with self._calling:
            if self._closed.is_set():
                raise ChatError("the chat is closed")
            try:
                return self._sandbox.call(ServiceCall(method, arguments, inf)).value_or(ChatError)
            except StopNow as error:
                raise ChatError(str(error)) from None


def _load(config: RunConfig) -> ServiceCall:
    return ServiceCall("load", {"config": config.model_dump(mode="json")}, inf)
