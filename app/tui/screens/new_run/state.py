"""The state of New run: a form that is checked as one types, its costs, and its trials."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, InvalidOperation
from functools import cache, cached_property
from math import isfinite, prod
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal

from grpo_engine.config.declaration import Setting, as_text
from grpo_engine.config.parse import (
    OWNER,
    OWNERS,
    build,
    flatten,
    merge,
    parse_sets,
    problems,
    settings,
    write_yaml,
)
from grpo_engine.config.recipes import SETTINGS, Recipe, available, recipe, settings_read
from grpo_engine.config.removed import without_removed
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError
from grpo_engine.presets import preset
from grpo_tui.app.jobs.sweep import values_in
from grpo_tui.app.text.recipe_text import ASKS
from grpo_tui.experiments.errors import QueryError
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

RECIPE, PRESET, SEEDS = "algorithm.recipe", "preset", "seeds"
MAX_SWEEP = 256  # runs
# Lines of the form that are no settings of a run.
FORM_ONLY: Final[Mapping[str, Setting]] = {
    PRESET: Setting(path=PRESET, annotation=str, default="starter",
                    help="What the settings start from: a preset, or an earlier run as a clone."),
    SEEDS: Setting(path=SEEDS, annotation=int, default=1, ge=1, le=100,
                   help="The number of runs that differ in their seed only, counted up from "
                        "`seed`. More than one makes a sweep, as several values of a setting do."),
}  # fmt: skip
INFO: Final[Mapping[str, Setting]] = {**FORM_ONLY, **settings()}
MAIN = (
    "preset", "model.path", "task.name", RECIPE, "algorithm.beta", "optimizer.learning_rate",
    "rollout.prompts", "rollout.group_size", "steps", "name", "seed", "seeds",
)  # fmt: skip


# -- the form -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """One line of the form, and the section that lists it."""

    info: Setting
    text: str
    changed: bool
    section: str = ""

    @property
    def path(self) -> str:
        return self.info.path


def can_sweep(info: Setting) -> bool:
    """Whether commas separate values to try; in lists and in free text they are part of it."""
    is_value = info.number or info.choices or bool in info.types or info.path == RECIPE
    return bool(is_value) and not info.is_list and info.path not in FORM_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
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
    origin: Origin = Origin()
    edits: Mapping[str, str] = field(default_factory=dict)

    # -- edits ------------------------------------------------------------------------------

    def type(self, path: str, text: str) -> "RunForm":
        """The form with one field edited; typing its value at the start removes the edit."""
        edits = {key: value for key, value in self.edits.items() if key != path}
        if text != as_text(self.start[path]):
            edits[path] = text
        return replace(self, edits=edits)

    def reset(self, *paths: str) -> "RunForm":
        """The form with fields reset to the base."""
        return replace(self, edits={k: v for k, v in self.edits.items() if k not in paths})

    @cached_property
    def start(self) -> Mapping[str, Any]:
        """The base's values, without those that belonged to what was replaced."""
        owners = {path: text for path, text in self._single.items() if path in OWNERS}
        remaining = merge(self.base.model_dump(), parse_sets(_pairs(owners)))
        start = {PRESET: self.origin.name, SEEDS: 1, **flatten(self.base)}
        for path, info in settings().items():
            section, _, leaf = path.partition(".")
            if leaf and leaf not in remaining[section]:
                start[path] = info.default
        return start

    # -- what follows from them -------------------------------------------------------------

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
        from grpo_tui.experiments.queue import points

        return [(point, self.at(point).build()) for point in points(self.axes)]

    def build(self) -> RunConfig:
        """Build the config, or raise one ConfigError that lists every problem."""
        return build(self._tree(self._single), source="this run")

    def _tree(self, edits: Mapping[str, str]) -> dict[str, Any]:
        return merge(self.base.model_dump(), parse_sets(_pairs(edits)))

    @cached_property
    def config(self) -> RunConfig | None:
        """The settings, or those of a sweep's first point; None while there are errors."""
        return None if self.errors else self.build()

    @cached_property
    def errors(self) -> Mapping[str, str]:
        """Problems, by the setting to change; every value of a sweep is checked by itself."""
        errors = {
            path: "has an empty value; remove the comma that is too many"
            for path, values in self.axes.items() if "" in values
        } or self._errors(self._single)  # fmt: skip
        for path, values in self.axes.items():
            for value in filter(None, values[1:]):
                for setting, text in self._errors({**self._single, path: value}).items():
                    errors.setdefault(setting, f"{value}: {text}" if setting == path else text)
        seeds = self.edits.get(SEEDS, "1")
        if not INFO[SEEDS].accepts(seeds):
            errors[SEEDS] = INFO[SEEDS].refusal(seeds)
        elif self.count > MAX_SWEEP:
            path = [path for path in self.edits if path in self.axes or path == SEEDS][-1]
            errors[path] = f"makes {self.count:,} runs; a sweep has at most {MAX_SWEEP}"
        return errors

    def _errors(self, edits: Mapping[str, str]) -> dict[str, str]:
        """Conflicts between settings are only checked among those that are valid by themselves."""
        errors: dict[str, str] = {}
        for _ in range(2):
            valid = {path: text for path, text in edits.items() if path not in errors}
            refused = problems(self._tree(valid))
            if not refused:
                break
            for problem in refused:
                errors.setdefault(self._setting_of(problem.settings), problem.text)
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
            changed = text != as_text((base if path in OWNER else start)[path])
            fields[path] = FormField(info=info, text=text, changed=changed)
        return fields

    @cached_property
    def changed(self) -> tuple[str, ...]:
        """The settings that differ from the preset or the parent."""
        return tuple(path for path, row in self.fields.items() if row.changed)

    # -- the recipe -------------------------------------------------------------------------

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe; with errors, that of the valid algorithm edits alone."""
        if self.config is not None:
            return self.config.algorithm.resolved()
        edits = {path: text for path, text in self._single.items() if path == RECIPE
                 or (path.startswith("algorithm.") and path not in self.errors)}  # fmt: skip
        try:
            return replace(self, edits=edits).build().algorithm.resolved()
        except ConfigError:
            return available()[0].get(edits.get(RECIPE) or self.base.algorithm.recipe or "")

    @cached_property
    def settings_read(self) -> frozenset[str]:
        """The settings that the recipe reads."""
        return frozenset(settings_read(self.recipe)) if self.recipe is not None else frozenset()

    @cached_property
    def overrides(self) -> Mapping[str, Any]:
        """The recipe's values of the settings that are set to other ones, by path."""
        if self.recipe is None:
            return {}
        named = recipe(self.recipe.name)
        pairs = {name: getattr(named, name) for name, info in SETTINGS.items() if not info.option}
        return {
            f"algorithm.{name}": value
            for name, value in pairs.items()
            if self.fields[f"algorithm.{name}"].text and getattr(self.recipe, name) != value
        }

    def with_recipe(self, name: str) -> "RunForm":
        """Switch to another recipe, clearing the settings that the recipe would refuse."""
        form = self.type(RECIPE, name)
        read = settings_read(recipe(name))
        for clear_all in (False, True):
            if not any(path.startswith("algorithm.") for path in form.errors):
                break
            for path, value in form.start.items():
                section, _, leaf = path.partition(".")
                text = form.edits.get(path, as_text(value))
                if section == "algorithm" and path != RECIPE and text and (
                    clear_all or leaf not in read
                ):  # fmt: skip
                    form = form.type(path, as_text(INFO[path].default))
        return form

    # -- YAML -------------------------------------------------------------------------------

    def to_yaml(self) -> str:
        """The differences from the defaults, as YAML."""
        return write_yaml(self.build())


