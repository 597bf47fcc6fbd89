"""StoreReader: all that the program reads from a store."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    Select,
    String,
    case,
    func,
    literal,
    not_,
    null,
    select,
    type_coerce,
)

from grpo_engine import events as ev
from grpo_engine.config.conditions import OPERATORS, Term
from grpo_engine.errors import nearest, quoted
from grpo_engine.metrics import spec
from grpo_tui.experiments import values as v
from grpo_tui.experiments.db.configs import flat
from grpo_tui.experiments.db.paths import run_folder, tokens_file
from grpo_tui.experiments.db.spilled import Spilled, runs_waiting, spilled
from grpo_tui.experiments.db.tables import (
    ALERT,
    ATTEMPT,
    CONTROL,
    EVALUATION,
    EVALUATION_SAMPLE,
    EVENT,
    METRIC,
    METRIC_KEY,
    METRIC_SUMMARY,
    QUEUE_ITEM,
    ROLLOUT,
    ROLLOUT_GROUP,
    ROLLOUT_REWARD,
    RUN,
    RUN_LIVE,
    RUN_PARAM,
    RUN_TAG,
    STEP,
    SWEEP,
    UPDATE_PASS,
)
from grpo_tui.experiments.db.texts import seconds
from grpo_tui.experiments.errors import (
    NothingStoredError,
    OtherTrainerError,
    OutsideStoreError,
    RunActiveError,
    RunNotFoundError,
)
from grpo_tui.experiments.read.columns import (
    Column,
    Names,
    compile_filter,
    parse_column,
)
from grpo_tui.experiments.read.connection import (
    DELETED_SCHEMA,
    ORIGIN_SCHEMA,
    Connection,
    among,
    as_view,
)
from grpo_tui.experiments.read.status import Derived, derive
from grpo_tui.experiments.starts import start_step

DEFAULT_METRICS = (
    "reward",
    "kl",
    "clip_ratio/region_mean",
    "tokens_per_second",
    "completions/mean_length",
    "entropy",
    "eval/accuracy",
    "eval/greedy/accuracy",
)
LAST = 2**62  # later than any step
REPLY_S = 5.0

PARENT = RUN.alias("parent")
GROUP = ROLLOUT_GROUP.c
OPEN = QUEUE_ITEM.c.state.in_(("queued", "leased"))
CAN_RETURN = (RUN.c.deleted_at.is_not(None), RUN.c.purging == 0)
NOTHING: Mapping[str, Any] = MappingProxyType({})


class LazyMetrics(Mapping[str, v.MetricSummary]):
    """The metrics of a run, converted on access: a list may have ten thousand runs."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Mapping[str, Any]) -> None:
        self._rows = rows

    def __getitem__(self, key: str) -> v.MetricSummary:
        return as_view(v.MetricSummary, self._rows[key], key=key, direction=spec(key).direction)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


# What to do instead with a run that another program trained, by what was asked.
AT_OTHERS = {
    "resume": "it can be continued only there",
    "clone": "its settings are no settings of this program; begin from a preset, "
    "or from TRL's with `grpo-tui config init --from-trl FILE`",
    "load": "there is no checkpoint; `grpo-tui eval FOLDER` takes the model that it saved",
}


