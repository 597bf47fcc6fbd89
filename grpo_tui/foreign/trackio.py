"""A project of trackio: an SQLite file of runs, with their settings, metrics and traces.

A trace is a conversation. What this reads of its metadata has the names that TRL's asynchronous
GRPO writes, and `grpo-tui export --format trackio`: reward, rewards/NAME, advantage, group_id.
"""

import json
import re
import sqlite3
import typing
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Final

from grpo_engine import events as ev
from grpo_engine.config.parse import SECTIONS
from grpo_engine.config.trl_config import of_trainer
from grpo_engine.config.trl_names import TRANSLATED
from grpo_engine.errors import quoted
from grpo_engine.frozen import frozen
from grpo_engine.paths import begins_with
from grpo_tui import record
from grpo_tui.experiments.db.connection import open_foreign
from grpo_tui.experiments.errors import ImportRefusedError, StoreError
from grpo_tui.experiments.export.files import DATABASE
from grpo_tui.foreign.files import AGAIN, LARGEST_STEP, Folder, as_text, finite, parsed
from grpo_tui.foreign.messages import Message, answer_of, split
from grpo_tui.foreign.reader import (
    OF_TOKENS,
    Evaluation,
    Format,
    Reader,
    Step,
    by_prompt,
    evaluation_of,
)

COLUMNS: Final[Mapping[str, set[str]]] = {
    "metrics": {"id", "run_name", "step", "metrics"},
    "configs": {"run_name", "config"},
    "traces": {"id", "run_name", "step", "key", "messages", "metadata"},
}
MOST_RUNS: Final = 10_000
GLOBAL_STEP: Final = "train/global_step"  # the trainer's own step, beside trackio's count of logs
RENAMED: Final = re.compile("__(project|run|timestamp|step|time|metrics)")
# Metrics and traces of held-out data, as TRL, verl, NeMo-RL and this program name them.
HELD_OUT: Final = re.compile("(rollouts/)?(eval|val|test|validation)([/_-]|$)")
PINNED: Final = "rollouts/pinned"
CALLS: Final = "rollout_trace/"  # verl's: calls of its functions, not answers
GREEDY: Final = "eval/greedy/"
FINISHES: Final[frozenset[Any]] = frozenset(typing.get_args(ev.Finish))
NO_PLACE: Final = "trackio's traces have no place for them"


class TrackioReader(Reader):
    """One run of a project."""

    remedies: ClassVar = {
        "answers": "give trackio.log a trackio.Trace for each; with report_to='trackio' TRL's "
        "asynchronous GRPO does",
        "rewards": "give a trace the metadata reward",
        "rewards by function": "give a trace the metadata rewards/NAME",
        "reference solutions": "give a trace the metadata target",
        "advantages": "give a trace the metadata advantage",
        "metrics": "give numbers to trackio.log",
        "held-out evaluations": "log metrics or traces whose names begin with eval/ or val/",
        **dict.fromkeys(OF_TOKENS, NO_PLACE),
    }

    def __init__(self, path: Path, column: str, value: str, name: str) -> None:
        super().__init__(path, name)
        self.format = f"trackio {value}"
        self._where, self._value = f"{column} = ?", value
        self._read_to = 0  # the last row of metrics that was looked at
        # The rows of metrics by step: by the trainer's own number, and by trackio's.
        self._numbered: dict[int, list[int]] = defaultdict(list)
        self._counted: dict[int, list[int]] = defaultdict(list)
        self._from_0 = False  # whether training begins with step 0, which is 1 here
        with opened(path) as conn:
            row = self._rows(conn, "configs", "config").fetchone() or ("{}",)
        self.trainer, self.settings = settings_of(_object(row[0], f"{path}: settings of {name}"))

    def steps(self) -> dict[int, tuple[int, int]]:
        with opened(self.path) as conn:
            self._index(conn)
            traces = self._count_traces(conn)
        counts: dict[int, tuple[int, int]] = {}
        for step in {*self._counted, *traces}:
            counts[step + self._from_0] = len(self._counted[step]), traces.get(step, 0)
        for step, rows in self._numbered.items():
            metrics, answers = counts.get(step, (0, 0))
            counts[step] = metrics + len(rows), answers
        return dict(sorted(counts.items()))

    def read(self, step: int) -> Step:
        counted = step - self._from_0
        metrics: dict[str, float] = {}
        with opened(self.path) as conn:
            for number in sorted(self._numbered[step] + self._counted[counted]):
                row = self._rows(conn, "metrics", "metrics", "AND id = ?", number).fetchone()
                metrics |= _numbers(_object(row and row[0], self._at("metrics", number)))
            groups = in_groups(self._answers(conn, counted))
        return Step(
            groups=groups,
            metrics={k: value for k, value in metrics.items() if not is_held_out(k)},
            evaluations=_evaluations(
                {k: value for k, value in metrics.items() if is_held_out(k)}, groups
            ),
        )

    def _index(self, conn: sqlite3.Connection) -> None:
        """Note the rows of metrics that are new."""
        rows = self._rows(
            conn, "metrics", "id, step, metrics", "AND id > ? ORDER BY id", self._read_to
        )
        for number, step, text in rows:
            at = self._at("metrics", number)
            values = _object(text, at)
            if finite(values.get(GLOBAL_STEP)) is not None:
                self._numbered[_step(values[GLOBAL_STEP], at)].append(number)
            elif names := _numbers(values):
                self._counted[_step(step, at)].append(number)
                self._from_0 |= step == 0 and not all(map(is_held_out, names))
            self._read_to = number

    def _count_traces(self, conn: sqlite3.Connection) -> dict[int, int]:
        """The number of answers of each step."""
        counts: dict[int, int] = defaultdict(int)
        if "traces" in tables(conn):
            keys = self._rows(conn, "traces", "step, key, count(*)", "GROUP BY step, key")
            for step, key, count in keys:
                if not str(key).startswith(CALLS):
                    counts[_step(step, f"{self.path}: traces of {self.name}")] += count
                    self._from_0 |= step == 0 and origin_of(str(key)) == "train"
        return counts

    def _answers(self, conn: sqlite3.Connection, step: int) -> Iterator["Answer"]:
        if "traces" not in tables(conn):
            return
        rows = self._rows(
            conn, "traces", "id, key, messages, metadata", "AND step = ? ORDER BY rowid", step
        )
        for uid, key, messages, metadata in rows:
            at = self._at("traces", uid)
            if not str(key).startswith(CALLS):
                yield Answer(
                    key=str(key), messages=_messages(messages, at), values=_object(metadata, at)
                )

    def _rows(
        self, conn: sqlite3.Connection, table: str, columns: str, more: str = "", *values: Any
    ) -> sqlite3.Cursor:
        return conn.execute(
            f"SELECT {columns} FROM {table} WHERE {self._where} {more}", (self._value, *values)
        )

    def _at(self, table: str, row: Any) -> str:
        return f"{self.path}: {table} {row}"


