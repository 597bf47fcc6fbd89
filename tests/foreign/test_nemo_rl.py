"""NeMo-RL's files: every value of its answers, and lines that are damaged or odd."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.foreign.importing import Options, import_runs
from tests.foreign.made import detail, events, groups

HERE = Path(__file__).parent / "nemo_rl"


def imported(store: Path, folder: Path = HERE) -> dict[tuple[int, str], list[ev.Group]]:
    """The groups by step and origin."""
    import_runs(folder, Options(store=store))
    found: dict[tuple[int, str], list[ev.Group]] = {}
    for step, group in groups(store):
        found.setdefault((step, group.origin), []).append(group)
    return found


def changed(folder: Path, **fields: Any) -> Path:
    """The first step, with other fields in its second line; None takes one out."""
    folder.mkdir()
    text = (HERE / "train_data_step1.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    values = {**lines[1], **fields}
    lines[1] = {name: value for name, value in values.items() if value is not None}
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "train_data_step1.jsonl").write_text(text)
    return folder


def numbers(store: Path, step: int) -> list[list[ev.TokenNumbers]]:
    return [
        list(event.numbers)
        for event in events(store)
        if isinstance(event, ev.TokensScored) and event.step == step
    ]


def test_answers_have_their_tokens_log_probabilities_and_advantages(store: Path) -> None:
    by_step = imported(store)
    assert list(by_step) == [(0, "eval"), (1, "train"), (2, "train"), (2, "eval"), (3, "train")]
    first, second = by_step[2, "train"]
    # As in runs of our own, held-out groups have numbers of their own.
    assert [g.index for g in (first, second, *by_step[2, "eval"])] == [0, 1, 0]
    assert [group.prompt_text for group in (first, second)] == ["What is 2 + 2?", "What is 3 + 4?"]
    assert (first.prompt_ids, second.prompt_ids) == ((1, 50, 51), (1, 52, 53, 54))
    right, wrong = first.rollouts
    assert (right.text, right.ids, right.reward) == ("It is 4", (60, 61, 2), 1.0)
    # Longer rows of the batch pad it: its two tokens end before that.
    assert (wrong.text, wrong.ids, wrong.reward) == ("5", (62, 2), 0.0)
    assert (right.advantage, wrong.advantage) == (0.5, -0.5)
    assert right.sampler_logprobs == (-0.5, -0.25, -0.5)
    (of_right, _), (left_out, _) = numbers(store, 2)
    assert of_right.old == (-0.625, -0.375, -0.625)
    assert of_right.advantages == (0.5, 0.5, 0.5)
    # `sample_loss_mask` takes the whole answer out of the loss.
    assert (of_right.mask, left_out.mask) == ((), (0, 0))
    assert second.rollouts[0].advantage == 0.75


def test_a_dialogue_has_its_turns_and_zeros_that_stand_for_nothing_are_absent(store: Path) -> None:
    ((group,),) = [v for (step, _), v in imported(store).items() if step == 3]
    dialogue, empty = group.rollouts
    assert dialogue.text == "add(2, 2)4so 4"
    assert [(s.kind, s.turn, s.start, s.length, s.chars) for s in dialogue.spans] == [
        ("model", 0, 0, 2, 9),
        ("environment", 0, 2, 3, 1),
        ("model", 1, 5, 2, 4),
    ]
    assert dialogue.model_tokens == 4
    ((of_dialogue, of_empty),) = numbers(store, 3)
    assert of_dialogue.mask == (1, 1, 0, 0, 0, 1, 1)
    assert (of_dialogue.old, of_empty.old) == ((), ())  # skipped with force_on_policy_ratio
    assert (empty.text, empty.ids, empty.spans) == ("", (2,), ())


def test_validations_are_evaluations(store: Path) -> None:
    (group,) = imported(store)[0, "eval"]
    assert group.prompt_text == "What is 1 + 1?"
    assert [(answer.text, answer.reward) for answer in group.rollouts] == [
        ("0 of it", 0.0),
        ("1 of it", 1.0),
    ]
    with StoreReader(store) as reader:
        series = reader.metric_series(reader.resolve("@last").key, "eval/reward")
    assert dict(zip(series.steps, series.values, strict=True)) == {0: 0.5, 2: 1.0}
    run = detail(store)
    assert (run.trainer, run.summary.step) == ("NeMo-RL", 3)
    assert run.files is not None
    assert run.files.recorded == (
        "answers",
        "rewards",
        "advantages",
        "tokens",
        "the sampler's log-probabilities",
        "the trainer's log-probabilities",
        "held-out evaluations",
    )
    assert "metrics" in run.files.missing


def test_with_dynamic_sampling_the_rewards_are_those_that_were_kept(
    store: Path, tmp_path: Path
) -> None:
    """Beside `filtered_rewards`, `rewards` are those of all that was sampled, row by row."""
    folder = changed(tmp_path / "run", filtered_rewards=[0.75], rewards=[9.0])
    (group, _) = imported(store, folder)[1, "train"]
    assert [answer.reward for answer in group.rollouts] == [1.0, 0.75]


def test_without_tokens_the_text_and_the_reward_remain(store: Path, tmp_path: Path) -> None:
    names = ("token_ids", "token_loss_mask", "advantages", "generation_logprobs", "prev_logprobs")
    folder = changed(tmp_path / "run", **dict.fromkeys(names), input_lengths=[5])
    answer = imported(store, folder)[1, "train"][1].rollouts[0]
    assert (answer.text, answer.reward, answer.model_tokens) == ("5", 0.0, None)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"content": ["text"]}, "content must be a list of a list of texts, got"),
        ({"content": [["a", 1]]}, "content must be a list of a list of texts"),
        ({"content": None}, "content must be a list of a list of texts, got None"),
        ({"token_ids": [["a"]]}, "token_ids must be a list of a list of numbers"),
        ({"token_ids": [[1], [2]]}, "token_ids must be a list of one element"),
        ({"token_ids": {"a": 1}}, "token_ids must be a list of one element"),
        ({"prev_logprobs": [[None]]}, "prev_logprobs must be a list of a list of numbers"),
    ],
)
def test_a_damaged_field_is_named_with_its_line(
    fields: dict[str, Any], sentence: str, store: Path, tmp_path: Path
) -> None:
    folder = changed(tmp_path / "run", **fields)
    with pytest.raises(ImportRefusedError, match=rf"train_data_step1\.jsonl:2: {sentence}"):
        imported(store, folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"input_lengths": [10**30]},
        {"input_lengths": [-1]},
        {"input_lengths": ["five"]},
        {"token_loss_mask": [[]]},
        {"token_loss_mask": [[1] * 99]},
        {"sample_loss_mask": ["x"]},
        {"advantages": [[]]},
        {"advantages": [0.5]},
        {"generation_logprobs": [[-1.0]]},
        {"token_ids": [[2**40, -1]]},
        {"rewards": [float("nan")]},
        {"content": [["\x1b[2J\ud800", "5"]]},
        {"content": [[]]},
    ],
)
def test_an_odd_field_keeps_no_other_answer_out(
    fields: dict[str, Any], store: Path, tmp_path: Path
) -> None:
    by_step = imported(store, changed(tmp_path / "run", **fields))
    answers = [answer for group in by_step[1, "train"] for answer in group.rollouts]
    assert len(answers) == 4
    assert (answers[-1].text, answers[-1].ids) == ("seven", (64, 65, 2))
