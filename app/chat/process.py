"""The process that answers: it loads both models, and reads and writes one JSON object a line.

    {"config": …, "before": …}                       the settings of both models, first
    {"turns": [["hello", ["Hi!", "Hm."]], …], "temperature": 0, "seed": 0, "tokens": 200}

It answers each line with pieces of text, then the tokens of both answers, then `done`. The line
`{"stop": true}` stops the answer; the end of its input ends the process.
"""

import json
import os
import sys
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any, BinaryIO

from grpo_engine.api.policy import LoadedPolicy, of_config
from grpo_engine.config.parse import build
from grpo_engine.control import Control, StopNow
from grpo_engine.errors import EngineError
from grpo_engine.rollouts.types import Rollout
from grpo_engine.tasks.base import Task

Question = Mapping[str, Any]
TRAINED, BEFORE = 0, 1


class Answering:
    """Both models, and what the other side has asked."""

    def __init__(self, asked: BinaryIO, said: BinaryIO) -> None:
        self._said = said
        self._questions: SimpleQueue[tuple[Question, Control] | None] = SimpleQueue()
        self._control = Control()  # of the last question
        self._models: list[LoadedPolicy] = []
        threading.Thread(target=self._read, args=(asked,), name="questions", daemon=True).start()

    def _read(self, asked: BinaryIO) -> None:
        for line in asked:
            question = json.loads(line)
            if question.get("stop"):
                self._control.ask("stop_now")
            else:
                self._control = Control()
                self._questions.put((question, self._control))
        self._questions.put(None)
        self._control.ask("stop_now")

    def serve(self) -> None:
        """Load the models of the first line, then answer the others."""
        while (asked := self._questions.get()) is not None:
            question, control = asked
            try:
                if "config" in question:
                    self._load(question)
                else:
                    self._answer(question, control)
            except StopNow:
                self._say(stopped=True)
            except EngineError as error:
                self._say(problem=str(error))
            self._say(done=True)

    def _load(self, question: Question) -> None:
        for name in ("config", "before"):
            config = build(question[name], "the run")
            self._models.append(of_config(config, Task(name="chat", train=()), chat=None))

    def _answer(self, question: Question, control: Control) -> None:
        answers: list[Rollout] = []
        for which, model in enumerate(self._models):
            answers.append(self._asked(which, model, question, control))
        for which, answer in enumerate(answers):
            # what each model thinks of both answers, at the temperature of training
            seen = [model.logprobs(answer) for model in self._models]
            starts = (0, *answer.ends[:-1])
            self._say(which=which, tokens=[
                {"text": answer.text[begin:end], "logprobs": [one[place] for one in seen]}
                for place, (begin, end) in enumerate(zip(starts, answer.ends, strict=True))
            ])  # fmt: skip

    def _asked(
        self, which: int, model: LoadedPolicy, question: Question, control: Control
    ) -> Rollout:
        most = min(int(question["tokens"]), model.policy.context_length // 2)
        answers = model.answers(
            _prompt(model, which, question["turns"]), temperature=float(question["temperature"]),
            max_new_tokens=most, seed=int(question["seed"]), control=control,
        )  # fmt: skip
        while True:
            try:
                self._say(which=which, text=next(answers))
            except StopIteration as end:
                answers_made: list[Rollout] = end.value
                return answers_made[0]

    def _say(self, **what: Any) -> None:
        self._said.write(json.dumps(what).encode() + b"\n")
        self._said.flush()


def _prompt(
    model: LoadedPolicy, which: int, turns: list[tuple[str, list[str]]]
) -> str | list[dict[str, str]]:
    """The dialogue as this model had it; without a chat template, the last text alone."""
    if not model.chat:
        return turns[-1][0]
    messages = []
    for asked, answers in turns:
        messages.append({"role": "user", "content": asked})
        if answers:
            messages.append({"role": "assistant", "content": answers[which]})
    return messages


def main() -> None:
    """Answer until the input ends."""
    said = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    with said:
        Answering(sys.stdin.buffer, said).serve()


if __name__ == "__main__":
    main()
