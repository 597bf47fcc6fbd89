"""ExperimentStore: all writing goes through it; it migrates the file when it opens it."""

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from sqlalchemy import (
    Connection,
    Executable,
    NullPool,
    Row,
    create_engine,
    func,
    select,
)
from sqlalchemy.dialects.sqlite import insert

from grpo_engine.config.settings import LONGEST_NAME
from grpo_engine.errors import quoted
from grpo_tui.experiments.db.configs import config_hash, config_tree, flat, promoted
from grpo_tui.experiments.db.connection import begin, open_writer
from grpo_tui.experiments.db.machine import boot_id, host_name, process_start
from grpo_tui.experiments.db.migrations import migrate
from grpo_tui.experiments.db.names import free_name, short_id
from grpo_tui.experiments.db.paths import runs_folder
from grpo_tui.experiments.db.schema import check_schema
from grpo_tui.experiments.db.spilled import spilled
from grpo_tui.experiments.db.summaries import rebuild
from grpo_tui.experiments.db.tables import (
    ALERT,
    ATTEMPT,
    CONTROL,
    EVALUATION,
    EVENT,
    METRIC,
    METRIC_KEY,
    ROLLOUT_GROUP,
    RUN,
    RUN_LIVE,
    RUN_PARAM,
    RUN_TAG,
    STEP,
    UPDATE_PASS,
)
from grpo_tui.experiments.db.texts import now_iso
from grpo_tui.experiments.db.types import any_text
from grpo_tui.experiments.errors import (
    NothingStoredError,
    QueryError,
    RunNotFoundError,
    StoreError,
    StoreUnusableError,
)
from grpo_tui.experiments.reader import CAN_RETURN, StoreReader, check_ended, check_trainer

HIDING = (EVENT, STEP, UPDATE_PASS, ROLLOUT_GROUP, EVALUATION)


def refuse_waiting(store: Path, run: str) -> None:
    """Refuse to delete a run whose last events are not in the store yet."""
    if (waiting := spilled(store, run)).file:
        raise StoreError(
            f"run {run} is not deleted: {waiting}; they are taken into the store when it can "
            "be written, or remove the file first"
        )