def _pairs(edits: Mapping[str, str]) -> list[str]:
    return [f"{path}={text}" for path, text in edits.items() if path not in FORM_ONLY]


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


def next_number(info: Setting, text: str, by: int) -> str | None:
    """The number after this one, in steps of its leading digit; None where there is none.

    Whole numbers go by 1 below 100, then by their second digit: 64, 65; 200, 210.
    """
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    if info.number is None or not value.is_finite():
        return None
    inwards = value * by < 0  # towards 0, where the digits below a power of ten count: 0.1, 0.09
    if info.number is int:
        power = max(0, (abs(value) - inwards).adjusted() - 1)
    elif value:
        power = value.adjusted() - (inwards and abs(value) == Decimal(1).scaleb(value.adjusted()))
    else:
        power = -2
    units = value.scaleb(-power).to_integral_value(ROUND_FLOOR if by > 0 else ROUND_CEILING)
    result = float((units + by).scaleb(power))
    if not info.accepts(result):
        return None
    return str(round(result)) if info.number is int else as_text(result)


# -- costs ----------------------------------------------------------------------------------

# Disk bytes per recorded token, compressed, with two passes and a reference.
BYTES_PER_TOKEN = 20.0
# share of the tokens
RECORDED = {"all": 1.0, "every": 0.1, "pinned": 0.0, "none": 0.0, "nothing": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a step and a run will cost; None if unknown."""

    rollouts_per_step: int
    tokens_per_step: int
    seconds_per_step: float | None
    seconds: float | None
    gigabytes: float
    source: str


def cost(config: RunConfig, runs: Sequence[RunSummary] = ()) -> Cost:
    """Estimate costs from the config and the latest local run of the same model."""
    rollouts = config.training.rows
    latest = next((run for run in runs if run.model == config.model.path and run.step > 0), None)
    length, seconds = float(config.rollout.max_new_tokens), None
    source = "no run of this model on this machine yet: the longest answers are assumed"
    if latest is not None:
        source = f"as in {latest.name or latest.id}, by the number of tokens"
        means = {name: summary.mean for name, summary in latest.metrics.items()}
        time, former = means.get("step_time"), means.get("completions/mean_length")
        sizes = [n for name in COLUMNS if isinstance(n := latest.columns.get(name), int)]
        length = length if former is None else min(length, former)
        if time is not None and former is not None and len(sizes) == len(COLUMNS):
            seconds = time * rollouts * length / max(prod(sizes) * former, 1.0)
            seconds = seconds if isfinite(seconds) else None
    tokens = round(rollouts * length)
    recorded = tokens * BYTES_PER_TOKEN * RECORDED[config.record.tokens]
    return Cost(
        rollouts_per_step=rollouts,
        tokens_per_step=tokens,
        seconds_per_step=seconds,
        seconds=None if seconds is None else seconds * config.steps,
        gigabytes=recorded * config.steps / 1e9,
        source=source,
    )


# -- the screen's state ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class View:
    """The screen's state; every change returns a new one."""

    form: RunForm
    cursor: str = PRESET
    search: str = ""
    all_settings: bool = False
    editing: bool = False
    page: str = "cost"
    runs: tuple[RunSummary, ...] = ()

    examples: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)
    ready: Mapping[str, Any] = field(default_factory=dict)  # empty until the settings are tried

    example: int = 0
    activity: str = ""

    @property
    def listed(self) -> bool:
        """Whether settings are listed by section, and not the main ones."""
        return bool(self.search or self.all_settings)

    @cached_property
    def rows(self) -> list[FormField]:
        """The main settings and what is changed; or all that match, by section."""
        return [
            replace(row, section=section)
            for section, paths in sections(self.listed).items()
            for row in map(self.form.fields.__getitem__, paths)
            if matches(row.info, self.search)
            and (section != CHANGED or row.changed or row.path in self.errors)
        ]

    @cached_property
    def row(self) -> FormField | None:
        """The line under the cursor."""
        rows = self.rows
        return next((row for row in rows if row.path == self.cursor), rows[0] if rows else None)

    @property
    def config(self) -> RunConfig | None:
        """The run's settings with its name; None while there are errors."""
        if self.form.config is None:
            return None
        return self.form.config.model_copy(update={"name": self.name})

    @property
    def name(self) -> str:
        """The typed name, otherwise the suggested one."""
        typed = self.form.fields["name"]
        return typed.text if typed.changed else suggest(self)

    @property
    def refused(self) -> dict[str, str]:
        """By setting, why a run would fail at its first step."""
        return dict(self.ready.get("problems", ()))

    @cached_property
    def errors(self) -> dict[str, str]:
        """By setting, what has to be changed."""
        return {**self.refused, **self.form.errors}

    @property
    def error_count(self) -> int:
        """The number of problems that prevent launching."""
        return len(self.errors)

    @property
    def total_cost(self) -> tuple[float | None, float]:
        """Seconds and gigabytes of all runs together."""
        costs = [cost(config, self.runs) for _, config in self.form.points] * self.form.seeds
        is_known = costs[0].seconds is not None  # all are of one model
        time = sum(price.seconds or 0 for price in costs) if is_known else None
        return time, sum(price.gigabytes for price in costs)

    # -- moves ------------------------------------------------------------------------------

    def with_form(self, form: RunForm) -> "View":
        """Use a form; another one is not tried yet."""
        ready = self.ready if form is self.form else {}
        return replace(self, form=form, ready=ready)

    def moved(self, by: int) -> "View":
        """Move the cursor."""
        paths = [row.path for row in self.rows]
        index = paths.index(self.cursor) if self.cursor in paths else 0
        index = max(0, min(len(paths) - 1, index + by))
        return replace(self, cursor=paths[index] if paths else self.cursor)

    def searched(self, text: str) -> "View":
        """Show only the settings that match; the cursor goes to the first, best by its path."""
        view = replace(self, search=text)
        paths = [row.path for row in view.rows]
        named = [path for path in paths if text.strip().lower() in path] if text.strip() else []
        if self.cursor in (named or paths):
            return view
        return replace(view, cursor=(named or paths)[0]) if paths else view

    def refuses(self, path: str, text: str) -> bool:
        """Whether a value contradicts other settings of its section."""
        section = path.partition(".")[0]
        edits = {p: t for p, t in self.form.edits.items() if p.partition(".")[0] == section}
        return bool(replace(self.form, edits=edits).type(path, text).errors)


