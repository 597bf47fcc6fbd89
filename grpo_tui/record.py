"""Any training loop writes its run into the store, where screens and verbs read it.

    from grpo_tui import record

    with record.run("my-run", trainer="my loop") as run:
        for step in range(1, 101):
            answers = [record.rollout(text, rewards={"right": text == "4"}) for text in ("4", "5")]
            run.step(step, [record.group("2 + 2 =", answers)], metrics={"loss": 0.1})

What is not given is absent, and never 0. A value that does not fit is left out with a
`RecordWarning`, which names it: once a run has begun, nothing here raises into the training.
`python -W error::UserWarning` makes an error of it while a loop is written.
"""

import contextlib
import math
import operator
import statistics
import sys
import time
import traceback
import typing
import warnings
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypedDict, Unpack

from grpo_engine import events as ev
from grpo_engine.alerts.rules import RunLimits
from grpo_engine.alerts.state import Alerts
from grpo_engine.config.parse import SECTIONS, assign, build, merge
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError, quoted
from grpo_engine.events import Finish, Origin, Severity, Span, UpdateTotals
from grpo_engine.frozen import frozen
from grpo_engine.setup.code_version import code_version
from grpo_engine.tasks.base import prompt_hash
from grpo_tui.experiments.db.paths import store_path
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.record.recorder import Recorder, resume_run, start_run
from grpo_tui.experiments.store import ExperimentStore
from grpo_tui.experiments.values import RunFiles

__all__ = [
    "Description",
    "Group",
    "RecordError",
    "RecordWarning",
    "Rollout",
    "Run",
    "Span",
    "TokenValues",
    "Tokens",
    "UpdateTotals",
    "group",
    "problem",
    "rollout",
    "run",
    "tokens",
    "update",
]

BACKLOG = 2_000  # events that wait for a store before further steps are left out
CLOSE_S = 30.0  # how long the end of a run waits for the store
LARGEST = 2**31  # of a token id
DEEPEST = 50  # lists and mappings in a setting
OTHERS = ("trainer", "theirs")  # what a run's tree has beside settings of this program


class RecordError(ValueError):
    """A run cannot begin; the message names the value and the remedy."""


class RecordWarning(UserWarning):
    """Something of a run is not recorded; the message names it and the remedy."""


class Array(Protocol):
    """An array of NumPy, PyTorch, JAX or MLX."""

    def tolist(self) -> Any: ...


Numbers = Sequence[float] | Array
Prompt = str | Sequence[Mapping[str, Any]]


class TokenValues(TypedDict, total=False):
    """What may be known of an answer's tokens: lists with a number for each, and totals."""

    sampler: Numbers | None  # log-probabilities from sampling
    old: Numbers | None  # those by the trainer before its first update
    reference: Numbers | None
    passes: Sequence[Numbers]  # those in each pass
    after: Numbers | None  # those after the step
    entropy: Numbers | None
    advantages: Numbers | None
    mask: Numbers | None  # 1 for tokens in the loss
    updates: Sequence[UpdateTotals]  # what the loss divides by, one for each pass
    clip_fraction: float | None
    kl: float | None


class Description(TypedDict, total=False):
    """What may be said of a run when it begins."""

    trainer: str
    version: str  # of the trainer
    model: str
    task: str
    seed: int | None
    steps: int | None  # that are planned
    tags: Sequence[str]
    files: RunFiles | None  # that an import reads the run from


@frozen
class Tokens:
    """The tokens of an answer and their numbers; without `ids` nothing is known of them."""

    ids: tuple[int, ...] | None = None
    ends: tuple[int, ...] = ()
    sampler: tuple[float, ...] = ()
    spans: tuple[Span, ...] = ()
    numbers: ev.TokenNumbers | None = None


@frozen
class Rollout:
    """An answer to a prompt, and the numbers of its tokens."""

    rollout: ev.Rollout
    numbers: ev.TokenNumbers | None


@frozen
class Group:
    """The answers to one prompt."""

    group: ev.Group
    numbers: tuple[ev.TokenNumbers, ...]


# -- values -------------------------------------------------------------------------------------


