"""The state of New run: a form that is checked as one types, its costs, and its trials."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import inf, isnan, nan, prod
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from yaml import YAMLError

from grpo_engine import consent
from grpo_engine.config.declaration import Setting, as_text
from grpo_engine.config.parse import (
    OWNER,
    OWNERS,
    assign,
    build,
    entries,
    flatten,
    merge,
    parse_sets,
    problems,
    settings,
)
from grpo_engine.config.recipes import Recipe, available
from grpo_engine.config.removed import without_removed
from grpo_engine.config.settings import RunConfig
from grpo_engine.frozen import frozen
from grpo_engine.presets import preset
from grpo_tui.app.jobs.sweep import values_in
from grpo_tui.app.text.numbers import clamped
from grpo_tui.app.text.run_text import run_summary
from grpo_tui.experiments.db.configs import flat
from grpo_tui.experiments.db.names import free_name
from grpo_tui.experiments.db.texts import seconds as seconds_of
from grpo_tui.experiments.queue import points
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import RunSummary

RATE = "optimizer.learning_rate"
RECIPE, PRESET, SEEDS = "algorithm.recipe", "preset", "seeds"
TASK, COLUMNS, OPTIONS = "task.name", "task.columns", "task.options"
FUNCTIONS, WEIGHTS = "rewards.functions", "rewards.weights"
SERVER = "remote.url"
MAX_SWEEP = 256  # runs
# Lines of the form that are no settings of a run.
FORM_ONLY: Mapping[str, Setting] = {
    PRESET: Setting(
        path=PRESET,
        annotation=str,
        default="starter",
        help="What the settings start from: a preset, or an earlier run as a clone.",
    ),
    SEEDS: Setting(
        path=SEEDS,
        annotation=int,
        default=1,
        ge=1,
        le=100,
        help="The number of runs that differ in their seed only, counted up from "
        "`seed`. More than one makes a sweep, as several values of a setting do.",
    ),
}
INFO: Mapping[str, Setting] = {**FORM_ONLY, **settings()}
# The settings that are listed first, the most important ones above: a small screen shows these.
MAIN = (
    "preset",
    "model.path",
    TASK,
    COLUMNS,
    "rewards.functions",
    RECIPE,
    "algorithm.beta",
    "optimizer.learning_rate",
    "rollout.prompts",
    "rollout.group_size",
    "steps",
    "name",
    "seed",
    "seeds",
    SERVER,
)


# -- the form -------------------------------------------------------------------------------


@frozen
class FormField:
    """One line of the form, and the section that lists it."""

    info: Setting
    text: str
    start: str  # the value in the preset or the parent
    section: str = ""

    @property
    def changed(self) -> bool:
        return self.text != self.start

    @property
    def path(self) -> str:
        return self.info.path


def written(files: Sequence[Path]) -> dict[Path, int]:
    """When files were last written; 0 where there is none."""
    times = dict.fromkeys(files, 0)
    for file in files:
        with suppress(OSError, ValueError):
            times[file] = file.stat().st_mtime_ns
    return times


def can_sweep(info: Setting) -> bool:
    """Whether commas separate values to try; in lists and in free text they are part of it."""
    is_value = info.number or info.choices or bool in info.types or info.path == RECIPE
    return bool(is_value) and not info.is_list and info.path in settings()


@frozen
class Origin:
    """What a form starts from."""

    kind: Literal["preset", "clone"] = "preset"
    name: str = ""
    summary: str = ""
    run: str = ""


@dataclass(frozen=True, eq=False)
class RunForm:
    """The settings of a preset or of a run to clone, and the edits to them, by dotted path."""

    base: RunConfig
    origin: Origin = field(default_factory=Origin)
    edits: Mapping[str, str] = field(default_factory=dict)
    offered: Mapping[str, Setting] = field(default_factory=dict)  # options of the task, by path

    # -- edits ------------------------------------------------------------------------------

    def type(self, path: str, text: str) -> "RunForm":
        """The form with one field edited; typing its value at the start removes the edit.

        An entry of a mapping is edited in the mapping's text.
        """
        owner, _, name = path.rpartition(".")
        if owner in settings():
            values = {key: value for key, value in self.mapping(owner).items() if key != name}
            if text != self._default(path):
                values[name] = self._entries[path].read(text)
            path, text = owner, as_text(values)
        edits = {key: value for key, value in self.edits.items() if key != path}
        if text != as_text(self.start[path]):
            edits[path] = text
        form = replace(self, edits=edits)
        return form.type(WEIGHTS, self._weights_for(text)) if path == FUNCTIONS else form

    def _weights_for(self, functions: str) -> str:
        """The weights of these reward functions: those they have or had at the start, else 1.

        Without weights there are none.
        """
        base, rewards = self.base.rewards, self._values["rewards"]
        known: dict[str, float] = {}
        with suppress(ValueError, TypeError, YAMLError):
            read = settings()[FUNCTIONS].parsed
            current = read(rewards.get("functions")) or ()
            weights = settings()[WEIGHTS].parsed(rewards.get("weights")) or (1.0,) * len(current)
            if base.weights or rewards.get("weights"):
                known = dict(zip(base.functions, base.weights, strict=False))
                known |= dict(zip(current, weights, strict=False))
            return as_text(tuple(known.get(name, 1.0) for name in read(functions)) if known else ())
        return as_text(rewards.get("weights"))

    def reset(self, path: str) -> "RunForm":
        """The form with a field reset to the base."""
        start = self.start.get(path)
        return self.type(path, self.fields[path].start if start is None else as_text(start))

    @cached_property
    def start(self) -> Mapping[str, Any]:
        """The base's values, without those that belonged to what was replaced."""
        owners = {path: text for path, text in self._single.items() if path in OWNERS}
        remaining = self._tree(owners)
        start = {PRESET: self.origin.name, SEEDS: 1, **flatten(self.base)}
        for path, info in settings().items():
            section, _, leaf = path.partition(".")
            if leaf and leaf not in remaining[section]:
                start[path] = info.default
        return start

    # -- entries of settings that are mappings ----------------------------------------------

    @cached_property
    def _entries(self) -> Mapping[str, Setting]:
        return {**entries(), **self.offered}

    @cached_property
    def _values(self) -> Mapping[str, Any]:
        return self._tree(self._single)

    def mapping(self, path: str) -> Mapping[str, Any]:
        """The entries of a mapping in force; none while its text is no mapping."""
        section, _, name = path.partition(".")
        values = self._values[section].get(name)
        return values if isinstance(values, Mapping) else {}

    def _default(self, path: str) -> str:
        """The text of an entry that is not set; the recipe decides on those of the algorithm."""
        is_recipes = path.startswith("algorithm.")
        return "" if is_recipes else as_text(self._entries[path].default)

    def entries_of(self, owner: str) -> list[FormField]:
        """A line for each entry of a mapping."""
        values, start = self.mapping(owner), self.start[owner] or {}
        return [
            FormField(
                info=info,
                text=as_text(values[name]) if name in values else self._default(path),
                start=as_text(start[name]) if name in start else self._default(path),
            )
            for path, info in self._entries.items()
            for mapping, _, name in (path.rpartition("."),)
            if mapping == owner
        ]

    # -- what follows from them -------------------------------------------------------------

    @property
    def task(self) -> str:
        return self.edits.get(TASK, self.base.task.name)

    @cached_property
    def axes(self) -> Mapping[str, list[str]]:
        """The values of each setting that has several: a sweep tries them all."""
        return {
            path: list(dict.fromkeys(values_in(text)))
            for path, text in self.edits.items()
            if "," in text and can_sweep(INFO[path])
        }

    @cached_property
    def _single(self) -> Mapping[str, str]:
        """The edits with the first value of each axis."""
        return {**self.edits, **{path: values[0] for path, values in self.axes.items()}}

    def at(self, point: Mapping[str, str]) -> "RunForm":
        """The form of one point of the sweep."""
        return replace(self, edits={**self._single, **point})

    @property
    def seeds(self) -> int:
        """How many runs differ in their seed only."""
        text = self.edits.get(SEEDS, "1")
        return int(float(text)) if INFO[SEEDS].accepts(text) else 1

    @property
    def count(self) -> int:
        """The number of runs."""
        return self.seeds * prod(map(len, self.axes.values()))

    @cached_property
    def points(self) -> list[tuple[Mapping[str, str], RunConfig]]:
        """The values and the settings of each point of the sweep; one if there is none."""
        return [(point, self.at(point).build()) for point in points(self.axes)]

    def build(self) -> RunConfig:
        """Build the config, or raise one ConfigError that lists every problem."""
        return build(self._tree(self._single), source="this run")

    def _tree(self, edits: Mapping[str, str]) -> dict[str, Any]:
        pairs = [f"{path}={text}" for path, text in edits.items() if path not in FORM_ONLY]
        return merge(self.base.model_dump(), parse_sets(pairs))

    @cached_property
    def config(self) -> RunConfig | None:
        """The settings, or those of a sweep's first point; None while there are errors."""
        return None if self.errors else self.build()

    @cached_property
    def errors(self) -> Mapping[str, str]:
        """Problems, by the setting to change; every point of a sweep is checked."""
        seeds = self.edits.get(SEEDS, "1")
        if not INFO[SEEDS].accepts(seeds):
            return {SEEDS: INFO[SEEDS].refusal(seeds)}
        if self.count > MAX_SWEEP:
            path = [path for path in self.edits if path in self.axes or path == SEEDS][-1]
            return {path: f"makes {self.count:,} runs; a sweep has at most {MAX_SWEEP}"}
        errors = {
            path: "has an empty value; remove the comma that is too many"
            for path, values in self.axes.items()
            if "" in values
        }
        for point in () if errors else points(self.axes):
            for problem in reversed(problems(self._tree({**self.edits, **point}))):
                path = self._setting_of(problem.settings)
                text = f"{point[path]}: {problem.text}" if path in point else problem.text
                errors.setdefault(path, text)
        return errors

    def _setting_of(self, paths: Sequence[str]) -> str:
        """The last edited of the settings that could be changed, otherwise the first."""
        edited = [path for path in reversed(list(self.edits)) if path in paths]
        return (edited or paths or [*self.edits, "steps"])[0]

    @cached_property
    def fields(self) -> Mapping[str, FormField]:
        """Every line of the form by its path."""
        base, start = {**self.start, **flatten(self.base)}, self.start
        fields = {}
        for path, info in INFO.items():
            text = self.edits.get(path, as_text(start[path]))
            # weights and options that went with what they belonged to are a change, too
            origin = as_text((base if path in OWNER else start)[path])
            fields[path] = FormField(info=info, text=text, start=origin)
            if isinstance(start[path], Mapping):
                fields |= {row.path: row for row in self.entries_of(path)}
        return fields

    @cached_property
    def changed(self) -> tuple[str, ...]:
        """The settings that differ from the preset or the parent."""
        return tuple(path for path in INFO if self.fields[path].changed)

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """What may be a file among the settings' texts."""
        texts = " ".join(row.text for row in self.fields.values() if "." in row.text)
        names = dict.fromkeys(re.findall(r"[^\s,:'\"\[\]{}]+\.[a-z]\w*", texts))
        return tuple(Path(name).expanduser() for name in names)

    # -- the recipe -------------------------------------------------------------------------

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe; with errors, the named one as it is defined."""
        if self.config is not None:
            return self.config.algorithm.resolved()
        return available()[0].get(self._single.get(RECIPE) or self.base.algorithm.recipe or "")


# -- values of a setting --------------------------------------------------------------------


def choices_of(field: FormField) -> tuple[str, ...]:
    """The allowed texts of a setting with a list of values; empty if it has none."""
    info = field.info
    if info.path == RECIPE:
        return tuple(available()[0])
    if info.is_list:  # several of them, which are typed
        return ()
    values = info.choices or (("true", "false") if bool in info.types else ())
    return ("", *values) if values and NoneType in info.types else values


# -- costs ----------------------------------------------------------------------------------

# Disk bytes per recorded token, compressed, with two passes and a reference.
BYTES_PER_TOKEN = 20.0
# share of the tokens
RECORDED = {"all": 1.0, "every": 0.1, "pinned": 0.0, "none": 0.0, "nothing": 0.0}


# what differs among runs whose steps take as long
TIMELESS = (
    "name",
    "seed",
    "steps",
    "stop_when",
    "alerts.",
    "checkpoint.",
    RATE,
    "optimizer.schedule",
    "optimizer.warmup_steps",
    "rewards.weights",
    "algorithm.clip_",
)


@frozen
class Cost:
    """What a run will cost; None if unknown. The tokens of a step are those of its answers."""

    tokens: int
    seconds: float | None  # in all, with held-out evaluation
    gigabytes: float
    run: str  # the one that it is estimated from, if any
    held_out: float = 0.0  # tokens of held-out answers
    step_seconds: float | None = None


def held_out_answers(config: RunConfig, available: float = inf) -> tuple[float, int]:
    """The answers of a held-out evaluation, and how many evaluations there are."""
    check = config.evaluation
    tasks = 1 + sum(bool(task.weight) for task in config.task.others.values())
    answers = tasks * min(check.problems, available) * (int(check.greedy) + check.samples)
    return answers, evaluations(config, config.steps) if answers else 0


def evaluations(config: RunConfig, steps: int) -> int:
    """How often a run of so many steps is evaluated."""
    check = config.evaluation
    return (steps // check.every if check.every else 0) + 2 * check.before_and_after


def beside_steps(config: RunConfig, run: RunSummary) -> float:
    """Seconds for each evaluation of a run that completed, with loading and saving; NaN if none."""
    count = evaluations(config, run.step)
    if not count or run.status != "completed" or run.attempts != 1:
        return nan
    taken = seconds_of(run.ended_at or "") - seconds_of(run.started_at or "") - run.elapsed
    return max(0.0, taken) / count


def cost(config: RunConfig, runs: Sequence[RunSummary] = (), available: float = inf) -> Cost:
    """Estimate costs from the config and the best run of such steps, by its tokens.

    That is one that completed, then one with the same learning rate, then the latest; answers of
    one that was stopped may have been of another length, and none counts that failed. Without one,
    the longest answers are assumed. Evaluations take what that run's took, else the time of as many
    tokens of training; `available` are the held-out problems.
    """
    tree = flat(config.model_dump(mode="json"))
    timed = {path: value for path, value in tree.items() if not path.startswith(TIMELESS)}
    alike = [
        run
        for run in runs
        if run.tokens
        and run.status not in ("failed", "lost")
        and timed.items() <= run.columns.items()
    ]
    rate = config.optimizer.learning_rate
    alike.sort(key=lambda run: (run.status != "completed", run.columns.get(RATE) != rate))
    best = next(iter(alike), None)
    length, per_token = float(config.rollout.max_new_tokens), None
    if best is not None and best.tokens:
        per_token = best.elapsed / best.tokens
        former = best.metrics.get("completions/mean_length")
        length = min(length, former.mean) if former and former.mean else length
    tokens = round(config.training.rows * length) * config.steps
    answers, times = held_out_answers(config, available)
    held_out = answers * times * length
    seconds = step_seconds = None
    if best is not None and per_token is not None:
        each = beside_steps(config, best)
        step_seconds = tokens * per_token / config.steps
        others = held_out * per_token if isnan(each) else times * each
        seconds = tokens * per_token + others
    return Cost(
        tokens=tokens,
        held_out=held_out,
        step_seconds=step_seconds,
        seconds=seconds,
        gigabytes=tokens * BYTES_PER_TOKEN * RECORDED[config.record.tokens] / 1e9,
        run="" if best is None else best.title,
    )


# -- the screen's state ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NewRunView:
    """The screen's state; every change returns a new one."""

    form: RunForm
    cursor: str = PRESET
    search: str | None = None  # "" lists all settings
    roomy: bool = False  # whether there is room for all settings below the main ones
    editing: bool = False
    page: str = "cost"
    runs: tuple[RunSummary, ...] = ()

    offers: Mapping[str, Any] = field(default_factory=dict)  # columns and options of the task
    examples: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)
    ready: Mapping[str, Any] = field(default_factory=dict)  # empty until the settings are tried

    example: int = 0
    activity: str = ""

    @property
    def listed(self) -> bool:
        """Whether settings are listed by section, and not the main ones."""
        return self.search is not None

    @property
    def columns(self) -> Mapping[str, Sequence[str]]:
        """The columns of the task's data with the texts of a few rows; empty if it has none."""
        return dict(self.offers.get("columns", {}))

    @cached_property
    def rows(self) -> list[FormField]:
        """The main settings and those that matter now; or all that match, by section."""
        fields, concise = self.form.fields, ("main", CHANGED)
        lines: dict[str, list[FormField]] = {path: [] for path in INFO}
        for path, row in fields.items():
            lines[path if path in INFO else path.rpartition(".")[0]].append(row)
        return [
            replace(row, section=section)
            for section, paths in sections(self.listed, self.roomy).items()
            for path in paths
            for row in lines[path][: 1 if section in concise else None]
            if matches(row.info, self.search or "")
            and (section not in concise or path not in WHERE_NEEDED or self._needs(row))
        ]

    def _needs(self, row: FormField) -> bool:
        """Whether a line is shown that is not always there."""
        is_data = row.path == COLUMNS and bool(self.columns)
        is_of_server = row.path.startswith("remote.") and bool(self.form.fields[SERVER].text)
        return row.changed or row.path in self.errors or is_data or is_of_server

    @cached_property
    def row(self) -> FormField | None:
        """The line under the cursor; of an entry that is not listed, its mapping's."""
        rows = {row.path: row for row in self.rows}
        owner = rows.get(self.cursor.rpartition(".")[0])
        return rows.get(self.cursor) or owner or next(iter(rows.values()), None)

    @property
    def config(self) -> RunConfig | None:
        """The run's settings with its name; None while there are errors."""
        if self.form.config is None:
            return None
        return self.form.config.model_copy(update={"name": self.name})

    @property
    def name(self) -> str:
        """The typed name, otherwise that of the start, numbered if a run or a sweep has it."""
        form, names = self.form, [run.name for run in self.runs]
        typed = form.fields["name"]
        taken = {*names, *(name.rpartition("-")[0] for name in names)}
        return typed.text if typed.changed else free_name(form.base.name or form.origin.name, taken)

    def price_of(self, config: RunConfig) -> Cost:
        """What a run with these settings will cost."""
        return cost(config, self.runs, self.examples.get("held_out", inf))

    @property
    def tried(self) -> bool:
        """Whether a run with these settings was tried and would begin now."""
        refusals = map(self.ready.get, ("problem", "now", "fetches"))
        return bool(self.ready) and not self.errors and not any(refusals)

    @cached_property
    def errors(self) -> dict[str, str]:
        """By setting, what has to be changed, and why a run would fail at its first step."""
        return {**dict(self.ready.get("problems", ())), **self.form.errors}

    # -- moves ------------------------------------------------------------------------------

    def with_form(self, form: RunForm) -> "NewRunView":
        """Use a form; another one is not tried yet, and another task offers something else."""
        if form is self.form:
            return self
        offers, offered = self.offers, self.form.offered
        if form.task != self.form.task:
            offers = offered = {}
        if form.offered != offered:
            form = replace(form, offered=offered)
        return replace(self, form=form, ready={}, offers=offers)

    def with_offers(self, offers: Mapping[str, Any]) -> "NewRunView":
        """Add what the task offers; its options become lines of the form."""
        offered = {
            f"{OPTIONS}.{name}": Setting(
                path=f"{OPTIONS}.{name}",
                annotation=bool | None if is_switch else Any,
                default=default,
                help=help,
            )
            for name, (default, help, is_switch) in offers.get("options", {}).items()
        }
        if offered == self.form.offered:
            return replace(self, offers=offers)
        return replace(self, offers=offers, form=replace(self.form, offered=offered))

    def moved(self, by: int) -> "NewRunView":
        """Move the cursor."""
        if self.row is None:
            return self
        index = clamped(self.rows.index(self.row) + by, len(self.rows))
        return replace(self, cursor=self.rows[index].path)

    def searched(self, text: str) -> "NewRunView":
        """Show only the settings that match; the cursor goes to the first, best by its path."""
        view = replace(self, search=text)
        paths = [row.path for row in view.rows]
        paths = [path for path in paths if text.strip().lower() in path] or paths
        return view if self.cursor in paths or not paths else replace(view, cursor=paths[0])


