"""What the New run screen shows: the checked form, its rows, the cursor and trial results."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, Literal

from grpo_engine.config.declaration import Setting, as_text
from grpo_engine.config.parse import flatten, settings
from grpo_engine.config.recipes import SETTINGS, Recipe, available, recipe, settings_read
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import ConfigError
from grpo_tui.app.text.recipe_text import ASKS
from grpo_tui.app.tui.screens.new_run.form import FormField, RunForm, matches
from grpo_tui.experiments.values import RunSummary

FIRST = "first"
SECTIONS: Mapping[str, str] = {
    FIRST: "main settings",
    "run": "name and seed",
    **{
        name: name for name in RunConfig.model_fields if name not in ("name", "seed", "steps")
    },
}  # fmt: skip
TOP = (
    "model.path", "task.name", "algorithm.recipe", "algorithm.beta", "optimizer.learning_rate",
    "rollout.prompts", "rollout.group_size", "steps",
)  # fmt: skip
OPENED = ("rollout", "rewards", "optimizer", "evaluation", "task", "model", "checkpoint", "record")
INFO: Mapping[str, Setting] = settings()
PAGES = ("recipe", "prompts", "try", "play", "yaml", "cost", "diff", "probe")
Page = Literal["recipe", "prompts", "try", "play", "yaml", "cost", "diff", "probe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of the form's settings."""

    kind: Literal["preset", "clone"]
    name: str
    about: str
    run: str = ""


@dataclass(frozen=True, slots=True)
class Played:
    """An episode that the user plays: the dialogue so far, and who speaks next."""

    lines: tuple[tuple[str, str], ...] = ()
    turn: Literal["nobody", "person", "environment"] = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checked:
    """A form with everything derived from it; compared by identity."""

    fields: Mapping[str, FormField]
    errors: Mapping[str, str]
    config: RunConfig | None
    recipe: Recipe | None
    read: frozenset[str]

    @property
    def changed(self) -> tuple[str, ...]:
        """The settings that differ from the preset or the parent."""
        return tuple(path for path, row in self.fields.items() if row.changed)

    @property
    def own(self) -> Mapping[str, Any]:
        """The recipe's own values of the settings that are set to other ones, by path."""
        if self.recipe is None:
            return {}
        named = recipe(self.recipe.name)
        pairs = {name: getattr(named, name) for name, info in SETTINGS.items() if not info.option}
        return {
            f"algorithm.{name}": value
            for name, value in pairs.items()
            if self.fields[f"algorithm.{name}"].text and getattr(self.recipe, name) != value
        }


def check(form: RunForm) -> Checked:
    """Build the config, and assign each error to the field that should be changed."""
    found = form.errors()
    config = None
    if not found:
        config = form.config()
    chosen = _recipe_of(form, config, found)
    read = frozenset(settings_read(chosen)) if chosen is not None else frozenset()
    return Checked(fields=form.fields(found), errors=found, config=config, recipe=chosen, read=read)


def _recipe_of(form: RunForm, config: RunConfig | None, errors: Mapping[str, str]) -> Recipe | None:
    """The form's recipe; if fields are invalid, the recipe of its valid algorithm edits alone."""
    if config is not None:
        return config.algorithm.resolved()
    edits = {path: text for path, text in form.edits.items() if path == "algorithm.recipe"
             or (path.startswith("algorithm.") and path not in errors)}  # fmt: skip
    try:
        return replace(form, edits=edits).config().algorithm.resolved()
    except ConfigError:
        return available()[0].get(form.edits.get("algorithm.recipe", form.base.algorithm.recipe))