def tokens(
    ids: Numbers,
    *,
    ends: Numbers | None = None,
    spans: Sequence[Span] = (),
    **values: Unpack[TokenValues],
) -> Tokens:
    """The tokens of one answer, with the `TokenValues` that are known of them.

    `ends` are the characters of the text up to and with each token. `spans` tell the model's turns
    from replies of an environment or of tools.
    """
    _check_names("tokens", values, TokenValues)
    checked = _integers("ids", ids)
    if checked is None:
        return Tokens()
    count = len(checked)

    def by_token(name: str) -> tuple[float, ...]:
        return _numbers(name, values.get(name), count)

    passes = [_numbers("passes", logprobs, count) for logprobs in values.get("passes", ())]
    numbers = ev.TokenNumbers(
        index=0,
        old=by_token("old"),
        reference=by_token("reference"),
        passes=tuple(passes) if all(passes) or not count else (),
        after=by_token("after"),
        entropy=by_token("entropy"),
        advantages=by_token("advantages"),
        mask=_integers("mask", values.get("mask"), count) or (),
        updates=tuple(
            item
            for item in values.get("updates", ())
            if _is(item, UpdateTotals, "updates", "record.UpdateTotals(...)")
        ),
        clip_fraction=_number("clip_fraction", values.get("clip_fraction")),
        kl=_number("kl", values.get("kl")),
    )
    return Tokens(
        ids=checked,
        ends=_integers("ends", ends, count) or (),
        sampler=by_token("sampler"),
        spans=_spans(spans, count),
        numbers=numbers if numbers != ev.TokenNumbers(index=0, old=()) else None,
    )


def spans_of(parts: Iterable[tuple[bool, int, int, str]]) -> list[Span]:
    """Spans in their order: whether the model wrote each, its tokens, characters and name."""
    spans: list[Span] = []
    start, turn = 0, -1
    for by_model, length, chars, name in parts:
        turn += by_model
        kind: typing.Literal["model", "environment"] = "model" if by_model else "environment"
        spans.append(Span(start=start, length=length, kind=kind, turn=turn, chars=chars, name=name))
        start += length
    return spans


def rollout(
    text: str,
    *,
    rewards: Mapping[str, float | None] | None = None,
    weights: Mapping[str, float] | None = None,
    reasons: Mapping[str, str] | None = None,
    reward: float | None = None,
    advantage: float | None = None,
    finish: Finish = "",
    length: int | None = None,
    tokens: Tokens | None = None,
) -> Rollout:
    """One answer: its scores by reward function, and what is known of its tokens.

    Without `reward` it is the sum of `rewards`, each times its weight, which is 1 if `weights` are
    not given. `length` counts tokens where `tokens` are not given.
    """
    text = _text("text", text)
    scores = _scores(rewards, weights, reasons, usual_weight=1.0 if reward is None else math.nan)
    if reward is None:
        total = ev.total_reward((s.value for s in scores), (s.weight for s in scores))
    else:
        total = _number("reward", reward)
    if tokens is None or not _is(tokens, Tokens, "tokens", "record.tokens(...)"):
        tokens = Tokens()
    return Rollout(
        rollout=ev.Rollout(
            index=0,
            ids=tokens.ids or (),
            text=text,
            finish=_choice("finish", finish, Finish),
            rewards=scores,
            reward=total,
            advantage=_number("advantage", advantage),
            sampler_logprobs=tokens.sampler,
            ends=_ends(tokens.ends, len(text)),
            without_ids=tokens.ids is None,
            length=_natural("length", length),
            spans=tokens.spans,
        ),
        numbers=tokens.numbers,
    )


def _scores(
    rewards: Mapping[str, float | None] | None,
    weights: Mapping[str, float] | None,
    reasons: Mapping[str, str] | None,
    usual_weight: float,
) -> tuple[ev.RewardValue, ...]:
    """The scores by function; `usual_weight` is that of a function without one."""
    factors = _metrics("weights", weights)
    texts = dict(_items(reasons))
    return tuple(
        ev.RewardValue(
            name=_text("rewards", name),
            value=_number(f"rewards {name}", value),
            weight=factors.get(name, usual_weight),
            reason=_text("reasons", texts.get(name, "")),
        )
        for name, value in _items(rewards)
    )


