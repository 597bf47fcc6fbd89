"""verifiers' `vf-eval`: a folder with the answers of a model to an environment's tasks.

Since 0.2 they are episodes in `traces.jsonl`, and the settings are `configs/resolved/eval.json`; up
to 0.1 rows in `results.jsonl` and the settings `metadata.json`.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final

from grpo_engine.events import Finish
from grpo_tui import record
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.foreign.files import (
    AGAIN,
    Folder,
    Row,
    as_text,
    finite,
    first_row,
    mapping,
    parsed,
    rows,
)
from grpo_tui.foreign.messages import Message, answer_of, prompt_of
from grpo_tui.foreign.prime_rl import groups_of, traces_of
from grpo_tui.foreign.reader import OF_TOKENS, Format, Reader, Step, by_prompt, evaluation_of

EPISODES: Final = "traces.jsonl"
ROWS: Final = "results.jsonl"
SETTINGS: Final = ("configs/resolved/eval.json", "metadata.json")
LARGEST_SETTINGS: Final = 1 << 24  # bytes
FINISHES: Final[Mapping[str, Finish]] = {
    "max_turns_reached": "turns",
    "prompt_too_long": "context",
    "has_error": "environment_error",
}
NOT_TRAINED: Final = "an evaluation trains nothing"
TOKENS: Final = "evaluate through prime-rl, whose renderer gives token ids"


class VerifiersReader(Reader):
    """An evaluation, which is step 0: before a training."""

    format = trainer = "verifiers"
    remedies: ClassVar = {
        "rewards": "give the environment a reward function",
        "rewards by function": "give the environment a reward function",
        "reference solutions": "give the tasks an answer",
        **dict.fromkeys(("advantages", *OF_TOKENS, "metrics"), NOT_TRAINED),
        "tokens": TOKENS,
        "the sampler's log-probabilities": TOKENS,
    }

    def __init__(self, folder: Folder, file: Path) -> None:
        super().__init__(folder.path, file.parent.name)
        self.file = file
        self._config = _config(folder)
        sampling = mapping(self._config.get("sampling", self._config.get("sampling_args")))
        temperature = finite(sampling.get("temperature"))
        self._sampling = {} if temperature is None else {"temperature": temperature}
        model = self._config.get("model")
        plain = (str, int, float, bool)
        self.settings = {
            **{k: v for k, v in self._config.items() if isinstance(v, plain) and k != "model"},
            **({"sampling": sampling} if sampling else {}),
            **({"model.path": model} if isinstance(model, str) else {}),
        }

    def steps(self) -> dict[int, int]:
        return {0: self.file.stat().st_size}

    def read(self, _step: int, /) -> Step:
        items = rows(self.file)
        if self.file.name == EPISODES:
            groups = groups_of([*traces_of(items)], "eval", self._sampling)
        else:
            groups = self._groups([*items])
        greedy = self._sampling.get("temperature") == 0
        held_out = evaluation_of([item.group for item in groups], greedy=greedy)
        return Step(groups=groups, evaluations=[held_out])

    def _groups(self, items: Sequence[Row]) -> list[record.Group]:
        environment = as_text(self._config.get("env_id"))

        def example(row: Row) -> str:
            return f"{environment} {row.values.get('example_id')}".strip()

        return [
            record.group(
                _prompt(same[0]),
                [_rollout(row) for row in same],
                target=as_text(same[0].values.get("answer")),
                key=example(same[0]),
                origin="eval",
                sampling=self._sampling,
            )
            for same in by_prompt(items, example)
        ]


def _rollout(row: Row) -> record.Rollout:
    completion = row.values.get("completion")
    chat = None if isinstance(completion, str) else _messages(row, "completion")
    text, spans = (str(completion), ()) if chat is None else answer_of(chat)
    scores = {name: finite(value) for name, value in mapping(row.values.get("metrics")).items()}
    counted = finite(mapping(row.values.get("token_usage")).get("output_tokens"))
    finish = FINISHES.get(str(row.values.get("stop_condition")), "")
    return record.rollout(
        text,
        rewards=scores,
        reward=row.number("reward"),
        finish="length" if row.values.get("is_truncated") is True and not finish else finish,
        length=None if counted is None or counted < 0 else int(counted),
        tokens=record.Tokens(spans=spans),
    )


def _prompt(row: Row) -> record.Prompt:
    prompt = row.values.get("prompt")
    if isinstance(prompt, str):
        return prompt
    messages = _messages(row, "prompt")
    return prompt_of(messages)


def _messages(row: Row, name: str) -> list[Message]:
    value = row.values.get(name)
    if value is None:  # an answer that failed
        return []
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    raise row.refuse(name, "a text or a list of messages")


def _config(folder: Folder) -> dict[str, Any]:
    """The evaluation's settings; empty if there are none."""
    for path in (path for name in SETTINGS for path in folder.files(name)):
        try:
            with path.open("rb") as file:
                data = file.read(LARGEST_SETTINGS)
            return mapping(parsed(data))
        except (OSError, ValueError) as error:
            raise ImportRefusedError(f"{path} cannot be read: {error}; {AGAIN}") from error
    return {}


def open_evaluation(folder: Folder) -> Sequence[VerifiersReader]:
    """An evaluation in a folder, or one of its files alone."""
    for name, fields in ((EPISODES, {"traces", "task"}), (ROWS, {"prompt", "completion"})):
        for path in islice(folder.files(name), 1):
            if fields <= first_row(path).keys():
                return [VerifiersReader(folder, path)]
    return ()


VERIFIERS: Final = Format(
    name="verifiers", files="traces.jsonl or results.jsonl of vf-eval", open=open_evaluation
)
