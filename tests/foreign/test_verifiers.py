"""verifiers' evaluations, of both layouts: every value, and rows that are damaged or odd."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.foreign.importing import Imported, Options, import_runs
from tests.foreign.made import detail, events, groups

HERE = Path(__file__).parent / "verifiers"
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"text": "6 * 7"}}\n</tool_call>'


def take(store: Path, folder: Path) -> list[Imported]:
    return import_runs(folder, Options(store=store))


@pytest.mark.parametrize("layout", ["0.4", "0.1"])
def test_answers_have_their_turns_scores_and_targets(store: Path, layout: str) -> None:
    take(store, HERE / layout)
    (step, first), (_, second) = groups(store)
    assert (step, first.origin) == (0, "eval")
    right, wrong = first.rollouts
    assert right.text == f"{CALL}42It is 42."
    assert [(span.kind, span.turn, span.chars) for span in right.spans] == [
        ("model", 0, len(CALL)),
        ("environment", 0, 2),
        ("model", 1, 9),
    ]
    assert (wrong.text, wrong.spans) == ("It is 7.", ())
    assert (right.finish, wrong.finish) == ("stop" if layout == "0.4" else "", "length")
    # The score plus a fifth of one half.
    assert [right.reward, wrong.reward] == pytest.approx([1.1, 0.1])
    scores = {score.name: score.value for score in wrong.rewards}
    assert (scores["right"], scores["short"]) == (0.0, 0.5)
    assert (first.target, second.target) == ("42", "13")
    assert len(second.rollouts) == 1


def test_settings_of_both_layouts_are_there(store: Path) -> None:
    take(store, HERE / "0.4")
    (_, first), _ = groups(store)
    assert (first.prompt_text, first.example_key) == ("What is 6 * 7?", "6 * 7")
    assert first.sampling == {"temperature": 0.7}
    weights = {score.name: score.weight for score in first.rollouts[0].rewards}
    assert weights == {"num_turns": 0.0, "right": 1.0, "short": 0.2}
    run = detail(store)
    assert (run.summary.model, run.settings["theirs.num_rollouts"]) == ("org/model", 2)

    take(store, HERE / "0.1")
    (_, first), _ = groups(store)
    assert first.prompt_text == "system: Answer with a number.\nuser: What is 6 * 7?"
    assert (first.example_key, first.sampling) == ("sums 0", {"temperature": 0.0})
    assert first.rollouts[0].model_tokens == 6
    run = detail(store)
    assert (run.summary.model, run.settings["theirs.env_id"]) == ("org/model", "sums")


@pytest.mark.parametrize(("layout", "prefix"), [("0.4", "eval/"), ("0.1", "eval/greedy/")])
def test_it_is_an_evaluation_whose_means_are_over_its_problems(
    store: Path, layout: str, prefix: str
) -> None:
    """The first problem has the rewards 1.1 and .1, the second 1.1: (.6 + 1.1) / 2."""
    take(store, HERE / layout)
    with StoreReader(store) as reader:
        key = reader.resolve("@last").key
        values = {
            name: reader.metric_series(key, f"{prefix}{name}").values
            for name in ("reward", "rewards/right")
        }
    assert values == {"reward": (pytest.approx(0.85),), "rewards/right": (0.75,)}
    (held_out,) = (e for e in events(store) if isinstance(e, ev.EvaluationFinished))
    assert held_out.mode == ("sampled" if layout == "0.4" else "greedy")
    assert [(row.samples, row.rewards["right"]) for row in held_out.rows] == [(2, 0.5), (1, 1.0)]
    run = detail(store)
    assert run.trainer == "verifiers"
    assert run.files is not None
    assert run.files.missing["advantages"] == "an evaluation trains nothing"


def test_answers_that_arrive_later_are_not_a_second_run(store: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(HERE / "0.1", tmp_path / "run")
    assert take(store, folder)
    assert take(store, folder) == []
    assert take(store, folder / "results.jsonl")  # the file alone has no settings
    assert len(list(groups(store))) == 2


def changed(folder: Path, layout: str, **fields: Any) -> Path:
    """An evaluation with other fields in its second row; in episodes those of the trace."""
    shutil.copytree(HERE / layout, folder)
    path = folder / ("traces.jsonl" if layout == "0.4" else "results.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    target = lines[1]["traces"][0] if layout == "0.4" else lines[1]
    target |= fields
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"completion": ["a"]}, "completion must be a text or a list of messages"),
        ({"completion": {"a": 1}}, "completion must be a text or a list of messages"),
        ({"reward": "high"}, "reward must be a number, got 'high'"),
    ],
)
def test_a_damaged_row_is_named(
    fields: dict[str, Any], sentence: str, store: Path, tmp_path: Path
) -> None:
    with pytest.raises(ImportRefusedError, match=rf"results\.jsonl:2: {sentence}"):
        take(store, changed(tmp_path / "run", "0.1", **fields))


@pytest.mark.parametrize(
    ("layout", "fields"),
    [
        ("0.1", {"completion": None}),  # its rollout failed
        ("0.1", {"completion": "a text"}),
        ("0.1", {"metrics": [1], "token_usage": {"output_tokens": -3}}),
        ("0.1", {"stop_condition": {"a": 1}, "is_truncated": "yes", "answer": ["x"]}),
        ("0.1", {"completion": [{"role": 3, "content": [{"type": "image_url"}, "x"]}]}),
        ("0.1", {"completion": [{"role": "assistant", "tool_calls": ["{", 7, None]}]}),
        ("0.1", {"completion": [{"role": "assistant", "content": "\x1b[2J\ud800"}]}),
        ("0.4", {"nodes": []}),
        ("0.4", {"nodes": [{"parent": 0, "sampled": True}]}),
        ("0.4", {"nodes": 7, "rewards": [1], "metrics": {"a": "NaN"}}),
        ("0.4", {"rewards": {"right": {"score": 10**400, "weight": "x"}}}),
        ("0.4", {"task": None, "calls": [{"finish_reason": [1]}]}),
    ],
)
def test_an_odd_row_keeps_no_other_out(
    layout: str, fields: dict[str, Any], store: Path, tmp_path: Path
) -> None:
    take(store, changed(tmp_path / "run", layout, **fields))
    answers = [answer for _, group in groups(store) for answer in group.rollouts]
    assert len(answers) == 3
    assert sum(answer.text.endswith("It is 13.") for answer in answers) == 1


def test_settings_that_are_no_json_are_named(store: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(HERE / "0.1", tmp_path / "run")
    (folder / "metadata.json").write_text("{")
    with pytest.raises(ImportRefusedError, match=r"metadata\.json cannot be read: .*; correct it"):
        take(store, folder)
    (folder / "metadata.json").write_text("[1]")
    take(store, folder)
    assert detail(store).trainer == "verifiers"