CHANGED = "changed"
SECTION_NAMES = ("run", *(n for n in RunConfig.model_fields if n not in ("name", "seed", "steps")))


@cache
def sections(listed: bool) -> Mapping[str, Sequence[str]]:
    """The settings of each section; unless all are listed, the main ones and the others."""
    by_section: dict[str, list[str]] = {name: [] for name in SECTION_NAMES}
    for path in INFO:
        section, _, leaf = path.partition(".")
        by_section[section if leaf else "run"].append(path)
    order = [*ASKS, ""]
    by_section["algorithm"].sort(key=lambda path: order.index(choice_of(path)))
    if listed:
        return by_section
    others = [path for paths in by_section.values() for path in paths if path not in MAIN]
    return {"main": MAIN, CHANGED: others}


def choice_of(path: str) -> str:
    """The choice that a setting belongs to; empty if none."""
    section, _, name = path.partition(".")
    if section != "algorithm" or name not in SETTINGS:
        return ""
    return name if name in ASKS else SETTINGS[name].belongs


def matches(info: Setting, search: str) -> bool:
    """Whether every search word occurs in the setting's path or help."""
    text = f"{info.path} {info.help}".lower()
    return all(part in text for part in search.lower().split())


SHORT = {
    "learning_rate": "lr", "group_size": "group", "max_new_tokens": "tokens",
    "temperature": "temp", "lora_rank": "rank", "name": "", "path": "", "recipe": "",
}  # fmt: skip
MAX_IN_NAME = 2


