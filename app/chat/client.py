"""The other side of the answering process, and the dialogue with both models."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.evaluation.target import of_run
from grpo_tui.experiments.processes import environment

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader


@dataclass(frozen=True, slots=True)
class Said:
    """A token of an answer, with its log-probability under the trained model and before."""

    text: str
    trained: float
    before: float


@dataclass(slots=True)
class Turn:
    """What was asked and what both models answered: as it grows, then token by token."""

    asked: str
    texts: list[str] = field(default_factory=lambda: ["", ""])
    tokens: list[tuple[Said, ...]] = field(default_factory=lambda: [(), ()])
    problem: str = ""
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A trained model and the one that its run began with."""

    run: str
    step: int
    trained: RunConfig
    before: RunConfig


def pair_of(reader: "StoreReader", ref: str, step: int | None) -> Pair:
    """The best or the given checkpoint of a run, and the model it began with."""
    detail = reader.run(reader.resolve(ref).key)
    found = of_run(Path(detail.folder), {}, step)
    began = RunConfig.model_validate(detail.config).model
    before = found.config.model_copy(update={"model": began})
    return Pair(run=detail.summary.name, step=found.step, trained=found.config, before=before)


class Chat:
    """A dialogue; its process starts with the first question. One thread may use it."""

    def __init__(self, pair: Pair, *, temperature: float = 0.0, tokens: int = 200) -> None:
        self.pair, self.temperature, self.tokens = pair, temperature, tokens
        self.turns: list[Turn] = []
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, text: str) -> Iterator[Turn]:
        """Ask both models; yield the turn whenever it has grown."""
        turn = Turn(text)
        self.turns.append(turn)
        past = [(one.asked, one.texts) for one in self.turns[:-1] if not one.problem]
        try:
            if self._process is None:
                self._start()
                yield from self._heard(turn)
                turn.done = bool(turn.problem)
            if not turn.problem:
                self._write({
                    "turns": [*past, (text, [])], "temperature": self.temperature,
                    "seed": len(self.turns), "tokens": self.tokens,
                })  # fmt: skip
                yield from self._heard(turn)
        except (OSError, ValueError) as error:
            closed = self._process is None
            turn.problem = turn.problem or (str(error) if closed else self._ending())
            self.close()
        turn.done = True
        yield turn

    def stop(self) -> None:
        """Stop the answer that is being given; another thread may call this."""
        with suppress(OSError, ValueError):
            self._write({"stop": True})

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
            self._errors.close()

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process runs
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "grpo_tui.app.chat.process"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True,
            env=environment(),
        )  # fmt: skip
        self._write({
            "config": self.pair.trained.model_dump(mode="json"),
            "before": self.pair.before.model_dump(mode="json"),
        })  # fmt: skip

    def _write(self, what: dict[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            raise OSError("the process has ended")
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        self._process.stdin.flush()

    def _heard(self, turn: Turn) -> Iterator[Turn]:
        """Yield the turn with each piece until the question is answered."""
        assert self._process is not None
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            piece = json.loads(line)
            if piece.get("done"):
                return
            if "text" in piece:
                turn.texts[piece["which"]] += piece["text"]
            elif "tokens" in piece:
                turn.tokens[piece["which"]] = tuple(
                    Said(one["text"], *one["logprobs"]) for one in piece["tokens"]
                )
            turn.problem = piece.get("problem", turn.problem)
            yield turn
        raise OSError("the process has ended")

    def _ending(self) -> str:
        """Why the process has ended, as its last line says."""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").split("\n")
        last = next((line for line in reversed(said) if line.strip()), "it says nothing")
        return f"the process with the models has ended: {last}"
