"""The trial process: answers one line per question, and exits at the end of its input."""

import json
import os
import select
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, BinaryIO

IDLE_S = 300.0


def main() -> None:
    """Answer until the input ends or no question comes for a while."""
    # Libraries print to stdout; that must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from grpo_engine.platform.priority import lower_priority

    lower_priority(10)
    with ExitStack() as stack, answers:
        serve(sys.stdin.buffer, answers, Trials(stack))


def serve(questions: BinaryIO, answers: BinaryIO, trials: "Trials") -> None:
    while select.select([questions], [], [], IDLE_S)[0]:
        line = questions.readline()
        if not line:
            return
        answers.write(json.dumps(trials.answer(json.loads(line))).encode() + b"\n")
        answers.flush()


class Trials:
    """Keeps what it loaded for the next question."""

    def __init__(self, stack: ExitStack) -> None:
        from grpo_tui.app.trial.episode import Player
        from grpo_tui.app.trial.examples import Examples
        from grpo_tui.app.trial.memory import Estimates
        from grpo_tui.app.trial.probing import Probing
        from grpo_tui.app.trial.ready import Readiness
        from grpo_tui.app.trial.scores import Scores

        self._examples = Examples()
        self._estimates = Estimates(self._examples)
        self._scores = Scores(self._examples)
        self._ready = Readiness(self._examples, self._estimates, self._scores)
        self._probing = Probing()
        self._player = Player()
        for kept in (self._scores, self._probing, self._player):
            stack.callback(kept.close)

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Answer, or give the reason in `problem`."""
        from grpo_engine.config.parse import build
        from grpo_engine.errors import EngineError

        try:
            config = build(question["config"], "these settings")
            match question["do"]:
                case "examples":
                    return self._examples.describe(config)
                case "memory":
                    return self._estimates.estimate(config)
                case "probe":
                    return self._probing.advance(config, begin=bool(question["begin"]))
                case "stop":
                    self._probing.close()
                    return {}
                case "ready":
                    return self._ready.of(config)
                case "play":
                    return self._player.tell(config, question["answer"])
                case _:
                    return self._scores.score(
                        config, int(question["example"]), str(question["completion"])
                    )
        except EngineError as error:
            return {"problem": str(error)}
        except (Exception, SystemExit) as error:  # errors of data sets, templates and users' files
            return {"problem": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