def suggest(view: View) -> str:
    """Suggest an unused name from the origin and the changes."""
    from grpo_tui.experiments.db.names import free_name

    form = view.form
    stem = form.base.name or form.origin.name
    changed = list(form.axes) or [p for p in form.changed if p not in ("name", SEEDS)]
    if len(changed) <= MAX_IN_NAME:
        for path in changed:
            leaf = path.rpartition(".")[2]
            text = form.fields[path].text
            if form.config is not None and path not in form.axes:
                text = as_text(flatten(form.config)[path])
            text = text.replace("\\", "/").rstrip("/").split("/")[-1]
            text = re.sub(r"\.(jsonl?|csv|parquet|txt)$", "", text)
            value = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:24]
            stem += f"-{SHORT.get(leaf, leaf.replace('_', '-'))}{value or 'off'}"
    else:
        stem += f"-{len(changed)}-changes"
    taken = {run.name for run in view.runs}
    if form.axes or SEEDS in form.edits:  # the runs of a sweep are numbered
        taken |= {name.rpartition("-")[0] for name in taken}
    return free_name(stem, taken)


# -- from presets and the store -------------------------------------------------------------

MAX_RUNS = 500
METRICS = ("completions/mean_length", "step_time", "reward")
COLUMNS = ("rollout.prompts", "rollout.group_size")


def preset_view(name: str) -> View:
    """The form of a preset."""
    chosen = preset(name)
    return View(form=RunForm(chosen.config, Origin(name=name, summary=chosen.about)))


def clone_view(reader: "StoreReader", ref: str) -> View:
    """The form of a run's settings; those that this version does not have are named."""
    detail = reader.run(reader.resolve(ref).key)
    run = detail.summary
    name = run.name or run.id
    tree, unknown = split_unknown(detail.config)
    summary = f"{run.status} at step {run.step} of {run.total_steps}, id {run.id}, {run.task} with "
    summary += run.recipe + (f"; no longer known: {', '.join(unknown)}" if unknown else "")
    origin = Origin(kind="clone", name=name, summary=summary, run=run.id)
    return View(form=RunForm(build(tree, f"run {name}"), origin))


def load_runs(reader: "StoreReader") -> tuple[RunSummary, ...]:
    """The newest runs, with the data for cost estimates."""
    with suppress(QueryError):  # no run has these settings
        return reader.runs(columns=COLUMNS, metrics=METRICS, archived=True, limit=MAX_RUNS)
    return reader.runs(metrics=METRICS, archived=True, limit=MAX_RUNS)


def split_unknown(tree: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Split off the settings that this version does not have; the others and their paths."""
    tree, removed = without_removed(tree)
    result: dict[str, Any] = {}
    unknown = [*removed]
    for name, value in tree.items():
        is_section = any(path.startswith(f"{name}.") for path in INFO)
        if is_section and isinstance(value, Mapping):
            result[name] = {k: entry for k, entry in value.items() if f"{name}.{k}" in INFO}
            unknown += [f"{name}.{key}" for key in value if f"{name}.{key}" not in INFO]
        elif name in settings() or is_section:
            result[name] = value
        else:
            unknown.append(name)
    return result, tuple(unknown)
