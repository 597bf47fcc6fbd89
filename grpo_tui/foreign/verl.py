"""verl's `trainer.rollout_data_dir`: a file for each step, a line for each answer."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from grpo_tui import record
from grpo_tui.foreign.files import Folder, Row, UnfinishedError, as_text, first_row, rows
from grpo_tui.foreign.reader import OF_TOKENS, Format, Reader, Step, in_groups

FILE: Final = re.compile(r"(\d{1,8})\.jsonl")
FIELDS: Final = frozenset({"input", "output", "gts", "score", "step", "request_id", "uid"})
# The newest version names an answer after its prompt's sample: SAMPLE_ROLLOUT_OUTPUT.
SAMPLE: Final = re.compile(r"(.+)_\d+_\d+")
NO_SETTING: Final = "verl has no setting that writes them to files"


class VerlReader(Reader):
    format = trainer = "verl"
    remedies: ClassVar = {
        "rewards by function": "let the reward function return a dict with the parts beside score",
        "reference solutions": "give the data set reward_model.ground_truth",
        **dict.fromkeys(("advantages", *OF_TOKENS), NO_SETTING),
        "metrics": "verl gives them to its loggers (trainer.logger) only",
        "held-out evaluations": "verl writes them to trainer.validation_data_dir, which is a run "
        "of its own here",
    }

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder.path)
        self.folder = folder
        self._files: dict[int, Path] = {}

    def steps(self) -> dict[int, int]:
        self._files = self.folder.by_step("*.jsonl", FILE)
        return {step: path.stat().st_size for step, path in self._files.items()}

    def read(self, step: int) -> Step:
        if not (items := list(rows(self._files[step]))):
            raise UnfinishedError(f"{self._files[step]} has no lines yet")
        return Step(groups=[_group(items) for items in in_groups(items, _problem)])


def _problem(row: Row) -> tuple[str, str]:
    """What the answers to one prompt share."""
    sample = SAMPLE.fullmatch(str(row.values.get("uid", "")))
    return row.text("input"), sample[1] if sample else ""


def _group(items: Sequence[Row]) -> record.Group:
    return record.group(
        items[0].text("input"),
        [
            record.rollout(row.text("output"), rewards=row.rest(FIELDS), reward=row.number("score"))
            for row in items
        ],
        target=as_text(items[0].values.get("gts")),
    )


def _open(folder: Folder) -> Sequence[VerlReader]:
    reader = VerlReader(folder)
    for step in reader.steps():
        if {"input", "output", "score", "step"} <= first_row(reader._files[step]).keys():
            return [reader]
    return ()


VERL: Final = Format(
    name="verl", files="{step}.jsonl in verl's trainer.rollout_data_dir", open=_open
)
