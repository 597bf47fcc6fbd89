"""Both models of a chat in a process of their own: completions, and their log-probabilities."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from grpo_engine.api.policy import LoadedPolicy, of_config
from grpo_engine.config.parse import build
from grpo_engine.errors import EngineError
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.tasks.base import Task

Piece = dict[str, Any]
Turns = Sequence[tuple[str, Sequence[str]]]  # prompts and the completions of the models


class ChatService:
    """The models in the order in which they were loaded, and the completion being sampled."""

    def __init__(self, _server: object) -> None:
        self._models: list[LoadedPolicy] = []
        self._pieces: Iterator[Piece] | None = None

    def load(self, config: Mapping[str, Any]) -> None:
        task = Task(name="chat", train=())
        self._models.append(of_config(build(config, "the run"), task, chat=None))

    def begin(self, turns: Turns, temperature: float, seed: int, tokens: int) -> None:
        """Begin to sample a reply to the last of the turns."""
        self._pieces = self._sample(turns, temperature, seed, tokens)

    def next(self) -> Piece | None:
        """More text of a model, or the tokens of its whole completion; None at the end."""
        if self._pieces is None:
            raise EngineError("the answer was lost with its process; ask again")
        return next(self._pieces, None)

    def stop(self) -> None:
        """Drop the completion that is being sampled."""
        self._pieces = iter(())

    def _sample(self, turns: Turns, temperature: float, seed: int, tokens: int) -> Iterator[Piece]:
        """Let each model reply to the last of the turns."""
        trajectories = []
        for index, model in enumerate(self._models):
            texts = model.stream(
                _prompt(model, index, turns),
                temperature=temperature,
                seed=seed,
                max_new_tokens=min(tokens, model.policy.context_length // 2),
            )
            trajectory = yield from _texts(index, texts)
            trajectories.append(trajectory)
        for index, trajectory in enumerate(trajectories):
            logprobs = [model.logprobs(trajectory) for model in self._models]
            starts = (0, *trajectory.ends[:-1])
            yield {
                "model": index,
                "tokens": [
                    {"text": trajectory.text[start:end], "logprobs": [row[i] for row in logprobs]}
                    for i, (start, end) in enumerate(zip(starts, trajectory.ends, strict=True))
                ],
            }


def _texts(
    model: int, texts: Generator[str, None, list[Trajectory]]
) -> Generator[Piece, None, Trajectory]:
    """The text as it grows; returns the trajectory."""
    while True:
        try:
            yield {"model": model, "text": next(texts)}
        except StopIteration as end:
            trajectories: list[Trajectory] = end.value
            return trajectories[0]


def _prompt(model: LoadedPolicy, index: int, turns: Turns) -> str | list[dict[str, str]]:
    """The dialogue as this model had it; without a chat template, the last text alone."""
    if not model.chat:
        return turns[-1][0]
    messages = []
    for prompt, completions in turns:
        messages.append({"role": "user", "content": prompt})
        if completions:
            messages.append({"role": "assistant", "content": completions[index]})
    return messages
