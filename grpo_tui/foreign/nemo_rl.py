"""NeMo-RL's log folder: a file for each step and each validation, a line for each answer.

A line has each field as a list of one element, as `log_batched_dict_as_jsonl` cuts its batch, and
`idx`. Numbers by token are those of the whole conversation, padded on the right.
"""

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Final

from grpo_engine.events import Span
from grpo_tui import record
from grpo_tui.foreign.files import Folder, Row, finite, first_row, rows
from grpo_tui.foreign.messages import Message, answer_of, split
from grpo_tui.foreign.reader import OF_TOKENS, Format, Reader, Step, evaluation_of, in_groups

NO_SETTING: Final = "NeMo-RL has no setting that writes them to files"
RESPONSES: Final = "leave env.should_log_nemo_gym_responses off"


class NemoReader(Reader):
    format = trainer = "NeMo-RL"
    remedies: ClassVar = {
        **dict.fromkeys(("answers", "advantages", *OF_TOKENS), RESPONSES),
        "rewards by function": NO_SETTING,
        "reference solutions": NO_SETTING,
        "the trainer's log-probabilities": "loss_fn.force_on_policy_ratio=false computes them",
        "the reference's log-probabilities": NO_SETTING,
        "entropy by token": NO_SETTING,
        "metrics": "NeMo-RL gives them to its loggers (logger.tensorboard_enabled, …) only",
        "held-out evaluations": "grpo.val_period",
    }

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder.path)
        self.folder = folder
        self.files: dict[str, dict[int, Path]] = {}

    def steps(self) -> dict[int, tuple[int, ...]]:
        self.files = {
            kind: self.folder.by_step(
                f"{kind}_data_step*.jsonl",
                re.compile(rf"{kind}_data_step(\d{{1,8}})\.jsonl"),
                minimum=kind == "train",
            )
            for kind in ("train", "val")
        }
        steps = sorted({step for files in self.files.values() for step in files})
        return {
            step: tuple(
                files[step].stat().st_size for files in self.files.values() if step in files
            )
            for step in steps
        }

    def read(self, step: int) -> Step:
        trained, held_out = (
            [*rows(files[step])] if step in files else [] for files in self.files.values()
        )
        groups = [_group(items) for items in in_groups([*map(Line, trained)], Line.key)]
        validated = [
            _validated(items) for items in in_groups(held_out, lambda row: split(_chat(row))[0])
        ]
        return Step(
            groups=[*groups, *validated],
            evaluations=[evaluation_of([item.group for item in validated])] if validated else (),
        )


class Line:
    """An answer that was trained on."""

    def __init__(self, row: Row) -> None:
        self.row = row
        ids, mask = _list(row, "token_ids"), _list(row, "token_loss_mask")
        length = _element(row, "input_lengths")
        self.end = length if type(length) is int and 0 <= length < len(ids) else len(ids)
        self.start = mask.index(1) if 1 in mask[: self.end] else self.end
        self.prompt_ids, self.ids = ids[: self.start], ids[self.start : self.end]
        self.by_model = [*map(bool, mask[self.start : self.end])]
        texts = _element(row, "content")
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise row.refuse("content", "a list of a list of texts")
        # A message for each turn of the model and each reply; those before are the prompt.
        self.runs = [(by_model, len([*run])) for by_model, run in groupby(self.by_model)]
        before = max(1, len(texts) - max(1, len(self.runs)))
        self.prompt, self.texts = "\n".join(texts[:before]), texts[before:]

    def key(self) -> tuple[Any, ...]:
        return (self.prompt, *self.prompt_ids)

    def rollout(self) -> record.Rollout:
        advantages = self._numbers("advantages") or []
        pairs = zip(advantages, self.by_model, strict=False)
        distinct = {advantage for advantage, by_model in pairs if by_model}
        in_loss = finite(_element(self.row, "sample_loss_mask"))
        mask = [int(by_model and in_loss != 0) for by_model in self.by_model]
        # Beside these, `rewards` are those of other answers.
        filtered = _element(self.row, "filtered_rewards")
        return record.rollout(
            "".join(self.texts),
            reward=finite(_element(self.row, "rewards") if filtered is None else filtered),
            advantage=distinct.pop() if len(distinct) == 1 else None,
            tokens=None
            if _element(self.row, "token_ids") is None
            else record.tokens(
                self.ids,
                sampler=self._numbers("generation_logprobs"),
                old=self._numbers("prev_logprobs"),
                advantages=advantages,
                mask=None if all(mask) else mask,
                spans=self._spans(),
            ),
        )

    def _numbers(self, name: str) -> list[float] | None:
        """Numbers of the answer's tokens; NeMo-RL writes zeros where it did not compute them."""
        values = _list(self.row, name)
        if len(values) == 1:  # one for all tokens
            values = values * self.end
        values = values[self.start : self.end]
        return values if any(values) or name == "advantages" else None

    def _spans(self) -> list[Span]:
        """The turns and the replies; none for a single turn, or if messages are missing."""
        if len(self.runs) != len(self.texts) or len(self.runs) < 2:
            return []
        runs = zip(self.runs, self.texts, strict=True)
        return record.spans_of((*run, len(text), "") for run, text in runs)


def _group(items: Sequence[Line]) -> record.Group:
    return record.group(
        items[0].prompt, [item.rollout() for item in items], prompt_ids=items[0].prompt_ids
    )


def _chat(row: Row) -> list[Message]:
    """The messages of an answer of a validation."""
    messages = _element(row, "content")
    if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages):
        raise row.refuse("content", "a list of a list of messages")
    return messages


def _validated(items: Sequence[Row]) -> record.Group:
    answers = []
    for row in items:
        text, spans = answer_of(split(_chat(row))[1])
        tokens = record.Tokens(spans=spans)
        answers.append(record.rollout(text, reward=finite(_element(row, "rewards")), tokens=tokens))
    return record.group(split(_chat(items[0]))[0], answers, origin="eval")


def _element(row: Row, name: str) -> Any:
    """The element of a field; None for an empty one."""
    values = row.values.get(name)
    if values is None or values == []:
        return None
    if isinstance(values, list) and len(values) == 1:
        return values[0]
    raise row.refuse(name, "a list of one element")


def _list(row: Row, name: str) -> list[Any]:
    """A field's numbers by token; none if it is absent."""
    values = _element(row, name)
    if values is None:
        return []
    items = values if isinstance(values, list) else [values]
    if not all(isinstance(item, int | float) for item in items):
        raise row.refuse(name, "a list of a list of numbers")
    return items


def _open(folder: Folder) -> Sequence[NemoReader]:
    reader = NemoReader(folder)
    reader.steps()
    for path in (path for files in reader.files.values() for path in files.values()):
        if {"content", "rewards", "idx"} <= first_row(path).keys():
            return [reader]
    return ()


NEMO: Final = Format(
    name="NeMo-RL", files="train_data_step{step}.jsonl in logger.log_dir", open=_open
)