CHANGED = "changed"
WHERE_NEEDED = (COLUMNS, *(path for path in INFO if path not in MAIN))
SECTION_NAMES = ("run", *(n for n in RunConfig.model_fields if n not in ("name", "seed", "steps")))


@cache
def sections(listed: bool, roomy: bool = False) -> Mapping[str, Sequence[str]]:
    """The settings of each section; unless all are listed, the main ones and the others.

    With room the others are by section as well.
    """
    by_section: dict[str, list[str]] = {name: [] for name in SECTION_NAMES}
    for path in INFO:
        section, _, leaf = path.partition(".")
        by_section[section if leaf else "run"].append(path)
    if listed:
        return by_section
    others = {name: [p for p in paths if p not in MAIN] for name, paths in by_section.items()}
    if roomy:
        return {"main": MAIN, **others}
    return {"main": MAIN, CHANGED: [path for paths in others.values() for path in paths]}


def matches(info: Setting, search: str) -> bool:
    """Whether every search word occurs in the setting's path or help."""
    text = f"{info.path} {info.help}".lower()
    return all(part in text for part in search.lower().split())


# -- from presets and the store -------------------------------------------------------------

MAX_RUNS = 500
MAX_PRICED = 30  # runs that a cost may be estimated from
METRICS = ("completions/mean_length", "reward")