def group(
    prompt: Prompt,
    rollouts: Iterable[Rollout],
    *,
    target: str = "",
    key: str = "",
    origin: Origin = "train",
    prompt_ids: Numbers | None = None,
    sampling: Mapping[str, float] | None = None,
) -> Group:
    """The answers to one prompt, a text or chat messages; mean and spread are computed here.

    `key` is the name of the problem, the same in all steps and runs; without it, it is the
    prompt's. `sampling` are settings such as `{"temperature": 1.0}`.
    """
    items = [item for item in rollouts if _is(item, Rollout, "rollouts", "record.rollout(...)")]
    answers = tuple(replace(item.rollout, index=index) for index, item in enumerate(items))
    totals = [answer.reward for answer in answers if answer.reward is not None]
    pushed = any(answer.advantage for answer in answers)
    equal = len(totals) > 1 and len(totals) == len(answers) and not ev.rewards_differ(totals)
    prompt = _prompt(prompt)
    digest = prompt_hash(prompt)
    return Group(
        group=ev.Group(
            index=0,
            origin=_choice("origin", origin, Origin) or "train",
            example_key=_text("key", key) or digest,
            prompt_text=_prompt_text(prompt),
            prompt_ids=_integers("prompt_ids", prompt_ids) or (),
            prompt_hash=digest,
            target=_text("target", target),
            rollouts=answers,
            reward_mean=statistics.fmean(totals) if totals else None,
            reward_std=ev.reward_std(totals),
            no_signal=f"all scored {totals[0]:g}" if equal and not pushed else "",
            sampling=_metrics("sampling", sampling),
        ),
        numbers=tuple(
            replace(item.numbers, index=index)
            for index, item in enumerate(items)
            if item.numbers is not None
        ),
    )


def update(
    *,
    index: int = 1,
    minibatch: int = 0,
    loss: float | None = None,
    grad_norm: float | None = None,
    learning_rate: float | None = None,
    clip_low: float | None = None,
    clip_high: float | None = None,
    kl_to_old: float | None = None,
) -> ev.PassFinished:
    """One update of the weights in a step: pass `index`, from 1, over minibatch `minibatch`."""
    return ev.PassFinished(
        step=0,
        index=_natural("index", index) or 1,
        minibatch=_natural("minibatch", minibatch) or 0,
        loss=_number("loss", loss),
        clip_low=_number("clip_low", clip_low),
        clip_high=_number("clip_high", clip_high),
        kl_to_old=_number("kl_to_old", kl_to_old),
        grad_norm=_number("grad_norm", grad_norm),
        learning_rate=_number("learning_rate", learning_rate),
    )


def problem(
    key: str,
    *,
    samples: int,
    correct: int | None = None,
    rewards: Mapping[str, float] | None = None,
) -> ev.EvaluationSample:
    """A held-out problem: how many of its answers were right, and mean rewards by function."""
    count, right = _natural("samples", samples) or 0, _natural("correct", correct)
    if right is not None and right > count:
        _left_out("correct", correct, f"at most {count}, as many as there are samples")
        right = None
    return ev.EvaluationSample(
        example_key=_text("key", key),
        samples=count,
        correct=right,
        rewards=_metrics("rewards", rewards),
    )


def problem_of(group: ev.Group, correct: int | None = None) -> ev.EvaluationSample:
    """A held-out problem, by the answers to it."""
    return problem(
        group.example_key,
        samples=len(group.rollouts),
        correct=correct,
        rewards=_means(group.rollouts),
    )


# -- a run --------------------------------------------------------------------------------------