class ExperimentStore:
    """Writes the store at `path`; StoreReadOnlyError says why a file may only be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StoreUnusableError(
                f"the store's folder {path.parent} cannot be made: {error.strerror}; choose "
                "another store with --db FILE or $GRPO_TUI_DB"
            ) from error
        with closing(open_writer(path, create=True)) as conn:
            check_schema(conn, path)
            self.copied_to = migrate(conn, path)
        self._engine = create_engine("sqlite://", creator=self._connect, poolclass=NullPool)

    def _connect(self) -> sqlite3.Connection:
        connection = open_writer(self.path)
        connection.text_factory = any_text
        return connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open one transaction; commit unless an error is raised."""
        with self._engine.begin() as conn:
            begin(conn.connection.dbapi_connection)  # type: ignore[arg-type]  # SQLite's
            yield conn

    def execute(self, statement: Executable) -> Sequence[Any]:
        """Execute one statement in a transaction of its own, and return its rows."""
        with self.transaction() as conn:
            result = conn.execute(statement)
            return result.all() if result.returns_rows else ()

    # -- runs -----------------------------------------------------------------------------------

    def create_run(
        self,
        config: Any,
        *,
        name: str = "",
        status: str = "running",
        parent: int | None = None,
        code_version: str = "",
        tags: Iterable[str] = (),
        uid: str = "",
        origin: str = "here",
    ) -> Row[Any]:
        """Store a new run with its settings, and return its row."""
        tree = config_tree(config)
        uid = uid or str(uuid4())
        with self.transaction() as conn:
            shorts, names = (
                set(conn.scalars(select(column))) for column in (RUN.c.short, RUN.c.name)
            )
            # Another store in this folder may have the same run.
            shorts.update(folder.name for folder in runs_folder(self.path).glob("*"))
            values = {
                "uid": uid,
                "short": short_id(uid, shorts),
                "name": free_name(name or str(tree.get("name") or ""), names),
                "status": status,
                "created_at": now_iso(),
                "code_version": code_version,
                "parent_id": parent,
                "versions": {},
                "origin": origin,
                **_of_config(tree),
            }
            row = conn.execute(RUN.insert().returning(*RUN.c), values).one()
            _set_params(conn, row.id, tree)
            for tag in set(tags):
                conn.execute(RUN_TAG.insert(), {"run_id": row.id, "tag": tag})
        return row

    def key_of(self, run: int | str) -> int:
        """Return the database key of a run, by id, name, prefix or `@last`."""
        if isinstance(run, int):
            return run
        with StoreReader(self.path) as reader:
            return reader.resolve(run).key

    def run_row(self, run: int) -> Row[Any]:
        """Return the run's row, of a deleted run too."""
        with self.transaction() as conn:
            return _run(conn, run)

    def start_attempt(self, run: int, from_step: int, config: Any = None) -> int:
        """Begin the next attempt; rows of earlier attempts beyond `from_step` are hidden.

        `config` are the settings of a run that continues for more steps.
        """
        with self.transaction() as conn:
            _set(conn, run, status="running", ended_at=None, error="")
            if config is not None:
                tree = config_tree(config)
                _set(conn, run, **_of_config(tree))
                _set_params(conn, run, tree)
            number = last_attempt(conn, run) + 1
            now = now_iso()
            until_step = func.coalesce(ATTEMPT.c.until_step, from_step)
            conn.execute(
                ATTEMPT.update()
                .filter_by(run_id=run)
                .values(
                    until_step=func.min(until_step, from_step),
                    ended_at=func.coalesce(ATTEMPT.c.ended_at, now),
                )
            )
            _expire_requests(conn, run)
            conn.execute(
                ATTEMPT.insert(),
                {
                    "run_id": run,
                    "n": number,
                    "from_step": from_step,
                    "host": host_name(),
                    "boot": boot_id(),
                    "pid": os.getpid(),
                    "pid_start": process_start(os.getpid()),
                    "started_at": now,
                    "heartbeat": now,
                    "progress_at": now,
                },
            )
            if number > 1:
                _hide(conn, run, number, from_step)
        return number

    def end_attempt(self, run: int, number: int, cause: str) -> None:
        """End an attempt; a run that did not report its end is `aborted`."""
        with self.transaction() as conn:
            attempt = ATTEMPT.update().filter_by(run_id=run, n=number)
            conn.execute(attempt.values(ended_at=now_iso(), cause=cause))
            active = RUN.update().where(RUN.c.status.in_(("running", "paused")))
            end = {"status": "aborted", "ended_at": now_iso(), "error": cause}
            conn.execute(active.filter_by(id=run).values(end))
            _expire_requests(conn, run)

    def rename(self, run: int, name: str) -> None:
        """Rename the run; names are unique."""
        name = name.strip()
        if not name or name.startswith("@") or len(name) > LONGEST_NAME:
            raise QueryError(
                f"a run cannot be called {quoted(name)}: a name is text of at most {LONGEST_NAME} "
                "characters without a leading @"
            )
        with self.transaction() as conn:
            query = select(RUN.c.short).where(RUN.c.id != run).filter_by(name=name)
            if short := conn.scalar(query):
                raise QueryError(f"{short} is already called {quoted(name)}; choose another name")
            _set(conn, run, name=name)

    def change(self, run: int, **values: Any) -> None:
        """Change columns of the run, such as `note` and `archived`."""
        with self.transaction() as conn:
            _set(conn, run, **values)

    def hide_evaluations(self, run: int, step: int) -> None:
        """Hide the evaluations of a step before they are recorded anew, with their answers."""
        at_step = {"run_id": run, "step": step, "hidden": False}
        held_out = select(METRIC_KEY.c.id).where(METRIC_KEY.c.name.startswith("eval/"))
        with self.transaction() as conn:
            conn.execute(EVALUATION.update().filter_by(**at_step).values(hidden=True))
            answers = ROLLOUT_GROUP.update().filter_by(**at_step, origin="eval")
            conn.execute(answers.values(hidden=True))
            metrics = METRIC.delete().filter_by(run_id=run, step=step)
            if conn.execute(metrics.where(METRIC.c.key_id.in_(held_out))).rowcount:
                rebuild(conn, run)

    def delete(self, runs: Iterable[int]) -> None:
        """Hide runs until they are purged; refuse all if one is active."""
        keys, now = list(runs), now_iso()
        with StoreReader(self.path) as reader:
            for run in reader.runs(archived=True, keys=keys):
                check_ended(run)
                refuse_waiting(self.path, run.id)
        with self.transaction() as conn:
            for key in keys:
                _set(conn, key, deleted_at=now)

    def restore(self) -> tuple[str, ...]:
        """Bring back the runs that were deleted last, and return their names."""
        last = select(func.max(RUN.c.deleted_at)).where(*CAN_RETURN).scalar_subquery()
        deleted = RUN.update().where(*CAN_RETURN, RUN.c.deleted_at == last)
        rows = self.execute(deleted.values(deleted_at=None).returning(RUN.c.name))
        return tuple(row.name for row in rows)

    def tag(self, run: int, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
        removed = set(remove)
        added = set(filter(None, map(str.strip, add))) - removed
        for tag in added:
            if len(tag) > LONGEST_NAME:
                raise QueryError(f"a tag has at most {LONGEST_NAME} characters, got {quoted(tag)}")
        with self.transaction() as conn:
            old = RUN_TAG.delete().where(RUN_TAG.c.tag.in_(removed | added))
            conn.execute(old.filter_by(run_id=run))
            for tag in added:
                conn.execute(RUN_TAG.insert(), {"run_id": run, "tag": tag})

    def mute(self, run: int, rule: str, muted: bool = True) -> None:
        alert = ALERT.update().filter_by(run_id=run, rule=rule)
        if not self.execute(alert.values(muted=muted).returning(ALERT.c.id)):
            raise NothingStoredError(f"the run has no alert {rule!r}")

    # -- viewers and requests -------------------------------------------------------------------

    def request(self, run: int, verb: str, *, argument: str = "") -> int:
        """Send a request to the run's process; return the request's key."""
        row = self.run_row(run)
        check_trainer(row.name, row.config, verb)
        with self.transaction() as conn:
            values = {
                "run_id": run,
                "attempt": last_attempt(conn, run),
                "verb": verb,
                "argument": argument,
                "asked_at": now_iso(),
            }
            return int(conn.execute(CONTROL.insert().returning(CONTROL.c.id), values).scalar_one())

    def renew_lease(self, run: int, seconds: float) -> None:
        """Ask the run's process to write its board for this long."""
        row = insert(RUN_LIVE).values(run_id=run, lease_until=time.time() + seconds, board={})
        until = func.max(RUN_LIVE.c.lease_until, row.excluded.lease_until)
        self.execute(row.on_conflict_do_update(set_={"lease_until": until}))


def _of_config(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a run that its configuration sets."""
    return {"config": tree, "config_hash": config_hash(tree), **promoted(tree)}


def _set_params(conn: Connection, run: int, tree: Mapping[str, Any]) -> None:
    conn.execute(RUN_PARAM.delete().filter_by(run_id=run))
    settings = flat(tree).items()
    rows = [{"run_id": run, "path": path, "value": value} for path, value in settings]
    if rows:  # for an empty list SQLAlchemy would insert a row of defaults
        conn.execute(RUN_PARAM.insert(), rows)


def last_attempt(conn: Connection, run: int) -> int:
    return conn.scalar(select(func.max(ATTEMPT.c.n)).filter_by(run_id=run)) or 0


def _expire_requests(conn: Connection, run: int) -> None:
    waiting = CONTROL.update().filter_by(run_id=run, outcome="")
    conn.execute(waiting.values(outcome="expired"))


def _set(conn: Connection, run: int, **values: Any) -> None:
    if _run(conn, run).deleted_at is not None:
        raise RunNotFoundError(f"run {run} was deleted")
    conn.execute(RUN.update().filter_by(id=run).values(values))


def _run(conn: Connection, run: int) -> Row[Any]:
    for row in conn.execute(select(RUN).filter_by(id=run)):
        return row
    raise RunNotFoundError(f"run {run} is no longer in the store")


def _hide(conn: Connection, run: int, number: int, from_step: int) -> None:
    """Hide rows of earlier attempts beyond the step from which the new attempt continues."""
    for table in HIDING:
        conn.execute(
            table.update()
            .where(table.c.run_id == run, table.c.step > from_step, table.c.attempt < number)
            .values(hidden=True)
        )
    later = (METRIC.c.run_id == run, METRIC.c.step > from_step)
    if conn.execute(METRIC.delete().where(*later)).rowcount:
        rebuild(conn, run)
    done = {
        name: select(func.coalesce(func.max(STEP.c[name]), 0))
        .filter_by(run_id=run, hidden=0)
        .scalar_subquery()
        for name in ("step", "tokens", "elapsed")
    }
    conn.execute(RUN.update().filter_by(id=run).values(done))