def preset_view(name: str) -> NewRunView:
    """The form of a preset."""
    chosen = preset(name)
    return NewRunView(form=RunForm(chosen.config, Origin(name=name, summary=chosen.description)))


def clone_view(reader: StoreReader, ref: str) -> NewRunView:
    """The form of a run's settings; those that this version does not have are named."""
    detail = reader.trained(ref, "clone")
    run = detail.summary
    name = run.title
    tree, unknown = split_unknown(detail.config)
    summary = run_summary(run) + (f"; no longer known: {', '.join(unknown)}" if unknown else "")
    origin = Origin(kind="clone", name=name, summary=summary, run=run.id)
    return NewRunView(form=RunForm(consent.build(tree, f"run {name}"), origin))


def load_runs(reader: StoreReader) -> tuple[RunSummary, ...]:
    """The newest runs, with the data for cost estimates."""
    runs = reader.runs(metrics=METRICS, archived=True, limit=MAX_RUNS)
    priced = (replace(run, columns=reader.settings(run.key)) for run in runs[:MAX_PRICED])
    return (*priced, *runs[MAX_PRICED:])


def split_unknown(tree: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Split off the settings that this version does not have; the others and their paths."""
    tree, removed = without_removed(tree)
    result: dict[str, Any] = {}
    unknown = list(removed)
    for path, value in flat(tree).items():
        if path in settings():
            assign(result, path, value)
        else:
            unknown.append(path)
    return result, tuple(unknown)
