"""ExperimentStore: the entry point for everything that writes; migrates the file on opening."""

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, literal
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.pool import NullPool
from sqlmodel import Session, col, delete, func, select, update

from grpo_engine.config.settings import LONGEST_NAME
from grpo_engine.errors import quoted
from grpo_tui.experiments.db.configs import (
    config_hash,
    config_tree,
    flat,
    number_of,
    promoted,
)
from grpo_tui.experiments.db.connection import begin, open_writer
from grpo_tui.experiments.db.machine import boot_id, host_name, process_start
from grpo_tui.experiments.db.migration_sql import CURRENT
from grpo_tui.experiments.db.migrations import migrate, too_new, version
from grpo_tui.experiments.db.names import free_name, new_uid, short_id
from grpo_tui.experiments.db.paths import run_folder
from grpo_tui.experiments.db.schema import check_schema
from grpo_tui.experiments.db.spilled import spilled
from grpo_tui.experiments.db.summaries import rebuild
from grpo_tui.experiments.db.tables import (
    EVALUATION,
    EVENT,
    METRIC,
    METRIC_HIDDEN,
    ROLLOUT_GROUP,
    RUN,
    RUN_LIVE,
    STEP,
    UPDATE_PASS,
    AlertRow,
    AttemptRow,
    ControlRow,
    RunParamRow,
    RunRow,
    RunTagRow,
)
from grpo_tui.experiments.db.texts import now_iso
from grpo_tui.experiments.db.types import any_text
from grpo_tui.experiments.errors import (
    NothingStoredError,
    QueryError,
    RunActiveError,
    RunNotFoundError,
    StoreError,
    StoreReadOnlyError,
    StoreUnusableError,
)
from grpo_tui.experiments.read.status import LifeSigns, derive
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import ACTIVE

VERBS = ("pause", "continue", "stop_after_step", "stop_now", "checkpoint", "pin")
HIDING = (EVENT, STEP, UPDATE_PASS, ROLLOUT_GROUP, EVALUATION)


def refuse_waiting(store: Path, run: str) -> None:
    """Refuse to delete a run whose last events are not in the store yet."""
    if (waiting := spilled(store, run)).files:
        raise StoreError(
            f"run {run} is not deleted: {waiting}; they are taken into the store when it can "
            "be written, or remove the file first"
        )


def refuse_long_tags(tags: Iterable[str]) -> None:
    """Refuse a tag that no list could show."""
    for tag in tags:
        if len(tag) > LONGEST_NAME:
            raise QueryError(f"a tag has at most {LONGEST_NAME} characters, got {quoted(tag)}")


