"""Import runs from another store, or from completions that TRL logged to Parquet."""

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from sqlalchemy import Row, select

from grpo_engine import events as ev
from grpo_tui.experiments.db.connection import open_writer
from grpo_tui.experiments.db.paths import log_file, run_folder
from grpo_tui.experiments.db.tables import ATTEMPT, RUN
from grpo_tui.experiments.db.texts import now_iso
from grpo_tui.experiments.errors import ImportRefusedError, OutsideStoreError, StoreError
from grpo_tui.experiments.purge import purge
from grpo_tui.experiments.reader import StoreReader, grouped
from grpo_tui.experiments.record.writer import RecordedParts, RunWriter
from grpo_tui.experiments.recorded_events import events_after
from grpo_tui.experiments.store import ExperimentStore
from grpo_tui.experiments.values import ENDED, RecordedEvent, RunSummary

Imported = list[tuple[str, str]]
SHORT = re.compile("[0-9a-z]{1,32}")  # it names a folder
MAX_STEPS = 10_000_000
MAX_BYTES = 1 << 30  # of a Parquet file's tables in memory
INTERRUPTED = "the import was interrupted; import the file again"
COPIED = ("created_at", "started_at", "ended_at", "note", "archived", "error")
ELSEWHERE = {"boot": "", "pid_start": ""}  # of an attempt: its process is of no use here
NOT_REWARDS = ("step", "prompt", "completion", "advantage", "reward")


def import_files(
    store: ExperimentStore, files: Sequence[Path], *, name: str = "",
    progress: Callable[[str], None] = lambda _: None,
) -> Imported:  # fmt: skip
    """Import stores and Parquet files; runs that already exist are skipped."""
    for path in files:
        if not path.is_file():
            raise ImportRefusedError(f"there is no file {path}")
    tables = [path for path in files if path.suffix == ".parquet"]
    imported: Imported = []
    for path in files:
        if path not in tables:
            imported += import_store(store, path, progress)
    if tables:
        imported += import_completions(store, tables, name)
    return imported


# -- another store ------------------------------------------------------------------------------


def import_store(
    store: ExperimentStore, path: Path, progress: Callable[[str], None] = lambda _: None
) -> Imported:
    """Import every new run of another store; checkpoints are not copied.

    The other file may be damaged or made to harm: a run is imported whole or not at all.
    """
    if path.resolve() == store.path.resolve():
        raise ImportRefusedError(f"{path} is the current store")
    imported: Imported = []
    refused: list[str] = []
    try:
        with closing(StoreReader(path)) as source:
            for run in source.runs(archived=True, sort="created"):
                try:
                    if _is_new(store, run.uid):
                        progress(f"importing {run.name}: {run.step} steps")
                        imported.append(_copy_run(store, source, run))
                except Exception as error:  # whatever is wrong with it, the others are imported
                    refused.append(f"{run.name} ({type(error).__name__}: {str(error)[:200]})")
    except Exception as error:  # the file is from elsewhere
        kind = "" if isinstance(error, StoreError) else f" ({type(error).__name__})"
        raise ImportRefusedError(f"{path} cannot be imported{kind}: {error}") from error
    if refused:
        raise ImportRefusedError(
            f"{len(refused)} runs of {path} cannot be imported, {len(imported)} were: "
            f"{', '.join(refused[:5])}"
        )
    return imported


def _is_new(store: ExperimentStore, uid: str) -> bool:
    """Whether a run is not in the store; what a killed import left of it is removed."""
    for key, note in store.execute(select(RUN.c.id, RUN.c.note).filter_by(uid=uid)):
        if note != INTERRUPTED:
            return False
        purge(store, key)
    return True