def run(
    name: str = "",
    *,
    settings: Mapping[str, Any] | None = None,
    store: str | Path | None = None,
    **description: Unpack[Description],
) -> "Run":
    """Begin a run; raise RecordError if it cannot.

    Settings by the names of this program, such as `{"algorithm": {"recipe": "dr-grpo"}}`, are
    checked, and Rollouts computes each token's part in the loss from them. Settings of other names
    are recorded as they are, and compared and filtered as `theirs.NAME`.
    """
    _check_names("run", description, Description)
    trainer = description.get("trainer", "another trainer")
    version = description.get("version", "")
    model, task = description.get("model", ""), description.get("task", "")
    texts = {"name": name, "trainer": trainer, "version": version, "model": model, "task": task}
    for field, text in texts.items():
        if not isinstance(text, str):
            raise RecordError(
                f"{field} must be a text, got {quoted(text)}; leave it out if unknown"
            )
    if not isinstance(settings, Mapping | None):
        raise RecordError(f"settings must be values by name, got {quoted(settings)}")
    tags = description.get("tags", ())
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise RecordError(f"tags must be texts, as in ['good', 'long'], got {quoted(tags)}")
    named: dict[str, Any] = {"name": name, "model.path": model, "task.name": task}
    named |= {key: description[key] for key in ("seed", "steps") if key in description}
    named = {path: value for path, value in named.items() if value not in ("", None)}
    try:
        tree, config = _tree({**(settings or {}), **named})
        tree["trainer"] = {"name": trainer, "version": version}
        label = f"{trainer} {version}".strip()
        if files := description.get("files"):
            tree["trainer"]["files"], label = asdict(files), f"{label}, read from {files.path}"
        recorder = start_run(store_path(store), tree, name=name, tags=tuple(tags), origin=label)
    except (ConfigError, StoreError, OSError) as error:
        raise RecordError(f"the run cannot be recorded: {error}") from error
    return Run(recorder, tree, _limits(tree, config))


def resume(run: str, *, after: int, files: RunFiles, store: str | Path | None = None) -> "Run":
    """Go on with a run that an import began; what it has beyond step `after` is read again."""
    path = store_path(store)
    try:
        with ExperimentStore(path) as opened:
            row = opened.run_row(opened.key_of(run))
            tree = {**row.config, "trainer": {**row.config["trainer"], "files": asdict(files)}}
            opened.change(row.id, origin=f"{tree['trainer']['name']}, read from {files.path}")
        config = build({k: v for k, v in tree.items() if k not in OTHERS}, "settings")
        recorder = resume_run(path, row.id, from_step=after, config=tree)
    except (ConfigError, StoreError, OSError) as error:
        raise RecordError(f"the run cannot be recorded: {error}") from error
    return Run(recorder, tree, _limits(tree, config), after)


def hide_evaluations(run: str, step: int, store: str | Path | None = None) -> None:
    """Hide the held-out evaluations of a step, which are then recorded anew as a whole."""
    with ExperimentStore(store_path(store)) as opened:
        opened.hide_evaluations(opened.key_of(run), step)


def set_files(run: str, files: RunFiles, store: str | Path | None = None) -> None:
    """Say anew what files an import read the run from, and what they have."""
    with ExperimentStore(store_path(store)) as opened:
        row = opened.run_row(opened.key_of(run))
        trainer = {**row.config["trainer"], "files": asdict(files)}
        opened.change(row.id, config={**row.config, "trainer": trainer})


def _tree(settings: Mapping[str, Any]) -> tuple[dict[str, Any], RunConfig]:
    """The settings as they are stored, and others as `theirs`.

    Those of this program are stored as its own runs have them: without entries of the default.
    """
    tree: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for path, value in settings.items():
        section = str(path).partition(".")[0]
        if path in SECTIONS and isinstance(value, Mapping):
            tree = merge(tree, {path: value})
        elif path in RunConfig.settings() or (section in SECTIONS and section != path):
            assign(tree, path, value)
        else:
            theirs[str(path)] = _stored(str(path), value)
    config = build(tree, "settings")
    tree = config.model_dump(mode="json", exclude_unset=True)
    return tree | ({"theirs": theirs} if theirs else {}), config


