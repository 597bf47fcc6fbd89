"""TRL's `log_completions`: a Parquet file for each step that it logs, in `output_dir`.

The metrics come from the newest `trainer_state.json`, which TRL writes with each checkpoint.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from math import fsum
from operator import mul
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Final

from grpo_engine.config.trl_names import evaluated
from grpo_tui import record
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.foreign.files import AGAIN, LARGEST_STEP, Folder, Row, UnfinishedError, finite, parsed
from grpo_tui.foreign.reader import OF_TOKENS, Evaluation, Format, Reader, Step, in_groups

FILE: Final = re.compile(r"completions_(\d{5,8})\.parquet")
FIELDS: Final = frozenset({"step", "prompt", "completion", "advantage", "images"})
LARGEST_FILE = 1 << 28  # bytes of one step, unpacked
MOST_ROWS = 100_000
CLOSE, TINY = 1e-3, 1e-6  # relative and absolute error of float32 advantages
MAGIC: Final = b"PAR1"  # a Parquet file begins and ends with it
LIVE: Final = "TRL writes none; `grpo_tui.trl.watch(trainer)` records them as it trains"


class TrlReader(Reader):
    format, trainer = "TRL completions", "TRL"
    remedies: ClassVar = {
        "answers": "log_completions=True",
        "rewards": "those of several functions need the weights: save a checkpoint (save_steps), "
        "and leave reward_weights at 1",
        **dict.fromkeys(("reference solutions", *OF_TOKENS), LIVE),
        "metrics": "TRL writes them with each checkpoint (save_steps) to output_dir, which is the "
        "folder to import",
        "held-out evaluations": "eval_strategy and a checkpoint after it",
    }

    def __init__(self, folder: Folder) -> None:
        inside = FILE.fullmatch(folder.path.name) or folder.path.name == "completions"
        super().__init__(folder.path, (folder.path.parent if inside else folder.path).name)
        self.folder = folder
        self.files: dict[int, Path] = {}
        self.names: set[str] = set()  # of what was logged
        self._logged: dict[int, dict[str, float]] = {}
        self._state: tuple[Path, int] | None = None

    def steps(self) -> dict[int, Any]:
        self.files = {
            **self.folder.by_step("*.parquet", FILE),
            **self.folder.by_step("completions/*.parquet", FILE),
        }
        self._read_state()
        return {
            step: self.files[step].stat().st_size if step in self.files else 0
            for step in sorted({*self.files, *self._logged})
        }

    def _read_state(self) -> None:
        """Read what was logged by the newest checkpoint."""
        files = [
            path
            for pattern in ("trainer_state.json", "checkpoint-*/trainer_state.json")
            for path in self.folder.files(pattern)
        ]
        newest = max(((path.stat().st_size, path) for path in files), default=None)
        if newest is None or newest[::-1] == self._state:
            return
        size, path = newest
        try:
            with path.open("rb") as file:  # one that is longer is cut, and so no JSON
                logged = parsed(file.read(LARGEST_FILE))["log_history"]
            rows = [row for row in logged if 0 < int(row["step"]) <= LARGEST_STEP]
        except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise ImportRefusedError(
                f"{path} cannot be read: {error}; delete it, or import `completions` alone"
            ) from error
        self._state = path, size
        for row in rows:
            numbers = {name: finite(value) for name, value in row.items()}
            known = {name: value for name, value in numbers.items() if value is not None}
            self.names |= known.keys()
            self._logged[int(row["step"])] = self._logged.get(int(row["step"]), {}) | known

    def read(self, step: int) -> Step:
        logged = self._logged.get(step, {})
        held_out = {name: value for name, value in logged.items() if name.startswith("eval_")}
        others = {*held_out, "step", "epoch", "total_flos"}
        rows = list(_parquet(self.files[step])) if step in self.files else []
        return Step(
            groups=self._groups(rows),
            metrics={name: value for name, value in logged.items() if name not in others},
            evaluations=[Evaluation(metrics=evaluated(held_out))] if held_out else (),
        )

    def _groups(self, rows: Sequence[Row]) -> list[record.Group]:
        """The answers by prompt, with a total where the functions and their weights are certain.

        Columns of the user's own follow those of the functions and look like them. The log names
        the functions; without it they are those whose sum explains the advantages.
        """
        groups = in_groups(rows, lambda row: row.text("prompt"))
        columns = _numeric(rows)
        logged = [name for name in columns if f"rewards/{name}/mean" in self.names]
        choices = [logged] if logged else list(accumulate([[name] for name in columns]))
        certain = [names for names in choices if all(_explains(names, rows) for rows in groups)]
        functions = certain[0] if len(certain) == 1 else None
        return [_group(items, columns, functions) for items in groups]


def _numeric(rows: Sequence[Row]) -> list[str]:
    """The columns of numbers, in their order."""
    return [
        name
        for name in (rows[0].values if rows else ())
        if name not in FIELDS
        and all(isinstance(row.values[name], int | float | None) for row in rows)
    ]


def _explains(names: Sequence[str], rows: Sequence[Row]) -> bool:
    """Whether the advantages of a group rise in proportion to the sum of these rewards."""
    totals = [fsum(filter(None, (row.number(name) for name in names))) for row in rows]
    pushes = [row.number("advantage") or 0.0 for row in rows]
    above = [total - fmean(totals) for total in totals]
    size = fsum(push * push for push in pushes)
    slope = fsum(map(mul, above, pushes)) / size if size else 0.0
    largest = max(map(abs, above)) * CLOSE + TINY
    return slope >= 0 and all(
        abs(value - slope * push) <= largest for value, push in zip(above, pushes, strict=True)
    )


def _group(
    rows: Sequence[Row], columns: Sequence[str], functions: Sequence[str] | None
) -> record.Group:
    answers = []
    for row in rows:
        answer = record.rollout(
            row.text("completion"),
            rewards={name: row.number(name) for name in columns},
            weights={name: float(name in functions) for name in columns} if functions else None,
            reward=None if functions else math.nan,
            advantage=row.number("advantage"),
        )
        if not functions:
            answer = replace(answer, rollout=replace(answer.rollout, reward=None))
        answers.append(answer)
    return record.group(rows[0].text("prompt"), answers)


def _parquet(path: Path) -> Iterator[Row]:
    """The rows of a Parquet file that ends where it should; a number that is none is absent."""
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
        file.seek(-min(len(MAGIC), path.stat().st_size), 2)
        if (head, file.read()) != (MAGIC, MAGIC):
            raise UnfinishedError(f"{path} does not end like a Parquet file")
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ImportRefusedError(
            f"{path}: Parquet files need the package pyarrow; `pip install 'grpo-tui[parquet]'`"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            groups = range(file.metadata.num_row_groups)
            size = sum(file.metadata.row_group(group).total_byte_size for group in groups)
            if size > LARGEST_FILE or file.metadata.num_rows > MOST_ROWS:
                raise ImportRefusedError(
                    f"{path} unpacks to {size:,} bytes in {file.metadata.num_rows:,} rows; a step "
                    f"has at most {LARGEST_FILE:,} in {MOST_ROWS:,}; {AGAIN}"
                )
            number, left = 0, LARGEST_FILE
            for batch in file.iter_batches(batch_size=16):
                left -= batch.nbytes
                if left < 0:
                    raise ImportRefusedError(f"{path} unpacks to too much; {AGAIN}")
                for values in batch.to_pylist():
                    number += 1
                    yield Row(at=f"{path} row {number}", values=_without_nan(values))
    except (ArrowException, OSError) as error:
        raise ImportRefusedError(
            f"{path} is not a readable Parquet file: {error}; {AGAIN}"
        ) from error


def _without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """A function that did not apply to an answer is NaN in the file."""
    return {name: None if value != value else value for name, value in values.items()}


def _open(folder: Folder) -> Sequence[TrlReader]:
    reader = TrlReader(folder)
    with suppress(ImportRefusedError):
        reader.steps()
    is_grpo = "completions/mean_length" in reader.names
    return [reader] if reader.files or is_grpo else ()


TRL: Final = Format(
    name="TRL", files="completions/completions_{step}.parquet of log_completions=True", open=_open
)