class StoreReader(Connection):
    """Reads the store at `path`, one thread at a time; never migrates and never writes.

    Runs are identified by `RunSummary.key`, groups by `GroupView.key`.
    """

    # -- runs -----------------------------------------------------------------------------------

    def runs(
        self,
        filter: str = "",
        *,
        sort: str = "-created",
        columns: Sequence[str] = (),
        archived: bool = False,
        limit: int | None = None,
        metrics: Sequence[str] = DEFAULT_METRICS,
        keys: Sequence[int] | None = None,
    ) -> tuple[v.RunSummary, ...]:
        """List runs; `metrics` are the keys to summarise, `columns` are in the column language."""
        names = Names(self.column)
        extra = [parse_column(text, names) for text in columns if text.strip()]
        query = (
            self.select(
                v.RunSummary,
                RUN,
                *(column.value.label(f"{n}") for n, column in enumerate(extra)),
                null().label("sweep_id"),  # read apart: the index of the list lacks it
            )
            .where(self.not_deleted(), compile_filter(filter, names))
            .order_by(*_order(sort, names))
            .limit(limit)
        )
        if not archived:
            query = query.where(RUN.c.archived == 0)
        if keys is not None:
            query = query.where(RUN.c.id.in_(keys))
        waiting = self.waiting()
        statuses = self._derive_active(waiting)
        return self._summaries(self.rows(query), extra, statuses, waiting, metrics)

    def active(self) -> tuple[v.RunSummary, ...]:
        """The runs that a process is training, the newest first."""
        stored = select(RUN.c.id).where(RUN.c.status.in_(("running", "paused")))
        keys = self.column(stored.where(self.not_deleted()))
        return tuple(run for run in self.runs(keys=keys, metrics=()) if run.active) if keys else ()

    def waiting(self) -> dict[int, Spilled]:
        """Return the spilled events by run."""
        files = {short: spilled(self.path, short) for short in runs_waiting(self.path)}
        query = select(RUN.c.id, RUN.c.short).where(RUN.c.short.in_(files), self.not_deleted())
        return {run: files[short] for run, short in self.rows(query) if files[short].events}

    def _derive_active(self, waiting: Mapping[int, Spilled]) -> dict[int, Derived]:
        """Derive the true status of each run that is stored as active, or whose end is spilled."""
        keys = (ATTEMPT.c.run_id, ATTEMPT.c.boot, ATTEMPT.c.pid_start)
        rows = self.rows(
            self.select(v.AttemptView, ATTEMPT, *keys, RUN.c.status, RUN.c.elapsed, RUN.c.step)
            .join_from(RUN, ATTEMPT)
            .where(RUN.c.status.in_(("running", "paused")))
            .order_by(ATTEMPT.c.n)  # the last attempt of a run wins below
        )
        statuses = {row.run_id: derive(row, time.time()) for row in rows}
        statuses |= {run: (spill.status, None) for run, spill in waiting.items() if spill.status}
        self.file.create_function(
            "derived", 2, lambda run, status: statuses.get(run, (status, None))[0]
        )
        return statuses

    def _summaries(
        self,
        rows: Sequence[Any],
        columns: Sequence[Column],
        statuses: Mapping[int, Derived],
        waiting: Mapping[int, Spilled],
        metrics: Sequence[str],
    ) -> tuple[v.RunSummary, ...]:
        keys, labels = [row.key for row in rows], [column.label for column in columns]
        tag = RUN_TAG.c
        tags = grouped(self.rows(select(tag.run_id, tag.tag).where(among(tag.run_id, keys))))
        metrics_of = self.metric_summaries(keys, metrics)
        parents = self.pairs(
            select(RUN.c.id, PARENT.c.short)
            .join_from(RUN, PARENT, PARENT.c.id == RUN.c.parent_id)
            .where(self.not_deleted(PARENT))
        )
        run = ATTEMPT.c.run_id
        numbers = select(run, func.max(ATTEMPT.c.n)).where(among(run, keys)).group_by(run)
        attempts = self.pairs(numbers)
        sweeps = {}
        if self.schema >= 3:
            query = select(RUN.c.id, SWEEP.c.name, SWEEP.c.id).join_from(RUN, SWEEP)
            sweeps = {run: (name, key) for run, name, key in self.rows(query)}
        summaries = []
        for row in rows:
            status, since = statuses.get(row.key, (row.status, None))
            spill, (sweep, sweep_id) = waiting.get(row.key), sweeps.get(row.key, (None, None))
            summaries.append(
                as_view(
                    v.RunSummary,
                    row,
                    status=status,
                    status_since=since,
                    waiting=str(spill or ""),
                    step=max(row.step, spill.step if spill else 0),
                    attempts=attempts.get(row.key, 0),
                    tags=tuple(tags.get(row.key, ())),
                    parent=parents.get(row.key),
                    sweep=sweep,
                    sweep_id=sweep_id,
                    metrics=metrics_of.get(row.key, NOTHING),
                    columns=dict(zip(labels, row, strict=False)) if labels else NOTHING,
                )
            )
        return tuple(summaries)

    def metric_summaries(
        self, runs: Sequence[int], names: Sequence[str]
    ) -> dict[int, Mapping[str, v.MetricSummary]]:
        """Return the summaries of these metrics by run; runs that have none are left out."""
        key = METRIC_KEY.c
        keys = self.pairs(select(key.id, key.name).where(key.name.in_(names)))
        columns = METRIC_SUMMARY.c
        query = self.select(v.MetricSummary, METRIC_SUMMARY, columns.run_id, columns.key_id)
        rows = self.rows(query.where(among(columns.run_id, runs), columns.key_id.in_(keys)))
        by_run = grouped((row[0], (keys[row[1]], row)) for row in rows)
        return {run: LazyMetrics(dict(named)) for run, named in by_run.items()}

    def run(self, run: int) -> v.RunDetail:
        summaries = self.runs(archived=True, keys=[run], metrics=self.metric_keys(run))
        origin = RUN.c.origin if self.schema >= ORIGIN_SCHEMA else literal("").label("origin")
        row = self.row(select(RUN.c.config, RUN.c.versions, origin).filter_by(id=run))
        if not summaries or row is None:
            raise RunNotFoundError(f"run {run} is no longer in the store")
        return v.RunDetail(
            summary=summaries[0],
            config=row.config,
            settings=flat(row.config) | self._last(run, ev.ModelLoaded, "settled"),
            versions=row.versions,
            attempts=self.attempts(run),
            folder=str(run_folder(self.path, summaries[0].id)),
            origin=row.origin,
            descent=self._descent(run),
        )

    def imports(self) -> dict[int, v.RunFiles]:
        """The runs that were read from files of other trainers, newest first, with these files."""
        rows = self.rows(
            select(RUN.c.id, RUN.c.config)
            .join(RUN_PARAM, RUN_PARAM.c.run_id == RUN.c.id)
            .where(RUN_PARAM.c.path == "trainer.name", self.not_deleted())
            .order_by(RUN.c.id.desc())
        )
        files = {row.id: v.files_of(row.config) for row in rows}
        return {run: of_run for run, of_run in files.items() if of_run}

    def functions(self, run: int, step: int = LAST) -> dict[str, Any]:
        """Return the sources of the user's functions in the run's recipe, by choice."""
        return self._last(run, ev.FunctionsLoaded, "sources", EVENT.c.step < step)

    def code(self, run: int) -> dict[str, Any]:
        """Return the versions of the folder that the run began in and of its functions' files."""
        return self._last(run, ev.RunStarted, "code")

    def _last(
        self, run: int, kind: type, field: str, *where: ColumnElement[bool]
    ) -> dict[str, Any]:
        """Return a field of the last event of a kind."""
        query = select(EVENT.c.payload).where(*where).order_by(EVENT.c.seq.desc())
        query = query.filter_by(run_id=run, kind=kind.__name__, hidden=False)
        event = self.value(query.limit(1))
        return dict(getattr(event, field)) if isinstance(event, kind) else {}

    def _descent(self, run: int) -> str:
        """Describe a run's parent: the checkpoint that it began from, or its settings alone."""
        query = select(PARENT.c.name).join_from(RUN, PARENT, PARENT.c.id == RUN.c.parent_id)
        parent = self.value(query.where(RUN.c.id == run, self.not_deleted(PARENT)))
        if parent is None:
            return ""
        step = start_step(self.settings(run))
        return f"settings of {parent}" if step is None else f"step {step} of {parent}"

    def settings(self, run: int, *, in_force: bool = False) -> dict[str, Any]:
        """Return a run's settings by path; `in_force` adds the values that the recipe sets."""
        value: ColumnElement[Any] = RUN_PARAM.c.value
        if in_force:
            stored = type_coerce(value, String)
            by_recipe = func.in_force(RUN.c.config, RUN_PARAM.c.path)
            value = type_coerce(
                func.coalesce(func.nullif(stored, "null"), by_recipe, stored), value.type
            )
        query = select(RUN_PARAM.c.path, value).join_from(RUN_PARAM, RUN).filter_by(id=run)
        return self.pairs(query)

    def differing_settings(self, runs: Iterable[int]) -> dict[int | None, list[str]]:
        """Return the settings that differ among these runs, by sweep (None for no sweep)."""
        sweep = RUN.c.sweep_id if self.schema >= 3 else null()
        query = (
            select(sweep, RUN_PARAM.c.path)
            .join_from(RUN_PARAM, RUN)
            .where(among(RUN_PARAM.c.run_id, runs))
            .group_by(sweep, RUN_PARAM.c.path)
            .having(func.count(RUN_PARAM.c.value.distinct()) > 1)
        )
        return grouped(self.rows(query))

    def attempts(self, run: int) -> tuple[v.AttemptView, ...]:
        """Return the attempts at a run, oldest first."""
        return self.views(v.AttemptView, ATTEMPT, ATTEMPT.c.n, run_id=run)

    # -- resolving names ------------------------------------------------------------------------

    def trained(self, ref: str, action: str) -> v.RunDetail:
        """Find a run by its name or id; raise if another program trained it, for this action."""
        detail = self.run(self.resolve(ref).key)
        check_trainer(detail.summary.title, detail.config, action)
        return detail

    def resumable(self, ref: str) -> v.RunDetail:
        """Find a run by its name or id; raise if it is still in progress."""
        detail = self.trained(ref, "resume")
        check_ended(detail.summary)
        return detail

    def resolve(self, ref: str) -> v.RunSummary:
        """Find a run by id, name, unique prefix of either, or `@last`."""
        if ref == "@last":
            for run in self.runs(archived=True, limit=1):
                return run
        query = select(RUN.c.id, RUN.c.short, RUN.c.uid, RUN.c.name)
        rows = self.rows(query.where(self.not_deleted()))
        matches = (
            [row for row in rows if ref in (row.short, row.uid)]
            or [row for row in rows if ref == row.name]
            or [row for row in rows if ref and any(name.startswith(ref) for name in row[1:])]
        )
        if len(matches) == 1:
            return self.runs(archived=True, keys=[matches[0].id])[0]
        if matches:
            first = ", ".join(f"{row.short} ({row.name})" for row in matches[:5])
            raise RunNotFoundError(
                f"{quoted(ref)} could be {len(matches)} runs: {first}; type more of it"
            )
        names = ["@last", *(name for row in rows for name in (row.short, row.name))]
        raise RunNotFoundError(
            f"no run is called {quoted(ref)} in {self.path}{nearest(ref, names)}; "
            "`grpo-tui runs --all` lists them"
        )

    def deleted(self) -> int:
        """Return how many runs are deleted and can be brought back."""
        if self.schema < DELETED_SCHEMA:
            return 0
        return int(self.value(select(func.count()).where(*CAN_RETURN)))

    # -- metrics and steps ----------------------------------------------------------------------

    def metric_keys(self, run: int) -> tuple[str, ...]:
        """Return a run's metrics in order of first appearance."""
        query = (
            select(METRIC_KEY.c.name).join_from(METRIC_KEY, METRIC_SUMMARY).filter_by(run_id=run)
        )
        return tuple(self.column(query.order_by(METRIC_KEY.c.id)))

    def metric_series(
        self, run: int, key: str, *, after: int = -1, until: int | None = None
    ) -> v.MetricSeries:
        query = _values(run, key).where(METRIC.c.step > after)
        if until is not None:
            query = query.where(METRIC.c.step <= until)
        rows = self.rows(query.order_by(METRIC.c.step))
        # zip(*rows) takes as long as the query.
        steps, values = (tuple(row[column] for row in rows) for column in (0, 1))
        return v.MetricSeries(run=run, key=key, steps=steps, values=values)

    def value_at(self, run: int, key: str, step: int) -> tuple[float | None, int | None]:
        """Return a metric's last finite value up to a step, and its step."""
        finite = (METRIC.c.step <= step, METRIC.c.value.is_not(None))
        query = _values(run, key).where(*finite).order_by(METRIC.c.step.desc())
        row = self.row(query.limit(1))
        return (row.value, row.step) if row else (None, None)

    def max_passes(self, run: int) -> int:
        """Return the largest number of passes over a step's rollouts."""
        last = func.max(UPDATE_PASS.c["pass"])
        return int(self.value(select(last).filter_by(run_id=run)) or 0)

    def steps(self, run: int, *, after: int = -1) -> Sequence[Any]:
        """Return (step, tokens, elapsed, at, attempt) of each finished step beyond `after`."""
        end = STEP.c
        query = select(end.step, end.tokens, end.elapsed, end.at, end.attempt)
        query = query.filter_by(run_id=run, hidden=False).where(end.step > after)
        return self.rows(query.order_by(end.step))

    def step_within(self, run: int, column: str, limit: float) -> int:
        """Return the last step within a limit of a column; -1 if there is none."""
        if column == "step":
            return int(limit)
        query = select(func.max(STEP.c.step)).filter_by(run_id=run, hidden=False)
        step = self.value(query.where(STEP.c[column] <= limit))
        return -1 if step is None else step

    def alerts(self, run: int) -> tuple[v.AlertView, ...]:
        """Return the alerts of a run, latest first."""
        order = (ALERT.c.last_step.desc(), ALERT.c.id.desc())
        return self.views(v.AlertView, ALERT, *order, run_id=run)

    def muted_alerts(self, run: int) -> frozenset[str]:
        return frozenset(alert.rule for alert in self.alerts(run) if alert.muted)

    def evaluations(self, run: int) -> tuple[v.EvaluationView, ...]:
        """Return the held-out evaluations of a run, oldest first, without their samples."""
        order = EVALUATION.c.seq
        return self.views(v.EvaluationView, EVALUATION, order, run_id=run, hidden=False)

    def samples(self, evaluation: int) -> tuple[ev.EvaluationSample, ...]:
        """Return the results of an evaluation by problem."""
        order = EVALUATION_SAMPLE.c.position
        return self.views(ev.EvaluationSample, EVALUATION_SAMPLE, order, evaluation_id=evaluation)

    def benchmarks(self, run: int) -> tuple[ev.BenchmarksMeasured, ...]:
        """Return what standard benchmarks measured of a run, oldest first."""
        query = select(EVENT.c.payload).where(EVENT.c.kind == ev.BenchmarksMeasured.__name__)
        events = self.column(query.filter_by(run_id=run, hidden=False).order_by(EVENT.c.seq))
        return tuple(event for event in events if isinstance(event, ev.BenchmarksMeasured))

    # -- groups and rollouts --------------------------------------------------------------------

    def group_steps(self, run: int, origin: str = "train") -> tuple[int, ...]:
        query = select(GROUP.step).distinct()
        query = query.filter_by(run_id=run, hidden=False, origin=origin)
        return tuple(self.column(query.order_by(GROUP.step)))

    def groups(
        self, run: int, *, after: int = 0, limit: int | None = None, **columns: Any
    ) -> tuple[v.GroupView, ...]:
        """Return the groups of a run with these values of their columns, such as a step.

        Pages are in the order of recording: pass the last group's key as `after`.
        """
        query = self.select(v.GroupView, ROLLOUT_GROUP).where(GROUP.id > after).limit(limit)
        order = (GROUP.step, GROUP.origin.desc(), GROUP.idx, GROUP.seq)
        query = query.order_by(*(order if limit is None else [GROUP.id]))
        return self._with_rollouts(query.filter_by(run_id=run, hidden=False, **columns))

    def last_group(self, run: int, example_key: str, step: int) -> v.GroupView | None:
        """Return the latest rollouts of an example up to a step."""
        query = self.select(v.GroupView, ROLLOUT_GROUP).where(GROUP.step <= step)
        query = query.filter_by(run_id=run, hidden=False, example_key=example_key)
        latest = query.order_by(GROUP.step.desc(), GROUP.id.desc()).limit(1)
        return next(iter(self._with_rollouts(latest)), None)

    def groups_by_key(self, keys: Iterable[int]) -> tuple[v.GroupView, ...]:
        """Return groups with their rollouts, in the order of their keys."""
        query = self.select(v.GroupView, ROLLOUT_GROUP).where(among(GROUP.id, keys))
        return self._with_rollouts(query.order_by(GROUP.id))

    def prompt_means(
        self, run: int, origin: str, *, greedy: bool, limit: int, rule: Term | None = None
    ) -> tuple[v.PromptMean, ...]:
        """Return prompts by their share of right answers over the run, the lowest first.

        Of equal ones, and where no rule says which answers are right, by their mean reward.
        """
        mean, newest = func.avg(GROUP.reward_mean), func.max(GROUP.id)
        score, function = ROLLOUT_REWARD.c.value, rule.key if rule else None
        accepted = cast(Any, OPERATORS[rule.op if rule else ">="])  # of a column, not a number
        counts = (
            select(
                ROLLOUT.c.group_id,
                func.sum(case((accepted(score, float(rule.value)), 1), else_=0)).label("right")
                if rule
                else null().label("right"),
                func.count(score).label("judged"),
            )
            .join_from(ROLLOUT, ROLLOUT_REWARD)
            .where(ROLLOUT.c.run_id == run, ROLLOUT_REWARD.c.function == function)
            .group_by(ROLLOUT.c.group_id)
            .subquery()
        )
        right, judged = func.sum(counts.c.right), func.sum(counts.c.judged)
        temperature = func.json_extract(GROUP.sampling, "$.temperature")
        rows = self.rows(  # SQLite takes step and index from the row with the newest id
            select(
                GROUP.prompt_text,
                GROUP.step,
                GROUP.idx.label("group_index"),
                mean.label("mean"),
                func.count().label("visits"),
                newest.label("group"),
                right.label("right"),
                judged.label("judged"),
            )
            .join_from(ROLLOUT_GROUP, counts, GROUP.id == counts.c.group_id, isouter=True)
            .where((func.coalesce(temperature, 1) == 0) == greedy)
            .filter_by(run_id=run, hidden=False, origin=origin)
            .group_by(GROUP.prompt_hash)
            .order_by(
                (right * 1.0 / func.nullif(judged, 0)).asc().nulls_last(),
                mean.asc().nulls_last(),
                newest.desc(),
            )
            .limit(limit)
        )
        return tuple(as_view(v.PromptMean, row, origin=origin) for row in rows)

    def extreme_rollout(self, run: int, origin: str, *, lowest: bool) -> v.ExtremeRollout | None:
        """Return the newest rollout with the lowest or the highest reward of the run."""
        reward = ROLLOUT.c.reward
        query = (
            select(
                GROUP.step,
                GROUP.idx.label("group_index"),
                ROLLOUT.c.idx.label("index"),
                reward,
                func.count().over(partition_by=reward).label("count"),
            )
            .join_from(ROLLOUT_GROUP, ROLLOUT)
            .where(GROUP.run_id == run, GROUP.hidden == 0, GROUP.origin == origin)
            .where(reward.is_not(None))
            .order_by(reward.asc() if lowest else reward.desc(), ROLLOUT.c.id.desc())
            .limit(1)
        )
        return next((as_view(v.ExtremeRollout, row) for row in self.rows(query)), None)

    def scores(self, run: int) -> dict[str, dict[str, list[float | None]]]:
        """Return each function's scores of the latest rollouts of each training problem.

        Rollouts on which the function failed are left out.
        """
        query = (
            self.select(ev.RewardValue, ROLLOUT_REWARD, GROUP.example_key, GROUP.step)
            .join_from(ROLLOUT_GROUP, ROLLOUT)
            .join(ROLLOUT_REWARD)
            .where(GROUP.run_id == run, GROUP.hidden == 0, GROUP.origin == "train")
            .order_by(GROUP.step, GROUP.id, ROLLOUT.c.idx)
        )
        scores: dict[tuple[str, int], dict[str, list[float | None]]] = {}
        for row in self.rows(query):
            reward = as_view(ev.RewardValue, row)
            values = scores.setdefault((row.example_key, row.step), {}).setdefault(reward.name, [])
            if not reward.missing:
                values.append(reward.value)
        # The last step of an example replaces earlier ones.
        return {example: of_step for (example, _), of_step in scores.items()}

    def examples(self, run: int, origin: str, *, since: int = 0) -> dict[str, tuple[str, str]]:
        """Return prompt and target of each example with groups of this origin, oldest first."""
        first = func.min(GROUP.id)  # SQLite takes the other columns from the same row
        rows = self.rows(
            select(GROUP.example_key, GROUP.prompt_text, GROUP.target, first)
            .where(GROUP.step >= since)
            .filter_by(run_id=run, hidden=False, origin=origin)
            .group_by(GROUP.example_key)
            .order_by(first)
        )
        return {key: (prompt, target) for key, prompt, target, _ in rows}

    def tokens(self, run: int, group: int) -> v.TokenView | None:
        """Return the token numbers of a group; None if they were not recorded."""
        return self.blobs(run, [group]).get(group)

    def blobs(self, run: int, groups: Sequence[int]) -> dict[int, v.TokenView]:
        """Return the recorded token numbers by group; none if the store names a file elsewhere."""
        from grpo_tui.experiments.db.tokens import merged, read_blobs  # NumPy

        query = select(GROUP.id, GROUP.seq, GROUP.tokens_seq).where(among(GROUP.id, groups))
        rows = self.rows(query.filter_by(run_id=run, has_tokens=True))
        try:
            path = tokens_file(run_folder(self.path, self.short_id(run)))
        except OutsideStoreError:
            return {}
        blobs = read_blobs(path, [seq for row in rows for seq in row[1:] if seq])
        return {
            row.id: merged(blobs[row.seq], blobs.get(row.tokens_seq, v.TokenView()))
            for row in rows
            if row.seq in blobs
        }

    def _with_rollouts(self, query: Select[Any]) -> tuple[v.GroupView, ...]:
        groups, columns, reward = self.rows(query), ROLLOUT.c, ROLLOUT_REWARD.c
        query = self.select(v.RolloutView, ROLLOUT)
        query = query.where(among(columns.group_id, [row.key for row in groups]))
        rollouts = self.rows(query.order_by(columns.group_id, columns.idx))
        query = self.select(ev.RewardValue, ROLLOUT_REWARD, reward.rollout_id)
        query = query.where(among(reward.rollout_id, [row.key for row in rollouts]))
        rewards = grouped(
            (row.rollout_id, as_view(ev.RewardValue, row))
            for row in self.rows(query.order_by(reward.rollout_id, reward.position))
        )
        views = grouped(
            (row.group, as_view(v.RolloutView, row, rewards=tuple(rewards.get(row.key, ()))))
            for row in rollouts
        )
        return tuple(
            as_view(v.GroupView, row, rollouts=tuple(views.get(row.key, ()))) for row in groups
        )

    # -- the board, requests and the queue ------------------------------------------------------

    def board(self, run: int) -> v.BoardView | None:
        """Return the board that the run's process wrote last."""
        board = self.value(select(RUN_LIVE.c.board).filter_by(run_id=run))
        return cast("v.BoardView", ev.decode(v.BoardView, board)) if board else None

    def control(self, request: int) -> v.ControlView:
        """Return a request and its outcome: asked, taken, expired, or no answer."""
        row = self.row(select(CONTROL).filter_by(id=request))
        if row is None:
            raise NothingStoredError(f"there is no request {request}")
        state: v.ControlState = "asked"
        message = "asked"
        if row.outcome == "done":
            state, message = "taken", "accepted, waiting for the next safe point"
        elif row.outcome:
            state, message = "expired", "not accepted, the run had ended or restarted"
        elif time.time() - seconds(row.asked_at) > REPLY_S:
            state, message = "no answer", "no answer; `grpo-tui runs` says whether it still runs"
        return v.ControlView(state=state, message=f"{row.verb.replace('_', ' ')}: {message}")

    def queue(self, *, ended: int = 0) -> tuple[v.QueueItemView, ...]:
        """Return the waiting and active runs in order, then the last `ended` that are neither."""
        if self.schema < 3:
            return ()
        closed = self._items(not_(OPEN), QUEUE_ITEM.c.id.desc(), ended)
        return self._items(OPEN, QUEUE_ITEM.c.id) + closed

    def _items(
        self, condition: ColumnElement[bool], order: ColumnElement[Any], limit: int | None = None
    ) -> tuple[v.QueueItemView, ...]:
        names = (SWEEP.c.name.label("sweep"), RUN.c.short.label("run"))
        query = (
            self.select(v.QueueItemView, QUEUE_ITEM, *names)
            .outerjoin_from(QUEUE_ITEM, SWEEP)
            .outerjoin(RUN, (RUN.c.id == QUEUE_ITEM.c.run_id) & self.not_deleted())
        )
        rows = self.rows(query.where(condition).order_by(order).limit(limit))
        return tuple(as_view(v.QueueItemView, row) for row in rows)

    def sweep(self, key: int) -> tuple[v.QueueItemView, ...]:
        """Return the runs of a sweep, in their order."""
        return self._items(QUEUE_ITEM.c.sweep_id == key, QUEUE_ITEM.c.id)