@contextmanager
def _filled(
    store: ExperimentStore, row: Row[Any], attempts: list[dict[str, Any]],
    pages: Iterable[Sequence[RecordedEvent]],
) -> Iterator[None]:  # fmt: skip
    """Fill a new run completely, or remove it; a killed import leaves it marked."""
    store.change(row.id, note=INTERRUPTED)
    try:
        for attempt in attempts:
            store.execute(ATTEMPT.insert().values(run_id=row.id, **ELSEWHERE, **attempt))
        folder, parts = run_folder(store.path, row.short), RecordedParts(row.config)
        last = attempts[-1]["n"] if attempts else 1
        with (
            closing(open_writer(store.path)) as file,
            closing(RunWriter(file, row.id, last, folder, parts)) as writer,
        ):
            for page in pages:
                writer.write(page, limit=30.0)
        yield
    except BaseException:
        purge(store, row.id)
        raise


def _copy_run(store: ExperimentStore, source: StoreReader, run: RunSummary) -> tuple[str, str]:
    if not SHORT.fullmatch(run.id):
        raise ImportRefusedError(f"its id is {run.id!r}")
    detail = source.run(run.key)
    _refuse_damaged(source, run)
    row = store.create_run(
        detail.config, name=run.name, uid=run.uid, status="imported",
        code_version=run.code_version, tags=run.tags,
    )  # fmt: skip
    attempts = [
        asdict(attempt) | {"ended_at": attempt.ended_at or attempt.heartbeat}
        for attempt in detail.attempts
    ]
    with _filled(store, row, attempts, _pages(source, run.key)):
        _refuse_damaged(source, run)
        values = {name: getattr(run, name) for name in COPIED}
        values["status"] = run.status if run.status in ENDED else "imported"
        store.execute(RUN.update().filter_by(id=row.id).values(values))
        with suppress(OutsideStoreError):  # a log from elsewhere is left out
            log = log_file(run_folder(source.path, run.id))
            if log.is_file() and not log.is_symlink():
                shutil.copyfile(log, log_file(run_folder(store.path, row.short)))
    return row.short, run.name


def _refuse_damaged(source: StoreReader, run: RunSummary) -> None:
    if damage := source.damaged().get(run.id):
        raise ImportRefusedError(damage)


def _pages(source: StoreReader, run: int) -> Iterator[Sequence[RecordedEvent]]:
    after = 0
    while page := events_after(source, run, after):
        for item in page:
            if not 0 <= item.event.step <= MAX_STEPS:
                raise ImportRefusedError(f"it has an event of step {item.event.step}")
        yield page
        after = page[-1].seq


# -- TRL's completions --------------------------------------------------------------------------


