"""The form behind the New run screen: errors at their fields, rows, names, recipes, costs."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_engine.config.parse import build
from grpo_engine.presets import names
from grpo_tui.app.tui.screens.new_run.render import (
    cost_lines,
    form_blocks,
    header_line,
    help_lines,
    is_unread,
    memory_lines,
    value_text,
)
from grpo_tui.app.tui.screens.new_run.state import (
    INFO,
    NewRunView,
    RunForm,
    preset_view,
    sections,
    split_unknown,
)
from grpo_tui.app.tui.widgets.panel import Line


def typed(view: NewRunView, **texts: str) -> NewRunView:
    """The view with these settings typed; `__` replaces the dot."""
    form = view.form
    for path, text in texts.items():
        form = form.type(path.replace("__", "."), text)
    return view.with_form(form)


def words(lines: list[Line]) -> str:
    return "\n".join("".join(text for text, _ in line) for line in lines)


def test_a_search_goes_to_the_setting_that_it_names() -> None:
    """The help of rewards.completions has the word as well."""
    view = replace(preset_view("starter"), cursor="rewards.completions").searched("functions")
    assert "rewards.completions" in [row.path for row in view.rows]
    assert view.cursor == "rewards.functions"


@pytest.mark.parametrize("name", names())
def test_every_preset_opens_ready_and_unchanged(name: str) -> None:
    view = preset_view(name)
    assert not view.errors
    assert view.form.changed == ()
    assert view.config is not None


def test_a_step_that_does_not_fit_is_refused_where_its_memory_stands() -> None:
    for memory in ({"refused": "needs 90 GB"}, {"refused": "", "problem": "not known"}):
        lines = memory_lines(replace(preset_view("starter"), memory=memory), 80)
        assert "".join(memory.values()) in words(lines)


def test_every_setting_stands_in_the_form_exactly_once() -> None:
    for listed_by_section in (False, True):
        listed = [path for paths in sections(listed_by_section).values() for path in paths]
        assert sorted(listed) == sorted(INFO)


def test_how_to_sample_is_unread_where_the_data_has_the_answers() -> None:
    view = typed(preset_view("starter"), algorithm__recipe="sft")
    fields = view.form.fields
    assert is_unread(view, fields["rollout.group_size"])
    assert is_unread(view, fields["rollout.temperature"])
    assert not is_unread(view, fields["rollout.prompts"])
    assert value_text(view, fields["rollout.group_size"])[1] == "not read"


def test_the_starter_is_said_to_know_one_task() -> None:
    ready = {"problems": [], "now": "", "fetches": []}
    for task, text in (("arithmetic", "✓ ready"), ("rows.jsonl", "starter knows arithmetic")):
        view = replace(typed(preset_view("starter"), task__name=task), ready=ready)
        assert text in words([header_line(view, 160)])


def test_the_suggested_name_is_free_also_beside_the_runs_of_a_sweep() -> None:
    view = preset_view("starter")
    assert view.name == "starter"
    assert typed(view, name="mine", seed="3").name == "mine"
    runs: Any = tuple(SimpleNamespace(name=f"starter-{number}") for number in (1, 2))
    config = replace(view, runs=runs).config
    assert config is not None
    assert config.name == "starter-3"  # -2 is a run


def test_search_shows_settings_of_closed_sections_and_the_cursor_follows() -> None:
    view = preset_view("starter").searched("warm-up")
    assert [row.path for row in view.rows] == [
        "optimizer.schedule",
        "optimizer.warmup_steps",
        "optimizer.options",
        "optimizer.options.warmup_from_zero",
    ]
    assert view.cursor == "optimizer.schedule"
    assert [row.path for row in view.searched("nothing of the kind").rows] == []


def test_a_run_of_another_version_is_cloned_without_what_is_not_known() -> None:
    tree = {"seed": 3, "rollout": {"prompts": 2, "swirl": 1}, "magic": 7, "run": {"workers": 2}}
    kept, unknown = split_unknown(tree)
    assert build(kept).rollout.prompts == 2
    assert unknown == ("run.workers", "rollout.swirl", "magic")
    assert split_unknown({"run": {"workers": 0}}) == ({}, ())


def test_a_reward_field_says_what_the_functions_get() -> None:
    view = replace(preset_view("starter"), cursor="rewards.functions", search="rewards.functions")
    assert "chat messages" not in words(help_lines(view, 60))
    view = replace(view, examples={"gets": "completions as chat messages, because …"})
    assert "gets        completions as chat messages" in words(help_lines(view, 60))


def test_costs_count_answers_memory_and_what_is_done_beside_training() -> None:
    form = RunForm(build({"steps": 100, "rollout": {"prompts": 16, "group_size": 8}}))
    memory = {
        "peak": 2e9,
        "limit": 8e9,
        "weights": 1e9,
        "optimizer": 0.5e9,
        "sampling": 0.25e9,
        "update": 0.5e9,
        "refused": "",
        "dtype": "bfloat16",
        "max_rows": 48,
        "micro_rows": 4,
        "grad_checkpoint": True,
    }
    view = NewRunView(form=form, memory=memory)
    shown = words(cost_lines(view, 90))
    assert "48 answers sampled at a time, 4 per backward pass, layers recomputed" in shown
    # 16 prompts x 8 answers = 128; x 100 steps = 12,800; x 64 tokens = 8,192 a step
    assert "16 prompts × 8 = 128 a step, 13k in all" in shown
    assert "at most 8,192 a step" in shown
    assert "2 GB of 8 GB" in shown
    # sampling and update take turns: 2 = 1 + .5 + the larger of .25 and .5
    assert "weights 1 GB, optimizer .5 GB, sampling .25 GB or update .5 GB" in shown
    # 128 problems, greedy and one sample
    assert "256 answers 2 times" in shown
    # 4 pinned prompts x 8 answers
    assert "32 answers 11 times" in shown
    assert "1 of 16 groups (+6% time)" in shown
    assert "scored by the reference" not in shown


@pytest.mark.parametrize(("recipe", "more"), [("dr-grpo", True), ("grpo", False)])
def test_the_price_of_kl_at_beta_0_is_shown_where_no_penalty_pays_it(
    recipe: str, more: bool
) -> None:
    tree = {"record": {"kl": True}, "algorithm": {"recipe": recipe}, "rollout": {"prompts": 16}}
    form = RunForm(build(tree))
    shown = words(cost_lines(NewRunView(form=form), 90))
    assert ("128 answers scored by the reference as well: +100% of a forward" in shown) == more


def test_of_a_server_its_settings_are_listed_and_its_calls_stand_in_place_of_memory() -> None:
    view = preset_view("starter")
    assert "remote.url" in [row.path for row in view.rows]
    assert "remote.key_env" not in [row.path for row in view.rows]
    memory = {"peak": 2e9, "limit": 4e9, "refused": ""}  # of the settings before
    view = replace(typed(view, remote__url="http://localhost:8000"), memory=memory)
    assert not view.form.errors
    paths = [row.path for row in view.rows]
    assert {"remote.url", "remote.model", "remote.key_env", "remote.insecure"} <= set(paths)
    text = words(cost_lines(view, 70))
    assert "http://localhost:8000 has the weights" in text
    assert "GB of" not in text.replace("GB of token numbers", "")
    assert "memory" not in text
    assert "of memory" not in words([header_line(view, 200)])
    asked = {"calls": "at most 9 a step", "its tokens": "at most 400 read"}
    text = words(cost_lines(replace(view, memory={"server": asked, "refused": ""}), 70))
    assert "at most 9 a step" in text
    assert "at most 400 read" in text


def test_what_a_server_cannot_have_is_named_where_it_was_typed() -> None:
    view = typed(preset_view("starter"), remote__url="http://localhost:8000", rollout__top_p=".9")
    assert "rollout.top_p cannot be used with remote.url" in view.errors["rollout.top_p"]
    view = typed(preset_view("starter"), rollout__top_p=".9", remote__url="http://example.org")
    assert "readable over the network" in view.errors["remote.url"]
    view = typed(view, remote__insecure="true")
    assert "rollout.top_p cannot be used" in view.errors["remote.url"]


def test_the_help_beside_a_few_settings_is_not_cut() -> None:
    view = preset_view("starter").searched("beta")
    text = "\n".join(words(block) for block in form_blocks(view, 98))
    assert "Decay of the second moment" in text
    assert "…" not in text
