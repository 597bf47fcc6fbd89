"""The queue of waiting runs: workers take them by an atomic lease, and it survives restarts."""

import hashlib
import itertools
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlmodel import Session, col, select

from grpo_tui.experiments.db.configs import config_hash, config_tree, json_text
from grpo_tui.experiments.db.machine import host_name, is_alive, process_start
from grpo_tui.experiments.db.names import new_uid
from grpo_tui.experiments.db.tables import QueueItemRow, RunRow, SweepRow
from grpo_tui.experiments.db.texts import now_iso
from grpo_tui.experiments.errors import QueryError
from grpo_tui.experiments.store import ExperimentStore

LEASE_S = 60.0
ANYWAY = "trained though the same run exists"


class RunQueue:
    """Adds runs to the queue and leases each to one worker."""

    def __init__(self, store: ExperimentStore) -> None:
        self.store = store

    def add(
        self, config: Any, *, name: str = "", sweep: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> int:  # fmt: skip
        """Queue a run and return the item's key."""
        row = _queued(config, name, settings or {}, sweep)
        with self.store.session() as session:
            session.add(row)
            session.flush()
            assert row.id is not None
            return row.id

    def sweep(
        self, name: str, axes: Mapping[str, Sequence[Any]], configs: Sequence[tuple[Any, Any]]
    ) -> tuple[int, bool]:
        """Queue a sweep whole, or find the one with the same axes and configurations.

        `configs` are (settings of the point, whole configuration). Returns the sweep's key and
        whether it is new.
        """
        hashes = [config_hash(config_tree(config)) for _, config in configs]
        spec = hashlib.sha256(json_text([dict(axes), hashes]).encode()).hexdigest()[:16]
        with self.store.session() as session:
            known = session.exec(select(SweepRow.id).where(SweepRow.spec_hash == spec)).first()
            if known is not None:
                return known, False
            row = SweepRow(
                uid=new_uid(), name=name, created_at=now_iso(), spec_hash=spec,
                axes={path: list(values) for path, values in axes.items()},
            )  # fmt: skip
            session.add(row)
            session.flush()
            assert row.id is not None
            session.add_all(
                _queued(config, f"{name}-{number}", settings, row.id)
                for number, (settings, config) in enumerate(configs, start=1)
            )
            return row.id, True

    def take(self, sweep: int | None = None) -> QueueItemRow | None:
        """Lease the next item, or return None; a lease whose worker is gone is void."""
        now = time.time()
        with self.store.session() as session:
            query = (
                select(QueueItemRow)
                .where(col(QueueItemRow.state).in_(("queued", "leased")))
                .order_by(col(QueueItemRow.id))
            )
            if sweep is not None:
                query = query.where(QueueItemRow.sweep_id == sweep)
            for row in session.exec(query):
                if row.state == "queued" or _gone(row.lease_owner, row.lease_until < now):
                    row.state, row.lease_owner, row.lease_until = "leased", owner(), now + LEASE_S
                    session.flush()
                    session.expunge(row)
                    return row
        return None

    def renew(self, item: int) -> None:
        self._change(item, lease_until=time.time() + LEASE_S)

    def finish(self, item: int, state: str, *, run: int | None = None, note: str = "") -> None:
        """Record the outcome: done, failed, skipped, cancelled, or queued again."""
        if state not in ("done", "failed", "skipped", "cancelled", "queued"):
            raise QueryError(f"{state!r} is no state of a queued run")
        changes: dict[str, Any] = {"state": state, "note": note, "lease_until": 0.0}
        if run is not None:
            changes["run_id"] = run
        self._change(item, **changes)

    def cancel(self, item: int) -> None:
        self.finish(item, "cancelled")

    def requeue(self, state: str, sweep: int | None = None, item: int | None = None) -> int:
        """Queue items that failed or were skipped once more, and return their number.

        `sweep` or `item` limits them; what was skipped is trained this time.
        """
        query = select(QueueItemRow).where(QueueItemRow.state == state)
        if sweep is not None:
            query = query.where(QueueItemRow.sweep_id == sweep)
        if item is not None:
            query = query.where(QueueItemRow.id == item)
        with self.store.session() as session:
            rows = session.exec(query).all()
            for row in rows:
                row.state = "queued"
                if state == "skipped":
                    row.run_id, row.note = None, ANYWAY
            return len(rows)

    def repeats(self, item: QueueItemRow) -> RunRow | None:
        """Return the completed run that a new item of a sweep would repeat."""
        if item.sweep_id is None or item.run_id is not None or item.note == ANYWAY:
            return None
        return self.finished_run(item.config_hash)

    def finished_run(self, fingerprint: str) -> RunRow | None:
        """Return a completed run of the same configuration, whatever its name."""
        with self.store.session() as session:
            row = session.exec(
                select(RunRow)
                .where(RunRow.config_hash == fingerprint, RunRow.status == "completed")
                .where(col(RunRow.deleted_at).is_(None))
                .order_by(col(RunRow.id).desc())
            ).first()
            if row is not None:
                session.expunge(row)
            return row

    def attach(self, item: int, run: int) -> None:
        """Record which run an item became, and add the run to the item's sweep."""
        with self.store.session() as session:
            row, made = session.get(QueueItemRow, item), session.get(RunRow, run)
            if row is not None and made is not None:
                row.run_id = run
                made.sweep_id = row.sweep_id

    def item(self, item: int) -> QueueItemRow:
        """Return an item, detached from any session."""
        with self.store.session() as session:
            row = _found(session, item)
            session.expunge(row)
            return row

    def _change(self, item: int, **values: Any) -> None:
        with self.store.session() as session:
            row = _found(session, item)
            for name, value in values.items():
                setattr(row, name, value)


def _queued(config: Any, name: str, settings: Mapping[str, Any], sweep: int | None) -> QueueItemRow:
    tree = config_tree(config)
    return QueueItemRow(
        sweep_id=sweep, name=name or str(tree.get("name") or ""), state="queued",
        created_at=now_iso(), settings=dict(settings), config=tree,
        config_hash=config_hash(tree), lease_owner="", lease_until=0.0, note="",
    )  # fmt: skip


def _found(session: Session, item: int) -> QueueItemRow:
    row = session.get(QueueItemRow, item)
    if row is None:
        raise QueryError(f"there is no queued run {item}")
    return row


def owner() -> str:
    """Return the lease owner's id of this process."""
    pid = os.getpid()
    return json.dumps([host_name(), pid, process_start(pid)])


def _gone(holder: str, expired: bool) -> bool:
    """Return whether a lease's owner is gone; on another host only the lease's age can tell."""
    try:
        host, pid, start = json.loads(holder)
    except ValueError:
        return True
    return expired if host != host_name() else not is_alive(int(pid), str(start))


def points(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of the axes' values, the last axis varying fastest."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