@dataclass(frozen=True, slots=True)
class Row:
    """A line for the cursor: a setting, or the heading of a section."""

    id: str
    field: FormField | None = None
    section: str = ""
    count: int = 0
    changed: int = 0
    wrong: int = 0
    open: bool = True
    question: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The screen's state; every change returns a new one."""

    form: RunForm
    origin: Origin
    checked: Checked
    cursor: str = "model.path"
    open: frozenset[str] = frozenset({FIRST, "run"})
    search: str = ""
    only_changed: bool = False
    editing: bool = False
    page: Page = "recipe"
    runs: tuple[RunSummary, ...] = ()
    lacking: str = ""
    yaml_problem: str = ""
    examples: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)
    trial: Mapping[str, Any] = field(default_factory=dict)
    tried: Checked | None = None  # the settings that `trial` is about
    probe: Mapping[str, Any] = field(default_factory=dict)
    played: Played = Played()
    example: int = 0
    busy: str = ""

    @property
    def rows(self) -> tuple[Row, ...]:
        """Section headings, and the settings that are in open sections or match the search."""
        wrong = frozenset(self.refused)
        return rows_of(self.checked, self.open, self.search, self.only_changed, wrong)

    @property
    def row(self) -> Row:
        """The line under the cursor."""
        rows = self.rows
        return next((row for row in rows if row.id == self.cursor), rows[0] if rows else Row("#"))

    @property
    def chosen(self) -> FormField | None:
        """The setting under the cursor."""
        return self.row.field

    @property
    def config(self) -> RunConfig | None:
        """The run's settings with its name; None while there are errors."""
        config = self.checked.config
        if config is None or self.yaml_problem:
            return None
        return config.model_copy(update={"name": self.name})

    @property
    def name(self) -> str:
        """The typed name, otherwise the suggested one."""
        typed = self.checked.fields["name"]
        return typed.text if typed.changed else suggest(self)

    @property
    def verdict(self) -> Mapping[str, Any]:
        """What the trial of these settings found; empty until they are tried."""
        return self.trial if self.tried is self.checked else {}

    @property
    def refused(self) -> dict[str, str]:
        """By setting, why a run would fail at its first step."""
        return dict(self.verdict.get("problems", ()))

    @property
    def wrong(self) -> dict[str, str]:
        """By setting, what has to be changed."""
        return {**self.refused, **self.checked.errors}

    @property
    def problems(self) -> int:
        """The number of problems that prevent launching."""
        return len(self.wrong) + bool(self.yaml_problem)

    # -- moves ------------------------------------------------------------------------------

    def with_form(self, form: RunForm) -> "View":
        """Use another form, checked."""
        return replace(self, form=form, checked=check(form), yaml_problem="")

    def moved(self, by: int) -> "View":
        """Move the cursor."""
        ids = [row.id for row in self.rows]
        at = ids.index(self.row.id) if self.row.id in ids else 0
        place = max(0, min(len(ids) - 1, at + by))
        return replace(self, cursor=ids[place] if ids else self.cursor)

    def to_section(self, by: int) -> "View":
        """Move to the heading of another section."""
        rows = self.rows
        at = next((i for i, row in enumerate(rows) if row.id == self.row.id), 0)
        heads = [i for i, row in enumerate(rows) if row.field is None]
        later = [i for i in heads if i > at] if by > 0 else [i for i in heads if i < at][::-1]
        return replace(self, cursor=rows[later[0]].id) if later else self

    def toggled(self, *, opened: bool | None = None) -> "View":
        """Open or close the section under the cursor."""
        section = self.row.section
        is_open = section in self.open
        if opened is None:
            opened = not is_open
        names = self.open | {section} if opened else self.open - {section}
        cursor = self.cursor if opened else f"#{section}"
        return replace(self, open=names, cursor=cursor)

    def opened_to_fit(self, lines: int) -> "View":
        """Open the most used sections, as long as all lines fit on the screen."""
        view = self
        for section in OPENED:
            wider = replace(view, open=view.open | {section})
            if len(wider.rows) <= lines:
                view = wider
        return view

    def searched(self, text: str) -> "View":
        """Show only the settings that match, and move the cursor to the first of them."""
        view = replace(self, search=text)
        if view.row.field is None or (view.chosen is not None and view.row.id != self.cursor):
            first = next((row.id for row in view.rows if row.field is not None), self.cursor)
            view = replace(view, cursor=first)
        return view


@lru_cache(maxsize=8)
def rows_of(
    checked: Checked, opened: frozenset[str], search: str, only_changed: bool,
    wrong: frozenset[str],
) -> tuple[Row, ...]:  # fmt: skip
    """The lines of the list; cached, since they are read many times between two changes."""
    rows: list[Row] = []
    sifted = bool(search) or only_changed
    for section, members in members_of(sifted).items():
        fields = [checked.fields[path] for path in members]
        fitting = [f for f in fields if matches(f.info, search)]
        if only_changed:
            fitting = [f for f in fitting if f.changed or f.error or f.info.path in wrong]
        if sifted and not fitting:
            continue
        is_open = sifted or section in opened
        rows.append(
            Row(f"#{section}", None, section, len(fitting), sum(f.changed for f in fitting),
                sum(bool(f.error) or f.info.path in wrong for f in fitting), is_open)
        )  # fmt: skip
        if is_open:
            rows += [
                Row(f.info.path, f, section, question=question_of(f.info.path)) for f in fitting
            ]
    return tuple(rows)


@cache
def members_of(whole: bool = False) -> dict[str, list[str]]:
    """The settings of each section in form order; the main ones are only in the first section.

    If `whole`, as in a filtered list, they are in their own sections.
    """
    found: dict[str, list[str]] = {name: [] for name in SECTIONS}
    order = [*ASKS, ""]
    for path, info in INFO.items():
        section, _, leaf = path.partition(".")
        if info.main and not whole:
            found[FIRST].append(path)
        else:
            found[section if leaf else "run"].append(path)
    found[FIRST].sort(key=lambda path: TOP.index(path) if path in TOP else len(TOP))
    found["algorithm"].sort(key=lambda path: order.index(question_of(path)))
    return {name: paths for name, paths in found.items() if paths}


def question_of(path: str) -> str:
    """The choice that a setting belongs to; empty if none."""
    section, _, name = path.partition(".")
    if section != "algorithm" or name not in SETTINGS:
        return ""
    return name if name in ASKS else SETTINGS[name].belongs


SHORT = {
    "learning_rate": "lr", "group_size": "group", "max_new_tokens": "tokens",
    "temperature": "temp", "lora_rank": "rank", "name": "", "path": "", "recipe": "",
}  # fmt: skip
MOST_IN_NAME = 2


def suggest(view: View) -> str:
    """Suggest an unused name from the origin and the changes."""
    from grpo_tui.experiments.db.names import free_name

    stem = view.form.base.name or view.origin.name
    changed = [path for path in view.checked.changed if path != "name"]
    if len(changed) <= MOST_IN_NAME:
        for path in changed:
            leaf = path.rpartition(".")[2]
            text = view.checked.fields[path].text
            if view.checked.config is not None:
                text = as_text(flatten(view.checked.config)[path])
            text = text.replace("\\", "/").rstrip("/").split("/")[-1]
            text = re.sub(r"\.(jsonl?|csv|parquet|txt)$", "", text)
            value = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:24]
            stem += f"-{SHORT.get(leaf, leaf.replace('_', '-'))}{value or 'off'}"
    else:
        stem += f"-{len(changed)}-changes"
    taken = {run.name for run in view.runs}
    return free_name(stem, taken.__contains__)