@frozen
class Answer:
    """A trace: its messages, and its metadata as `values`."""

    key: str
    messages: Sequence[Message]
    values: Mapping[str, Any]

    @property
    def sampling(self) -> dict[str, float]:
        return {name: v for name, v in self.scores("sampling/").items() if v is not None}

    @property
    def group(self) -> str:
        """What the answers to one prompt share."""
        same = self.values.get("group_id", split(self.messages)[0])
        return json.dumps([origin_of(self.key), self.sampling, same], sort_keys=True, default=str)

    def rollout(self) -> record.Rollout:
        """The answer with its scores; verl calls a reward score."""
        text, spans = answer_of(split(self.messages)[1])
        tokens: Any = self.values.get("completion_tokens")
        finish: Any = self.values.get("finish")
        weights = {name: v for name, v in self.scores("weights/").items() if v is not None}
        return record.rollout(
            text,
            rewards=self.scores("rewards/"),
            weights=weights,
            reasons={name: str(value) for name, value in self._named("reasons/").items()},
            reward=finite(self.values.get("reward", self.values.get("score"))),
            advantage=finite(self.values.get("advantage")),
            finish=finish if finish in FINISHES else "",
            length=tokens if type(tokens) is int and 0 <= tokens < 2**62 else None,
            tokens=record.Tokens(spans=spans),
        )

    def scores(self, prefix: str) -> dict[str, float | None]:
        """The numbers whose names begin so, without that; None for what is not finite."""
        return {name: finite(value) for name, value in self._named(prefix).items()}

    def _named(self, prefix: str) -> dict[str, Any]:
        return {k.removeprefix(prefix): v for k, v in self.values.items() if k.startswith(prefix)}


def in_groups(answers: Iterator[Answer]) -> list[record.Group]:
    """The answers by prompt."""
    return [
        record.group(
            split(items[0].messages)[0],
            [item.rollout() for item in items],
            target=as_text(items[0].values.get("target")),
            key=as_text(items[0].values.get("example_key")),
            origin=origin_of(items[0].key),
            sampling=items[0].sampling,
        )
        for items in by_prompt(answers, attrgetter("group"))
    ]


def _evaluations(metrics: Mapping[str, float], groups: Sequence[record.Group]) -> list[Evaluation]:
    """The sampled and the greedy evaluation of a step, of their metrics and answers."""
    evaluations = []
    for greedy in (False, True):
        own = {
            f"eval/{name.removeprefix(GREEDY)}" if greedy else name: value
            for name, value in metrics.items()
            if name.startswith(GREEDY) == greedy
        }
        items = [
            item.group
            for item in groups
            if item.group.origin == "eval"
            and (item.group.sampling.get("temperature") == 0) == greedy
        ]
        if own or items:
            evaluations.append(evaluation_of(items, own, greedy=greedy))
    return evaluations