def import_completions(store: ExperimentStore, files: Sequence[Path], name: str = "") -> Imported:
    """Make one run of TRL's completion tables: step, prompt, completion, rewards, advantage."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    text = digest.hexdigest()
    uid = f"{text[:8]}-{text[8:12]}-8{text[13:16]}-8{text[17:20]}-{text[20:32]}"
    if not _is_new(store, uid):
        return []
    try:
        rows = sorted(
            (row for path in files for row in _table(path)), key=lambda row: int(row["step"])
        )
    except (TypeError, ValueError) as error:
        if isinstance(error, StoreError):
            raise
        raise ImportRefusedError(
            f"the column step has values that are no steps: {error}"
        ) from error
    if not rows:
        raise ImportRefusedError(f"{files[0]} holds no completions")
    title = name or files[0].parent.name or files[0].stem
    config = {"name": title, "steps": int(rows[-1]["step"]), "task": {"name": files[0].name}}
    row = store.create_run(config, name=title, uid=uid, status="imported", tags=["trl"])
    now = now_iso()
    attempt = {
        "n": 1, "from_step": 0, "host": "TRL", "pid": 0, "started_at": now, "heartbeat": now,
        "progress_at": now, "ended_at": now, "cause": "imported",
    }  # fmt: skip
    with _filled(store, row, [attempt], _steps(rows)):
        store.change(row.id, note="")
    return [(row.short, title)]


def _table(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportRefusedError(
            "reading Parquet needs the optional package pyarrow: pip install 'grpo-tui[parquet]'"
        ) from error
    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
    except (OSError, ValueError, NotImplementedError) as error:
        raise ImportRefusedError(f"{path} is not Parquet: {error}") from error
    missing = [name for name in ("step", "prompt", "completion") if name not in names]
    if missing:
        raise ImportRefusedError(
            f"{path} lacks the columns {', '.join(missing)}; TRL's completion tables have "
            "step, prompt, completion, one column per reward, advantage"
        )
    rows: list[dict[str, Any]] = []
    size = 0
    for batch in file.iter_batches(batch_size=64):  # a small file may hold very much
        size += batch.nbytes
        if size > MAX_BYTES:
            raise ImportRefusedError(f"{path} holds more than {MAX_BYTES / 1e9:.1f} GB of text")
        rows += batch.to_pylist()
    return rows


def _steps(rows: list[dict[str, Any]]) -> Iterator[list[RecordedEvent]]:
    """Yield the events of each step; rows of a step with the same prompt form a group."""
    seq = 0
    for step, step_rows in grouped((int(row["step"]), row) for row in rows).items():
        by_prompt = grouped((_text(row["prompt"]), row) for row in step_rows)
        groups = [_group(index, *item) for index, item in enumerate(by_prompt.items())]
        events: list[ev.Event] = [ev.GroupScored(step=step, group=group) for group in groups]
        metrics = _metrics(groups)
        events.append(ev.StepFinished(step=step, metrics=metrics, tokens=0, elapsed=math.nan))
        yield [
            RecordedEvent(seq + number, 0.0, event) for number, event in enumerate(events, start=1)
        ]
        seq += len(events)


def _group(index: int, prompt: str, rows: list[dict[str, Any]]) -> ev.Group:
    rollouts = tuple(_completion(index, row) for index, row in enumerate(rows))
    rewards = [item.reward for item in rollouts if item.reward is not None]
    mean, std = (fmean(rewards) if rewards else None), ev.reward_std(rewards)
    key = hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return ev.Group(
        index=index, origin="train", example_key=key, prompt_text=prompt, prompt_ids=(),
        prompt_hash=key, target="", rollouts=rollouts, reward_mean=mean, reward_std=std,
        no_signal="all answers scored the same" if std == 0 else "",
    )  # fmt: skip


def _completion(index: int, row: dict[str, Any]) -> ev.Completion:
    rewards = tuple(
        ev.RewardValue(name=name, value=_applicable(value), weight=1.0)
        for name, value in row.items()
        if name not in NOT_REWARDS and (value is None or isinstance(value, int | float))
    )
    advantage = row.get("advantage")
    return ev.Completion(
        index=index, ids=(), text=_text(row["completion"]), finish="stop", rewards=rewards,
        reward=ev.total_reward([r.value for r in rewards], [r.weight for r in rewards]),
        advantage=None if advantage is None else float(advantage), sampler_logprobs=(),
    )  # fmt: skip


def _applicable(value: float | None) -> float | None:
    """Treat NaN, which TRL writes where a reward function does not apply, as missing."""
    return None if value is None or math.isnan(value) else float(value)


def _text(value: Any) -> str:
    """Return a prompt or completion as text; messages are joined with their roles."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        if len(value) == 1 and value[0].get("role") == "assistant":
            return str(value[0].get("content", ""))
        return "\n".join(f"{item.get('role', '')}: {item.get('content', '')}" for item in value)
    return json.dumps(value, default=str)


def _metrics(groups: Sequence[ev.Group]) -> dict[str, float]:
    means = [group.reward_mean for group in groups if group.reward_mean is not None]
    stds = [group.reward_std for group in groups if group.reward_std is not None]
    metrics: dict[str, float] = {}
    if means:
        metrics["reward"] = fmean(means)
    if stds:
        metrics["reward_std"] = fmean(stds)
        metrics["frac_reward_zero_std"] = fmean(std == 0 for std in stds)
    rewards = (reward for group in groups for item in group.rollouts for reward in item.rewards)
    by_name = grouped((item.name, item.value) for item in rewards if item.value is not None)
    for name, values in by_name.items():
        metrics[f"rewards/{name}/mean"] = fmean(values)
    return metrics
