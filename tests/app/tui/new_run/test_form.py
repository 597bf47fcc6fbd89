"""The form: typed text becomes a config, and each error is shown at its field."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.config.declaration import as_text
from grpo_engine.config.parse import build, flatten, write_yaml
from grpo_engine.config.safe_yaml import parse_yaml
from grpo_engine.config.settings import RunConfig
from grpo_engine.presets import preset
from grpo_tui.app.tui.screens.new_run.render import header_line
from grpo_tui.app.tui.screens.new_run.state import (
    NewRunView,
    RunForm,
    cost,
)
from grpo_tui.experiments.db.configs import flat

BASE = build({"rollout": {"prompts": 4}, "algorithm": {"recipe": "dapo"}})


def test_typed_text_becomes_the_config() -> None:
    form = RunForm(BASE).type("optimizer.learning_rate", "3e-4").type("rollout.stop", "a,b")
    config = form.build()
    assert config.optimizer.learning_rate == 3e-4
    assert config.rollout.stop == ("a", "b")
    assert config.rollout.prompts == 4


def test_typing_the_old_value_undoes_the_change() -> None:
    form = RunForm(BASE).type("rollout.prompts", "9").type("rollout.prompts", "4")
    assert form.edits == {}


def test_what_belongs_to_a_changed_setting_is_in_force_as_the_form_shows_it() -> None:
    base = build({"rewards": {"functions": ["length", "contains"], "weights": [1, 2]}})
    # the functions that stay keep their weights, and the form shows that
    form = RunForm(base).type("rewards.functions", "contains")
    assert form.build().rewards.weights == (2.0,)
    assert (form.fields["rewards.weights"].text, form.fields["rewards.weights"].start) == (
        "2",
        "1,2",
    )
    # weights typed for the new ones stay, even if they are those of the old ones
    form = RunForm(base).type("rewards.functions", "length,regex").type("rewards.weights", "1,2")
    assert form.build().rewards.weights == (1.0, 2.0)
    assert build(parse_yaml(write_yaml(form.build()))).rewards == form.build().rewards
    # and too many are refused
    form = form.type("rewards.weights", "1,2,3")
    assert "3 values for 2 rewards.functions" in form.errors["rewards.weights"]


def test_a_new_reward_has_weight_1_and_the_others_keep_theirs() -> None:
    base = build({"rewards": {"functions": ["length", "contains"], "weights": [3, 2]}})

    def weights(form: RunForm) -> str:
        return form.fields["rewards.weights"].text

    form = RunForm(base)
    for end in range(len("length,contains,regex") + 1):  # as one types it
        form = form.type("rewards.functions", "length,contains,regex"[:end])
    assert (weights(form), form.errors) == ("3,2,1", {})
    form = form.type("rewards.weights", "3,5,4").type("rewards.functions", "regex,contains")
    assert weights(form) == "4,5"
    # what all weigh as much has no weights, before and after
    equal = RunForm(build({"rewards": {"functions": ["length"]}}))
    assert weights(equal.type("rewards.functions", "length,regex")) == ""
    assert RunForm(base).type("rewards.functions", "x").reset("rewards.functions").edits == {}


@given(
    functions=st.lists(st.sampled_from(["length", "contains", "regex"]), max_size=3, unique=True),
    weights=st.lists(st.sampled_from([1.0, 2.0]), max_size=3),
    options=st.sampled_from(["{}", "{kinds: [add]}"]),
    order=st.permutations(["rewards.functions", "rewards.weights", "task.options", "task.name"]),
)
def test_every_field_shows_the_value_that_the_run_uses(
    functions: list[str], weights: list[float], options: str, order: list[str]
) -> None:
    base = build(
        {
            "rewards": {"functions": ["length", "contains"], "weights": [1, 2]},
            "task": {"options": {"kinds": ["add"]}},
        }
    )
    texts = {
        "rewards.functions": as_text(functions),
        "rewards.weights": as_text(weights),
        "task.options": options,
        "task.name": "countdown",
    }
    form = RunForm(base)
    for path in order:
        form = form.type(path, texts[path])
        if form.config is not None:
            values = flatten(form.config)
            for name in texts:
                assert form.fields[name].text == as_text(values[name]), name


def test_an_error_stands_at_its_field_and_the_others_are_taken() -> None:
    form = RunForm(BASE).type("rollout.temperature", "0").type("seed", "5")
    errors = form.errors
    assert list(errors) == ["rollout.temperature"]
    assert errors["rollout.temperature"] == "must be a number > 0 and ≤ 10, such as 1; got 0"


def test_numbers_in_a_list_are_refused_together() -> None:
    base = build({"rewards": {"functions": ["length", "contains"], "weights": [1, 2]}})
    errors = RunForm(base).type("rewards.weights", "1,x").errors
    assert list(errors) == ["rewards.weights"]
    assert errors["rewards.weights"].startswith("must be a list, each item a number, such as 1,2; ")


def test_an_error_of_several_fields_stands_at_the_one_that_was_edited_last() -> None:
    form = RunForm(RunConfig()).type("algorithm.minibatches", "100")
    assert "at most the answers of a step (64)" in form.errors["algorithm.minibatches"]
    form = RunForm(RunConfig()).type("algorithm.ratio", "none")
    assert "ratio=none" in form.errors["algorithm.ratio"]
    form = form.type("algorithm.trust", "cispo").type("seed", "4")
    assert "ratio=none" in form.errors["algorithm.trust"]
    form = RunForm(BASE).type("algorithm.minibatches", "30").type("rollout.prompts", "2")
    assert "at most the answers of a step (16)" in form.errors["rollout.prompts"]


def test_weights_that_go_with_the_old_rewards_are_a_change() -> None:
    base = build({"rewards": {"functions": ["accuracy", "format"], "weights": [1.0, 0.1]}})
    form = RunForm(base).type("rewards.functions", "accuracy, length")
    assert set(form.changed) == {"rewards.functions", "rewards.weights"}
    assert not RunForm(base).changed


def test_every_default_can_be_typed_as_it_is_shown() -> None:
    base = RunConfig()
    other = build({"steps": 7})
    form = RunForm(other)
    for path, value in flatten(base).items():
        text = as_text(value)
        if text:
            form = form.type(path, text)
    assert form.build() == base


def test_a_mapping_is_typed_as_it_is_shown() -> None:
    base = build({"task": {"name": "gsm8k", "options": {"prefix": "Q: ", "seed": 1}}})
    assert as_text(flatten(base)["task.options"]) == "{prefix: 'Q: ', seed: 1}"
    form = RunForm(base).type("task.options", "{seed: 2}")
    assert form.build().task.options == {"seed": 2}
    assert build(parse_yaml(write_yaml(form.build()))) == form.build()
    assert RunForm(base).type("task.system_prompt", "{a: 1}").build().task.system_prompt == "{a: 1}"


def test_cost_without_a_former_run_assumes_the_longest_answers() -> None:
    # 4 prompts x 8 answers x 64 tokens = 2048 tokens; x 20 bytes x 100 steps = 4.1 MB
    got = cost(BASE)
    assert got.tokens == 2048 * 100
    assert got.seconds is None
    assert got.gigabytes == pytest.approx(2048 * 20 * 100 / 1e9)


def test_cost_is_that_of_a_completed_run_whose_steps_take_as_long() -> None:
    def ran(name: str, elapsed: float, changes: Any = (), status: str = "completed") -> Any:
        metrics = {"completions/mean_length": SimpleNamespace(mean=32.0)}
        columns = flat(BASE.model_dump(mode="json")) | dict(changes)
        return SimpleNamespace(
            title=name,
            model=BASE.model.path,
            status=status,
            tokens=4096,
            elapsed=elapsed,
            step=100,
            attempts=1,
            started_at="2026-11-30T10:00:00+00:00",
            ended_at="2026-11-30T10:02:00+00:00",
            metrics=metrics,
            columns=columns,
        )

    runs: Any = [
        ran("other", 1.0, {"algorithm.passes": 2}),
        ran("broke", 1.0, status="failed"),
        ran("stopped", 1.0, {"optimizer.learning_rate": 1.0}, status="stopped"),
        ran("two", 12.0, {"steps": 9, "optimizer.learning_rate": 1.0}),
        ran("one", 20.0),
    ]
    # 4 prompts x 8 answers x 32 tokens = 1024 tokens, of 4096 in 20 s, or in 12 s
    got = cost(BASE, runs)
    assert (got.step_seconds, got.run) == (5.0, "one")
    # as many evaluations as in that run, which was there for 120 s, 100 of them beside its steps
    assert got.held_out > 0
    assert got.seconds == pytest.approx(5.0 * 100 + 100.0)
    got = cost(BASE, runs[:-1])
    assert (got.step_seconds, got.run) == (3.0, "two")
    got = cost(BASE, runs[:3])  # of one that was stopped only the speed is known
    assert got.seconds == pytest.approx((got.tokens + got.held_out) * 1.0 / 4096)
    assert cost(BASE, runs, 0).held_out == 0  # a task without held-out problems
    assert cost(BASE, runs[:3]).run == "stopped"
    assert cost(BASE, runs[:2]).seconds is None


def test_the_hint_to_a_setting_is_not_given_where_it_is_set() -> None:
    def shown(*lines: tuple[str, str]) -> str:
        form = RunForm(preset("starter").config)
        for path, text in lines:
            form = form.type(path, text)
        offers = {"options": {"chat": ["", "", True]}}
        view = replace(NewRunView(form=form).with_offers(offers), ready={"now": ""})
        return "".join(text for text, _ in header_line(view, 200))

    own = ("task.name", "rows.jsonl")
    assert "own data: task.options.chat true" in shown(own)
    assert "task.options.chat" not in shown(own, ("task.options", "{chat: true}"))


def test_two_settings_that_are_wrong_alone_and_right_together_are_taken() -> None:
    base = build({"rewards": {"functions": ["a", "b"], "weights": [1, 2]}})
    form = RunForm(base).type("rewards.functions", "a").type("rewards.weights", "1")
    assert form.errors == {}
    assert list(form.type("seed", "x").errors) == ["seed"]
    assert list(form.type("rewards.weights", "1,2,3").errors) == ["rewards.weights"]