def settings_of(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The trainer that wrote these settings, and them by the names of this program if it can be."""
    values = {name: value for name, value in config.items() if not name.startswith("_")}
    if any(name.partition(".")[0] in SECTIONS and "." in name for name in values):
        trainer = values.pop("trainer.name", "grpo-tui")
        values.pop("trainer.version", None)
        return str(trainer), {k.removeprefix("theirs."): v for k, v in values.items()}
    if "num_generations" in values:
        known = {name: value for name, value in values.items() if name in TRANSLATED}
        model = config.get("_name_or_path")
        # The trainer's defaults are known for its synchronous GRPO only.
        whole = {"loss_type", "beta", "scale_rewards"} <= known.keys()
        translated = of_trainer(known | ({"model_name_or_path": model} if model else {}))[0]
        return "TRL", translated if whole else known | ({"model.path": model} if model else {})
    if "actor_rollout_ref" in values or values.get("framework") == "verl":
        return "verl", values
    return "trackio", values


# -- the file -----------------------------------------------------------------------------------


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(open_foreign(path)) as conn:
            yield conn
    except (sqlite3.Error, StoreError) as error:
        if isinstance(error, ImportRefusedError):
            raise
        raise ImportRefusedError(
            f"{path} cannot be read: {error}; open it with trackio, or restore a copy"
        ) from error


def tables(conn: sqlite3.Connection) -> dict[str, set[str]]:
    """trackio's tables with their columns; a view or computed column is not trackio's."""
    columns: dict[str, set[str]] = {}
    for name, needed in COLUMNS.items():
        query = "SELECT type, sql FROM sqlite_schema WHERE name = ?"
        kind, sql = conn.execute(query, [name]).fetchone() or ("", "")
        info = conn.execute(f"PRAGMA table_xinfo({name})").fetchall() if kind == "table" else []
        plain = not any(row[6] for row in info) and not str(sql).upper().startswith("CREATE V")
        if plain and needed <= (names := {str(row[1]) for row in info}):
            columns[name] = names
    return columns


def project_columns(path: Path) -> dict[str, set[str]]:
    """A project's tables with their columns; none if the file is no project, or damaged."""
    if begins_with(path, DATABASE):
        with suppress(ImportRefusedError), opened(path) as conn:
            columns = tables(conn)
            return columns if {"metrics", "configs"} <= columns.keys() else {}
    return {}


def _object(data: Any, at: str) -> dict[str, Any]:
    value = _json(data, at)
    if not isinstance(value, dict):
        raise ImportRefusedError(f"{at}: must be an object of JSON; {AGAIN}")
    return value


def _messages(data: Any, at: str) -> list[dict[str, Any]]:
    value = _json(data, at)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ImportRefusedError(f"{at}: messages must be a list of objects; {AGAIN}")
    return value


def _json(data: Any, at: str) -> Any:
    if not isinstance(data, str | bytes):
        raise ImportRefusedError(f"{at}: must be JSON, got {type(data).__name__}; {AGAIN}")
    try:
        return parsed(data.encode() if isinstance(data, str) else data)
    except ValueError as error:
        raise ImportRefusedError(f"{at} is not JSON: {error}; {AGAIN}") from error


def _step(value: Any, at: str) -> int:
    number = finite(value)
    if number is not None and number.is_integer() and 0 <= number < LARGEST_STEP:
        return int(number)
    raise ImportRefusedError(
        f"{at}: step must be a whole number below {LARGEST_STEP:,}, got {quoted(value)}; {AGAIN}"
    )


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite metrics, by the trainer's names."""
    numbers = {
        (name[2:] if RENAMED.fullmatch(name) else name).removeprefix("train/"): finite(value)
        for name, value in values.items()
        if name != GLOBAL_STEP and not isinstance(value, bool)
    }
    return {name: number for name, number in numbers.items() if number is not None}


def origin_of(key: str) -> ev.Origin:
    """What the traces of a key are answers to."""
    return "pinned" if key == PINNED else "eval" if is_held_out(key) else "train"


def is_held_out(name: str) -> bool:
    return HELD_OUT.match(name) is not None


def open_runs(folder: Folder) -> list[TrackioReader]:
    """Every run of a project, or of all projects in a folder."""
    readers = []
    for path in folder.files("*" if folder.path.is_file() else "*.db"):
        if not (columns := project_columns(path)):
            continue
        with opened(path) as conn:
            by_id = all("run_id" in names for names in columns.values())
            column = "run_id" if by_id else "run_name"  # trackio before 0.24 had names only
            runs: dict[str, str] = {}
            for table in columns:
                query = f"SELECT {column}, run_name FROM {table} GROUP BY 1 ORDER BY min(rowid)"
                for value, name in conn.execute(f"{query} LIMIT {MOST_RUNS}"):
                    if isinstance(value, str) and isinstance(name, str):
                        runs.setdefault(value, name)
        readers += [TrackioReader(path, column, value, name) for value, name in runs.items()]
    return readers


TRACKIO: Final = Format(
    name="trackio", files="PROJECT.db in trackio's folder, of one or several runs", open=open_runs
)