def check_trainer(name: str, config: Mapping[str, Any], action: str) -> None:
    """Refuse what only the trainer of a run can do, where that is another program."""
    if trainer := v.trainer_of(config):
        remedy = AT_OTHERS.get(action, f"only {trainer} can do that to it")
        raise OtherTrainerError(
            f"{name} was trained by {trainer}, and this is its record alone: {remedy}"
        )


def check_ended(run: v.RunSummary) -> None:
    if run.active:
        raise RunActiveError(f"{run.name} is {run.status}: `grpo-tui stop {run.name}` first")


def grouped(pairs: Iterable[Any]) -> dict[Any, list[Any]]:
    """Collect the values of each key, in order."""
    by_key: dict[Any, list[Any]] = {}
    for key, value in pairs:
        by_key.setdefault(key, []).append(value)
    return by_key


def _order(sort: str, names: Names) -> list[ColumnElement[Any]]:
    """Return the order of a sort key; `-` means descending, runs without the value come last."""
    value = parse_column(sort.removeprefix("-"), names).compared
    if sort.startswith("-"):
        return [value.desc(), RUN.c.id.desc()]
    return [value.asc().nulls_last(), RUN.c.id.asc()]


def _values(run: int, key: str) -> Select[Any]:
    """Select the steps and values of a metric."""
    key_id = select(METRIC_KEY.c.id).filter_by(name=key).scalar_subquery()
    return select(METRIC.c.step, METRIC.c.value).filter_by(run_id=run, key_id=key_id)