def _stored(path: str, value: Any, depth: int = 0) -> Any:
    """A setting of another trainer as JSON has it."""
    if depth > DEEPEST:
        raise ConfigError(f"settings: {path} is nested more than {DEEPEST} deep; leave it out")
    if isinstance(value, Mapping):
        return {str(key): _stored(path, item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_stored(path, item, depth + 1) for item in value]
    if value is None or isinstance(value, str | int | float):
        return ev.encode(value)
    if hasattr(value, "tolist"):
        return _stored(path, value.tolist(), depth + 1)
    raise ConfigError(
        f"settings: {path} must be texts, numbers, or lists or mappings of these, got "
        f"{quoted(value)}; give its text, or leave it out"
    )


def _limits(tree: Mapping[str, Any], config: RunConfig) -> RunLimits:
    """What the rules of alerts know; those that read settings need the run's algorithm."""
    if "algorithm" not in tree:
        return RunLimits(has_bounds=False, thresholds=config.alerts)
    return RunLimits.of(config.algorithm.resolved(), config.alerts)


class Run:
    """A run that is being recorded; with `with` it ends by itself, after an exception as failed."""

    def __init__(
        self, recorder: Recorder, tree: Mapping[str, Any], limits: RunLimits, after: int = 0
    ) -> None:
        self.id, self.name, self.path = recorder.id, recorder.name, recorder.path
        self._recorder, self._begun = recorder, time.monotonic()
        self._step, self._alerts = after, Alerts(limits)
        row = recorder.store.run_row(recorder.key)
        self._tokens = row.tokens or 0
        self._counts = row.tokens is not None or not after  # whether all tokens were counted
        # The time of an import is not that of the training.
        self._imported = "files" in tree["trainer"]
        self._trained_s = row.elapsed or (math.nan if after else 0.0)
        self._computed: set[str] = set()
        self._warned = False  # of the store
        self._leave = weakref.finalize(
            self, recorder.flush, 5.0, "the program ended before the run"
        )
        if recorder.warning:
            _warn(recorder.warning)
        self._record(
            ev.RunStarted(
                step=after,
                config=tree,
                total_steps=tree.get("steps"),
                resumed=bool(after),
                versions={},
                device="",
                threads=None,
                dataset_fingerprint="",
                recipe=str(tree.get("algorithm", {}).get("recipe", "")),
                code=code_version(Path.cwd(), _script()),
            )
        )

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif isinstance(error, KeyboardInterrupt):
            self.close("stopped")
        else:
            self.fail(error)

    def groups(self, step: int, groups: Iterable[Group]) -> None:
        """Show answers of a step that has not ended; `step` gives the rest of it."""
        with _training():
            for event in _scored(_step(step, minimum=0), groups):
                self._record(event)

    def numbers(self, step: int, groups: Iterable[Group]) -> None:
        """Give the token numbers of answers that `groups` showed, in the same order."""
        with _training():
            for event in _numbered(_step(step), groups):
                self._record(event)

    def step(
        self,
        step: int,
        groups: Iterable[Group] = (),
        *,
        metrics: Mapping[str, float | None] | None = None,
        updates: Iterable[ev.PassFinished] = (),
        seconds: float | None = None,
        shown: Iterable[Group] = (),
    ) -> None:
        """Record a finished step, counted from 1: its answers, its updates and its metrics.

        Metrics have any names; those of TRL's that this program describes are the best. What can be
        computed from rewards and lengths, and was not given, is computed here. `shown` are answers
        that were recorded before by `groups`.
        """
        with _training():
            number = _step(step)
            if number <= self._step:
                _warn(f"step {number} is not recorded: step {self._step} was; count steps upwards")
                return
            self._step, groups, shown = number, list(groups), list(shown)
            for event in (*_scored(number, groups), *_numbered(number, groups)):
                self._record(event)
            for item in updates:
                if _is(item, ev.PassFinished, "updates", "record.update(...)"):
                    self._record(replace(item, step=number))
            reported = _metrics("metrics", metrics)
            if seconds is not None:
                reported["step_time"] = _number("seconds", seconds) or 0.0
            trained = [g.group for g in (*shown, *groups) if g.group.origin == "train"]
            computed = {k: v for k, v in computed_metrics(trained).items() if k not in reported}
            if new := computed.keys() - self._computed:
                self._computed |= new
                self.note(f"computed here, not by the trainer: {', '.join(sorted(new))}")
            finished = ev.StepFinished(
                step=number,
                metrics=computed | reported,
                tokens=self._total_tokens(trained, reported),
                elapsed=self._elapsed(reported),
            )
            self._judged(finished)

    def _elapsed(self, reported: Mapping[str, float]) -> float:
        """Seconds of training so far; of an import the sum of those that its files have."""
        if not self._imported:
            return time.monotonic() - self._begun
        self._trained_s += reported.get("step_time", math.nan)
        return self._trained_s

    def _judged(self, event: ev.StepFinished | ev.EvaluationFinished) -> None:
        """Record the event and the alerts that follow from it."""
        self._record(event)
        for alert in self._alerts.observe(event):
            self._record(alert)

    def _total_tokens(
        self, groups: Sequence[ev.Group], reported: Mapping[str, float]
    ) -> int | None:
        """All tokens so far of the answers, as our own runs count; else as the trainer counts."""
        counts = [answer.model_tokens for item in groups for answer in item.rollouts]
        self._counts = self._counts and bool(counts) and None not in counts
        self._tokens += sum(filter(None, counts))
        if self._counts:
            return self._tokens
        counted = reported.get("num_tokens", math.nan)
        return int(counted) if math.isfinite(counted) else None

    def evaluation(
        self,
        step: int,
        problems: Iterable[ev.EvaluationSample],
        *,
        metrics: Mapping[str, float] | None = None,
        greedy: bool = False,
        seconds: float = math.nan,
    ) -> None:
        """Record a held-out evaluation after a step, 0 for one before the first.

        Share of right answers and mean rewards are computed here where `metrics` lack them.
        """
        with _training():
            rows = tuple(
                p
                for p in problems
                if _is(p, ev.EvaluationSample, "problems", "record.problem(...)")
            )
            values = _evaluated(rows) | _metrics("metrics", metrics)
            number = _step(step, minimum=0)
            self._judged(
                ev.EvaluationFinished(
                    step=number,
                    moment="during" if number else "before",
                    mode="greedy" if greedy else "sampled",
                    problems=len(rows),
                    samples=max((row.samples for row in rows), default=0),
                    metrics=values,
                    rows=rows,
                    seconds=seconds,
                )
            )

    def stored(self, timeout: float = CLOSE_S) -> bool:
        """Wait until all so far is in the store; False if it is not after `timeout` seconds."""
        return self._recorder.flush(timeout)

    def waiting(self) -> None:
        """Say that nothing new is to be recorded, so that the run does not count as stalled."""
        self._recorder.progressed()

    def phase(self, step: int, phase: ev.Phase) -> None:
        """Say what the loop is doing in a step that has not ended."""
        with _training():
            self._record(ev.PhaseStarted(step=_step(step), phase=phase))

    def note(self, text: str, severity: Severity = "info") -> None:
        """Add a line to the run's log."""
        with _training():
            text = _text("text", text)
            self._record(ev.NoteWritten(step=self._step, text=text, severity=severity))

    def fail(self, error: BaseException) -> None:
        """End the run as failed."""
        with _training():
            trace = "".join(traceback.format_exception(error))
            name, text = type(error).__name__, str(error)
            end = ev.RunFailed(step=self._step, error=name, message=text, traceback=trace)
            self._close(end)

    def close(
        self,
        reason: typing.Literal["completed", "stopped", "aborted", "imported"] = "completed",
    ) -> None:
        """End the run; a second call does nothing."""
        with _training():
            self._close(ev.RunFinished(step=self._step, reason=reason, summary={}))

    def _close(self, end: ev.Event) -> None:
        if self._leave.detach() is None:
            return
        self._record(end)
        recorder = self._recorder
        recorder.flush(CLOSE_S, "")
        if not recorder.closed:
            waiting = recorder.left or f"run {self.name}: its last events are not stored yet"
            _warn(
                f"{waiting}; what its file has is read in when the next run begins with this store"
            )

    def _record(self, event: ev.Event) -> None:
        recorder = self._recorder
        if recorder.backlog > BACKLOG:
            self._warn_once(
                f"run {self.name}: the store is too slow or full, so steps are left out"
            )
            return
        recorder.put(event)
        if trouble := recorder.board.view.store_warning:
            self._warn_once(f"run {self.name}: {trouble}")

    def _warn_once(self, text: str) -> None:
        """Warn once of a store that cannot be written."""
        if not self._warned:
            self._warned = True
            _warn(text)


def _scored(step: int, groups: Iterable[Group]) -> Iterator[ev.Event]:
    known = [item for item in groups if _is(item, Group, "groups", "record.group(...)")]
    for index, item in _counted_by_origin(known):
        yield ev.GroupScored(step=step, group=replace(item.group, index=index))


def _numbered(step: int, groups: Iterable[Group]) -> Iterator[ev.Event]:
    known = [item for item in groups if isinstance(item, Group)]
    for index, item in _counted_by_origin(known):
        if item.numbers:
            yield ev.TokensScored(
                step=step, group=index, origin=item.group.origin, numbers=item.numbers
            )


def _counted_by_origin(groups: Iterable[Group]) -> Iterator[tuple[int, Group]]:
    """The groups with their numbers, which begin with 0 for each origin, as in runs of our own."""
    counts = Counter[str]()
    for item in groups:
        yield counts[item.group.origin], item
        counts[item.group.origin] += 1


def computed_metrics(groups: Sequence[ev.Group]) -> dict[str, float]:
    """What follows exactly from the rewards, the lengths and the ids of a step's answers."""
    answers = [answer for item in groups for answer in item.rollouts]
    totals = [answer.reward for answer in answers if answer.reward is not None]
    metrics = {"reward": statistics.fmean(totals)} if totals else {}
    if len(totals) > 1:
        metrics["reward_std"] = statistics.stdev(totals)
    metrics |= {f"rewards/{name}/mean": mean for name, mean in _means(answers).items()}
    alike = [item.reward_std == 0 for item in groups if item.reward_std is not None]
    if alike:
        metrics["frac_reward_zero_std"] = statistics.fmean(alike)
    lengths = [answer.model_tokens for answer in answers]
    known = [length for length in lengths if length is not None]
    if known and len(known) == len(lengths):
        metrics |= {
            "completions/mean_length": statistics.fmean(known),
            "completions/min_length": float(min(known)),
            "completions/max_length": float(max(known)),
        }
    if answers and all(answer.finish for answer in answers):
        cut = [answer.finish in ev.CUT for answer in answers]
        metrics["completions/clipped_ratio"] = statistics.fmean(cut)
    return metrics


def _means(answers: Iterable[ev.Rollout]) -> dict[str, float]:
    """The mean score of each reward function."""
    scores: dict[str, list[float]] = {}
    for score in (score for answer in answers for score in answer.rewards):
        if score.value is not None:
            scores.setdefault(score.name, []).append(score.value)
    return {name: statistics.fmean(values) for name, values in scores.items()}


def _evaluated(rows: Sequence[ev.EvaluationSample]) -> dict[str, float]:
    """Means over the problems."""
    judged = [(row.correct, row.samples) for row in rows if row.correct is not None]
    metrics: dict[str, float] = {}
    if judged and sum(samples for _, samples in judged):
        count = sum(samples for _, samples in judged)
        metrics["eval/accuracy"] = sum(correct for correct, _ in judged) / count
        metrics["eval/scored/accuracy"] = float(count)
    for name in dict.fromkeys(name for row in rows for name in row.rewards):
        values = [row.rewards[name] for row in rows if name in row.rewards]
        metrics[f"eval/rewards/{name}"] = statistics.fmean(values)
    return metrics


# -- checks -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _training() -> Iterator[None]:
    """Warn of any error: nothing here may end the training."""
    try:
        yield
    except RecordWarning:
        raise  # of a caller who makes errors of warnings
    except Exception as error:
        _warn(f"not recorded: {type(error).__name__}: {error}")


def _check_names(function: str, names: Iterable[str], kind: type) -> None:
    known = kind.__annotations__
    for name in names:
        if name not in known:
            raise TypeError(
                f"record.{function} has no argument {quoted(name)}; it has {', '.join(known)}"
            )


def _script() -> list[Path]:
    """The file of the training loop, unless it is typed."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return [Path(file)] if file else []


def _warn(text: str) -> None:
    """Warn at the caller's line."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename in (__file__, contextlib.__file__):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RecordWarning, stacklevel=level)


def _left_out(field: str, value: Any, expected: str) -> None:
    _warn(f"{field} is left out: it must be {expected}, got {quoted(value)}")


def _is(value: Any, kind: type, field: str, maker: str) -> bool:
    if isinstance(value, kind):
        return True
    _left_out(field, value, f"what {maker} returns")
    return False


def _step(step: Any, minimum: int = 1) -> int:
    with contextlib.suppress(TypeError):
        if minimum <= (number := operator.index(step)) < 2**62:
            return number
    raise RecordError(f"step must be a whole number from {minimum}, got {quoted(step)}")


def _text(field: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    _left_out(field, value, "a text")
    return ""


def _choice(field: str, value: Any, choices: Any) -> Any:
    known = typing.get_args(choices)
    if value in known:
        return value
    _left_out(field, value, f"one of {', '.join(filter(None, known))}")
    return ""


def _number(field: str, value: Any) -> float | None:
    """A number, an array of one element included."""
    if value is None:
        return None
    if not isinstance(value, str | bytes):
        with contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError):
            return float(value)
    _left_out(field, value, "a number, or None if it is not known")
    return None


def _natural(field: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if 0 <= number < 2**62 and not isinstance(value, bool):
        return number
    _left_out(field, value, "a whole number from 0, or None if it is not known")
    return None


def _list(field: str, values: Any) -> list[Any] | None:
    """The elements of a list or an array of one axis; None if it is left out."""
    if values is None:
        return []
    if not isinstance(values, list | tuple) and hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, list | tuple) and {list, tuple}.isdisjoint(map(type, values)):
        return list(values)
    _left_out(field, values, "a list of numbers, one for each token")
    return None


def _counted(field: str, values: list[Any], count: int | None) -> bool:
    """Whether there is a value for each token."""
    if count is None or len(values) in (0, count):
        return True
    _warn(
        f"{field} is left out: it has {len(values)} values for {count} tokens of ids; "
        "give one for each token"
    )
    return False


def _numbers(field: str, values: Any, count: int) -> tuple[float, ...]:
    items = _list(field, values) or []
    try:
        numbers = [*map(float, items)]
    except (TypeError, ValueError, OverflowError):
        _left_out(field, items, "a list of numbers, one for each token")
        return ()
    return tuple(numbers) if _counted(field, numbers, count) else ()


def _integers(field: str, values: Any, count: int | None = None) -> tuple[int, ...] | None:
    """The whole numbers of a list; None if it is left out."""
    if (items := _list(field, values)) is None:
        return None
    with contextlib.suppress(TypeError):
        integers = [*map(operator.index, items)]
        if not integers or 0 <= min(integers) <= max(integers) < LARGEST:
            return tuple(integers) if _counted(field, integers, count) else None
    _left_out(field, items, f"a list of whole numbers from 0 to {LARGEST - 1}")
    return None


def _ends(ends: tuple[int, ...], characters: int) -> tuple[int, ...]:
    """Ends of tokens that rise to the end of the text."""
    if not ends or (ends[-1] <= characters and list(ends) == sorted(ends)):
        return ends
    _warn(f"ends is left out: it must rise up to the {characters} characters of the text")
    return ()


def _spans(spans: Sequence[Span], count: int) -> tuple[Span, ...]:
    """Spans that follow each other up to the last token."""
    items = [span for span in spans if _is(span, Span, "spans", "record.Span(...)")]
    start = 0
    for span in items:
        start = start + span.length if span.start == start else -1
    if not items or start == count:
        return tuple(items)
    _warn(f"spans is left out: they must follow each other to the last of {count} tokens of ids")
    return ()


def _items(values: Any) -> Iterable[tuple[str, Any]]:
    return values.items() if isinstance(values, Mapping) else ()


def _metrics(field: str, values: Any) -> dict[str, float]:
    """Numbers by name; those that are None are absent."""
    if values is not None and not isinstance(values, Mapping):
        _left_out(field, values, "numbers by name, such as {'loss': 0.1}")
    numbers = {_text(field, name): _number(f"{field} {name}", v) for name, v in _items(values)}
    return {name: number for name, number in numbers.items() if name and number is not None}


def _prompt(prompt: Any) -> str | tuple[Mapping[str, Any], ...]:
    """A text, or chat messages of texts."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list | tuple) and all(isinstance(item, Mapping) for item in prompt):
        return tuple(prompt)
    _left_out("prompt", prompt, "a text, or messages with role and content")
    return ""


def _prompt_text(prompt: Prompt) -> str:
    """A prompt as people read it."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{item.get('role', '')}: {item.get('content', '')}" for item in prompt)