class ExperimentStore:
    """Writes the store at `path`; `read_only` is the reason why it may only be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_only = ""
        self.copied_to: Path | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StoreUnusableError(
                f"the store's folder {path.parent} cannot be made: {error.strerror}; choose "
                "another store with --db FILE or $GRPO_TUI_DB"
            ) from error
        with closing(open_writer(path, create=True)) as conn:
            self._prepare(conn)
        self._engine = self._make_engine()

    def _prepare(self, conn: sqlite3.Connection) -> None:
        check_schema(conn, self.path)
        if version(conn) > CURRENT:
            self.read_only = too_new(version(conn), self.path)
            return
        try:
            self.copied_to = migrate(conn, self.path)
        except StoreReadOnlyError as error:
            self.read_only = str(error)

    def _make_engine(self) -> Engine:
        def connect() -> sqlite3.Connection:
            connection = open_writer(self.path)
            connection.text_factory = any_text
            return connection

        engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

        @event.listens_for(engine, "begin")
        def take_lock(connection: Any) -> None:
            begin(connection.connection.dbapi_connection)

        return engine

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open one transaction; commit unless an error is raised."""
        if self.read_only:
            raise StoreReadOnlyError(self.read_only)
        with Session(self._engine) as session, session.begin():
            yield session

    # -- runs -----------------------------------------------------------------------------------

    def create_run(
        self, config: Any, *, name: str = "", status: str = "running", parent: int | None = None,
        code_version: str = "", tags: Iterable[str] = (), uid: str = "",
    ) -> RunRow:  # fmt: skip
        """Store a new run with its settings and create its folder."""
        tree = config_tree(config)
        with self.session() as session:
            uid = uid or new_uid()
            row = RunRow(
                uid=uid,
                short=short_id(uid, lambda short: _exists(session, RunRow.short, short)),
                name=free_name(
                    name or str(tree.get("name") or ""),
                    lambda name: _exists(session, RunRow.name, name),
                ),
                status=status, created_at=now_iso(), config=tree,
                config_hash=config_hash(tree), code_version=code_version,
                parent_id=parent, **promoted(tree),
            )  # fmt: skip
            session.add(row)
            session.flush()
            assert row.id is not None
            session.add_all(_param_rows(row.id, tree))
            session.add_all(RunTagRow(run_id=row.id, tag=tag) for tag in dict.fromkeys(tags))
            session.flush()
            session.expunge(row)
        run_folder(self.path, row.short).mkdir(parents=True, exist_ok=True)
        return row

    def key_of(self, run: int | str) -> int:
        """Return the database key of a run, by id, name, prefix, `@last` or `@best`."""
        if isinstance(run, int):
            return run
        with closing(StoreReader(self.path)) as reader:
            return reader.resolve(run).key

    def has_uid(self, uid: str) -> bool:
        with self.session() as session:
            return _exists(session, RunRow.uid, uid)

    def run_row(self, run: int) -> RunRow:
        """Return the run's row, detached from any session."""
        with self.session() as session:
            row = session.get(RunRow, run)
            if row is None:
                raise RunNotFoundError(f"run {run} is no longer in the store")
            session.expunge(row)
            return row

    def last_attempt(self, run: int) -> int:
        """Return the number of the newest attempt; 0 if there is none."""
        with self.session() as session:
            return _last_attempt(session, run)

    def start_attempt(self, run: int, from_step: int, config: Any = None) -> int:
        """Begin the next attempt; rows of earlier attempts beyond `from_step` are hidden.

        `config` are the settings of a run that continues for more steps.
        """
        with self.session() as session:
            if config is not None:
                _replace_settings(session, run, config_tree(config))
            number = _last_attempt(session, run) + 1
            now = now_iso()
            session.exec(
                update(AttemptRow)
                .where(col(AttemptRow.run_id) == run)
                .values(
                    until_step=func.min(func.coalesce(AttemptRow.until_step, from_step), from_step),
                    ended_at=func.coalesce(AttemptRow.ended_at, now),
                )
            )
            _expire_requests(session, run)
            row = AttemptRow(
                run_id=run, n=number, from_step=from_step, host=host_name(), boot=boot_id(),
                pid=os.getpid(), pid_start=process_start(os.getpid()), started_at=now,
                heartbeat=now, progress_at=now,
            )  # fmt: skip
            session.add(row)
            _set(session, run, status="running", ended_at=None, error="")
            if number > 1:
                _hide(session.connection(), run, number, from_step)
        return number

    def end_attempt(self, run: int, number: int, cause: str) -> None:
        """End an attempt; a run that did not report its end is `aborted`."""
        with self.session() as session:
            session.exec(
                update(AttemptRow)
                .where(col(AttemptRow.run_id) == run, col(AttemptRow.n) == number)
                .values(ended_at=now_iso(), cause=cause)
            )
            session.exec(
                update(RunRow)
                .where(col(RunRow.id) == run, col(RunRow.status).in_(("running", "paused")))
                .values(status="aborted", ended_at=now_iso(), error=cause)
            )
            _expire_requests(session, run)

    def rename(self, run: int, name: str) -> None:
        """Rename the run; names are unique."""
        wanted = name.strip()
        if not wanted or wanted.startswith("@") or len(name) > LONGEST_NAME:
            raise QueryError(
                f"a run cannot be called {quoted(name)}: a name is text of at most {LONGEST_NAME} "
                "characters without a leading @"
            )
        with self.session() as session:
            other = session.exec(
                select(RunRow).where(RunRow.name == wanted, RunRow.id != run)
            ).first()
            if other is not None:
                raise QueryError(
                    f"{other.short} is already called {quoted(name)}; choose another name"
                )
            _set(session, run, name=wanted)

    def set_note(self, run: int, note: str) -> None:
        with self.session() as session:
            _set(session, run, note=note)

    def set_archived(self, run: int, archived: bool) -> None:
        with self.session() as session:
            _set(session, run, archived=archived)

    def delete(self, runs: Iterable[int]) -> None:
        """Hide runs until they are purged; refuse all if one is active."""
        with self.session() as session:
            now = now_iso()
            for run in runs:
                row = _run(session, run)
                status = _status(session, row)
                if status in ACTIVE:
                    raise RunActiveError(
                        f"{row.name} is {status}: `grpo-tui stop {row.short}` first"
                    )
                refuse_waiting(self.path, row.short)
                row.deleted_at = now

    def restore(self) -> tuple[str, ...]:
        """Bring back the runs that were deleted last, and return their names."""
        can_return = (col(RunRow.deleted_at).is_not(None), col(RunRow.purging).is_(False))
        with self.session() as session:
            last = session.exec(select(func.max(RunRow.deleted_at)).where(*can_return)).one()
            rows = session.exec(
                select(RunRow).where(*can_return, col(RunRow.deleted_at) == last)
            ).all()
            for row in rows:
                row.deleted_at = None
            return tuple(row.name for row in rows)

    def deleted(self) -> tuple[int, ...]:
        """Return the runs that are to be purged."""
        with self.session() as session:
            query = select(RunRow.id).where(col(RunRow.deleted_at).is_not(None))
            return tuple(key for key in session.exec(query) if key is not None)

    def begin_purge(self, run: int) -> None:
        """Hide a run for good: what was removed of it cannot be brought back."""
        with self.session() as session:
            values = {"deleted_at": func.coalesce(RunRow.deleted_at, now_iso()), "purging": True}
            session.exec(update(RunRow).where(col(RunRow.id) == run).values(values))

    def tag(self, run: int, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
        refuse_long_tags(add)
        with self.session() as session:
            _set(session, run)
            gone = set(remove)
            wanted = {tag.strip() for tag in add if tag.strip()} - gone
            session.exec(
                delete(RunTagRow).where(
                    col(RunTagRow.run_id) == run, col(RunTagRow.tag).in_(gone | wanted)
                )
            )
            session.add_all(RunTagRow(run_id=run, tag=tag) for tag in sorted(wanted))

    def mute(self, run: int, rule: str, muted: bool = True) -> None:
        with self.session() as session:
            row = session.exec(
                select(AlertRow).where(col(AlertRow.run_id) == run, col(AlertRow.rule) == rule)
            ).one_or_none()
            if row is None:
                raise NothingStoredError(f"the run has no alert {rule!r}")
            row.muted = muted

    # -- viewers and requests -------------------------------------------------------------------

    def request(self, run: int, verb: str, *, argument: str = "") -> int:
        """Send a request to the run's process; return the request's key."""
        if verb not in VERBS:
            raise QueryError(f"unknown request {verb!r}; choose from {', '.join(VERBS)}")
        with self.session() as session:
            attempt = _last_attempt(session, run)
            if not attempt:
                raise StoreError("this run was never started, so it takes no requests")
            row = ControlRow(
                run_id=run, attempt=attempt, verb=verb, argument=argument,
                asked_at=now_iso(), asked_by=f"pid {os.getpid()}",
            )  # fmt: skip
            session.add(row)
            session.flush()
            assert row.id is not None
            return row.id

    def hold_lease(self, run: int, seconds: float = 10.0) -> None:
        """Ask the run's process to write its board for this long."""
        if self.read_only:
            return
        row = insert(RUN_LIVE).values(
            run_id=run, lease_until=time.time() + seconds, version=-1, updated_at=0, board={}
        )
        until = func.max(RUN_LIVE.c.lease_until, row.excluded.lease_until)
        with self.session() as session:
            session.connection().execute(row.on_conflict_do_update(set_={"lease_until": until}))


def _param_rows(run: int, tree: Mapping[str, Any]) -> list[RunParamRow]:
    return [
        RunParamRow(run_id=run, path=path, value=value, number=number_of(value))
        for path, value in flat(tree).items()
    ]


def _last_attempt(session: Session, run: int) -> int:
    last = session.exec(select(func.max(AttemptRow.n)).where(AttemptRow.run_id == run)).one()
    return last or 0


def _expire_requests(session: Session, run: int) -> None:
    session.exec(
        update(ControlRow)
        .where(col(ControlRow.run_id) == run, col(ControlRow.outcome) == "")
        .values(outcome="expired")
    )


def _replace_settings(session: Session, run: int, tree: Mapping[str, Any]) -> None:
    settings = promoted(tree)
    _set(session, run, config=tree, config_hash=config_hash(tree), **settings)
    session.exec(delete(RunParamRow).where(col(RunParamRow.run_id) == run))
    session.add_all(_param_rows(run, tree))


def _exists(session: Session, column: Any, value: str) -> bool:
    return session.exec(select(column).where(column == value)).first() is not None


def _set(session: Session, run: int, **values: Any) -> None:
    row = _run(session, run)
    for name, value in values.items():
        setattr(row, name, value)


def _run(session: Session, run: int) -> RunRow:
    row = session.get(RunRow, run)
    if row is None or row.deleted_at is not None:
        raise RunNotFoundError(f"run {run} is no longer in the store")
    return row


def _status(session: Session, run: RunRow) -> str:
    """Return the true status of a run."""
    last = select(AttemptRow).where(AttemptRow.run_id == run.id).order_by(col(AttemptRow.n).desc())
    attempt = session.exec(last.limit(1)).first()
    if attempt is None:
        return run.status
    signs = LifeSigns(**{field.name: getattr(attempt, field.name) for field in fields(LifeSigns)})
    return derive(run.status, signs, run.elapsed / run.step if run.step else 0.0)[0]


def _hide(conn: Connection, run: int, number: int, from_step: int) -> None:
    """Hide rows of earlier attempts beyond the step from which the new one continues."""
    for table in HIDING:
        conn.execute(
            table.update()
            .where(table.c.run_id == run, table.c.step > from_step, table.c.attempt < number)
            .values(hidden=True)
        )
    later = (METRIC.c.run_id == run, METRIC.c.step > from_step)
    columns = ("attempt", "run_id", "key_id", "step", "value")
    values = select(literal(number - 1), *(METRIC.c[name] for name in columns[1:])).where(*later)
    conn.execute(insert(METRIC_HIDDEN).prefix_with("OR IGNORE").from_select(columns, values))
    conn.execute(METRIC.delete().where(*later))
    rebuild(conn, run, from_step)
    last = conn.execute(
        select(STEP.c.step, STEP.c.tokens, STEP.c.elapsed)
        .where(STEP.c.run_id == run, STEP.c.hidden == 0)
        .order_by(STEP.c.step.desc())
        .limit(1)
    ).first()
    done = last._asdict() if last else {"step": 0, "tokens": 0, "elapsed": 0.0}
    conn.execute(RUN.update().where(RUN.c.id == run).values(done))
