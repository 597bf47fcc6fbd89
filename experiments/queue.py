"""The queue of waiting runs; workers take them by an atomic lease."""

import itertools
import json
import os
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from sqlalchemy import Row, select

from grpo_tui.experiments.db.configs import config_hash, config_tree, digest
from grpo_tui.experiments.db.machine import host_name, may_live, process_start
from grpo_tui.experiments.db.tables import QUEUE_ITEM, RUN, SWEEP
from grpo_tui.experiments.db.texts import now_iso
from grpo_tui.experiments.store import ExperimentStore

LEASE_S = 60.0
ANYWAY = "trained though the same run exists"
ITEM = QUEUE_ITEM.c


class RunQueue:
    """Adds runs to the queue and leases each to one worker."""

    def __init__(self, store: ExperimentStore) -> None:
        self.store = store

    def add(
        self, config: Any, *, name: str = "", settings: Mapping[str, Any] = MappingProxyType({})
    ) -> int:
        """Queue a run and return the item's key."""
        row = QUEUE_ITEM.insert().values(_item(config, name, settings))
        return int(self.store.execute(row.returning(ITEM.id))[0][0])

    def sweep(
        self, name: str, axes: Mapping[str, Sequence[Any]], configs: Sequence[tuple[Any, Any]]
    ) -> tuple[int, bool]:
        """Queue all runs of a sweep, or find a sweep with the same axes and configurations.

        `configs` are (settings of the point, configuration). Returns the sweep's key and whether
        it is new.
        """
        items = [
            _item(config, f"{name}-{number}", settings)
            for number, (settings, config) in enumerate(configs, start=1)
        ]
        spec = digest([dict(axes), [item["config_hash"] for item in items]])
        with self.store.transaction() as conn:
            old = conn.scalar(select(SWEEP.c.id).filter_by(spec_hash=spec))
            if old is not None:
                return old, False
            values = {
                "uid": str(uuid4()),
                "name": name,
                "created_at": now_iso(),
                "spec_hash": spec,
                "axes": dict(axes),
            }
            key = conn.execute(SWEEP.insert().returning(SWEEP.c.id), values).scalar_one()
            for item in items:
                conn.execute(QUEUE_ITEM.insert(), item | {"sweep_id": key})
            return key, True

    def take(self, sweep: int | None = None) -> Row[Any] | None:
        """Lease the next item and return its row, or None; the lease of a dead worker is void."""
        now = time.time()
        query = select(QUEUE_ITEM).where(ITEM.state.in_(("queued", "leased"))).order_by(ITEM.id)
        if sweep is not None:
            query = query.filter_by(sweep_id=sweep)
        lease = {"state": "leased", "lease_owner": owner(), "lease_until": now + LEASE_S}
        with self.store.transaction() as conn:
            for row in conn.execute(query).all():
                if row.state == "queued" or _is_void(row.lease_owner, not row.lease_until >= now):
                    item = QUEUE_ITEM.update().filter_by(id=row.id).values(lease)
                    return conn.execute(item.returning(*ITEM)).one()
        return None

    def renew(self, item: int) -> None:
        self._change(item, lease_until=time.time() + LEASE_S)

    def finish(self, item: int, state: str, *, note: str = "", **changes: Any) -> None:
        """Record the outcome: done, failed, skipped, cancelled, or queued again."""
        self._change(item, state=state, note=note, lease_until=0.0, **changes)

    def requeue(self, state: str, sweep: int | None = None, item: int | None = None) -> int:
        """Queue failed or skipped items again, and return their number.

        `sweep` or `item` limits them. Skipped items are trained this time.
        """
        keys = {"sweep_id": sweep, "id": item}
        limits = {name: key for name, key in keys.items() if key is not None}
        items = QUEUE_ITEM.update().filter_by(state=state, **limits)
        if state == "skipped":
            items = items.values(run_id=None, note=ANYWAY)
        return len(self.store.execute(items.values(state="queued").returning(ITEM.id)))

    def repeats(self, item: Row[Any]) -> Row[Any] | None:
        """Return the completed run that a new item of a sweep would repeat, or None."""
        if item.sweep_id is None or item.run_id is not None or item.note == ANYWAY:
            return None
        same = {"config_hash": item.config_hash, "status": "completed", "deleted_at": None}
        rows = self.store.execute(select(RUN).filter_by(**same).order_by(RUN.c.id))
        return rows[-1] if rows else None

    def attach(self, item: int, run: int) -> None:
        """Record which run an item became, and add the run to the item's sweep."""
        self._change(item, run_id=run)
        self.store.change(run, sweep_id=self.item(item).sweep_id)

    def item(self, item: int) -> Row[Any]:
        """Return an item's row."""
        row: Row[Any] = self.store.execute(select(QUEUE_ITEM).filter_by(id=item))[0]
        return row

    def _change(self, item: int, **values: Any) -> None:
        self.store.execute(QUEUE_ITEM.update().filter_by(id=item).values(values))


def _item(config: Any, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    tree = config_tree(config)
    return {
        "name": name or str(tree.get("name") or ""),
        "state": "queued",
        "created_at": now_iso(),
        "settings": dict(settings),
        "config": tree,
        "config_hash": config_hash(tree),
    }


def owner() -> str:
    """Return the lease owner's id of this process."""
    pid = os.getpid()
    return json.dumps([host_name(), pid, process_start(pid)])


def _is_void(holder: str, expired: bool) -> bool:
    """Return whether a lease's owner is gone; on another host only the age of the lease counts."""
    try:
        host, pid, start = json.loads(holder)
        number = int(pid)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return True
    return not may_live(host, number, str(start)) or (expired and host != host_name())


def points(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of the axes' values, the last axis varying fastest."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
