"""What TRL itself wrote is read as it is, and what is not in its files is not guessed."""

import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from grpo_engine import events as ev
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.foreign import trl
from grpo_tui.foreign.importing import Options, import_runs
from tests.foreign.made import HERE, detail, events, groups, texts

FOUR = [1.0, 0.0, 0.0, 1.0]


def written(folder: Path, step: int = 1, **columns: list[Any]) -> Path:
    """A step of one prompt with four answers, and these columns."""
    (folder / "completions").mkdir(parents=True, exist_ok=True)
    path = folder / "completions" / f"completions_{step:05d}.parquet"
    texts = {"step": [step] * 4, "prompt": ["1 + 1 ="] * 4, "completion": list("abcd")}
    parquet.write_table(pa.table(texts | columns), path)
    return path


def rewards(store: Path) -> list[tuple[float | None, list[tuple[str, float | None, float]]]]:
    return [
        (answer.reward, [(item.name, item.value, item.weight) for item in answer.rewards])
        for _, group in groups(store)
        for answer in group.rollouts
    ]


def test_a_run_of_trl_is_read_with_its_metrics(store: Path) -> None:
    import_runs(HERE / "trl", Options(store=store))
    assert [len(group.rollouts) for _, group in groups(store)] == [4] * 8
    (first, *_), (last, *_) = (list(groups(store))[place][1].rollouts for place in (0, 7))
    assert first.text == "48</think><answer>44</answer>"
    assert first.advantage == pytest.approx(0.118392, abs=1e-6)
    # digits 4/29, short 1/29, letters 17/10; the user's own column `size` counts for nothing
    assert first.reward == pytest.approx(4 / 29 + 1 / 29 + 1.7)
    weights = {reward.name: reward.weight for reward in last.rewards}
    assert weights == {"digits": 1.0, "short": 1.0, "letters": 1.0, "size": 0.0}
    finished = [event for event in events(store) if isinstance(event, ev.StepFinished)]
    assert finished[0].metrics["loss"] == pytest.approx(-0.0718297)
    assert finished[0].metrics["reward"] == pytest.approx(1.5627946)
    # 0.305 + 0.137 + 0.459 + 0.546 seconds, as TRL logged them
    assert finished[3].elapsed == pytest.approx(1.446, abs=2e-3)
    assert detail(store).summary.tokens == 559


def test_without_the_log_the_functions_are_those_whose_sum_explains_the_advantages(
    store: Path, tmp_path: Path
) -> None:
    shutil.copytree(HERE / "trl" / "completions", tmp_path / "out" / "completions")
    import_runs(tmp_path / "out" / "completions", Options(store=store))
    (total, scores), *_ = rewards(store)
    assert total == pytest.approx(4 / 29 + 1 / 29 + 1.7)
    assert [weight for *_, weight in scores] == [1.0, 1.0, 1.0, 0.0]
    assert detail(store).summary.name == "out"
    files = detail(store).files
    assert files is not None
    assert "metrics" in files.missing


def test_a_total_that_is_not_certain_is_absent(store: Path, tmp_path: Path) -> None:
    """With `reward_weights` of 1 and 3, right + form does not explain the advantages."""
    form = [0.0, 1.0, 0.0, 0.0]
    pushes = [right + 3 * other - 5 / 4 for right, other in zip(FOUR, form, strict=True)]
    written(tmp_path / "out", right=FOUR, form=form, advantage=pushes)
    import_runs(tmp_path / "out", Options(store=store))
    for total, scores in rewards(store):
        assert total is None
        assert [name for name, *_ in scores] == ["right", "form"]
        assert all(math.isnan(weight) for *_, weight in scores)
    files = detail(store).files
    assert files is not None
    assert "reward_weights" in files.missing["rewards"]


def test_a_function_that_does_not_apply_gives_no_score(store: Path, tmp_path: Path) -> None:
    """The total is 1, 0, nothing and 1: TRL counts nothing as 0."""
    written(tmp_path / "out", right=[1.0, 0.0, math.nan, 1.0], advantage=[0.5, -0.5, -0.5, 0.5])
    import_runs(tmp_path / "out", Options(store=store))
    assert [scores[0][1] for _, scores in rewards(store)] == [1.0, 0.0, None, 1.0]


def test_a_file_that_is_being_written_waits(store: Path, tmp_path: Path) -> None:
    written(tmp_path / "out", right=FOUR, advantage=FOUR)
    path = written(tmp_path / "out", 2, right=FOUR, advantage=FOUR)
    path.write_bytes(path.read_bytes()[:-3])
    messages: list[str] = []
    import_runs(tmp_path / "out", Options(store=store, progress=messages.append))
    assert len(texts(store)) == 4
    assert any("does not end like a Parquet file" in text for text in messages)


def test_files_that_do_not_end_well_are_named(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(store=store)
    path = written(tmp_path / "out", right=FOUR, advantage=FOUR)
    whole = path.read_bytes()
    path.write_bytes(whole[:60] + b"\xff" * 40 + whole[100:])
    with pytest.raises(ImportRefusedError, match=r"00001\.parquet is not a readable Parquet"):
        import_runs(tmp_path / "out", options)
    # A million equal texts take a few hundred bytes on disk.
    table = pa.table({"completion": pa.array(["x" * 99] * 200_000)})
    parquet.write_table(table, path)
    assert path.stat().st_size < 5_000
    with pytest.raises(ImportRefusedError, match=r"200,000 rows; a step has at most"):
        import_runs(tmp_path / "out", options)
    parquet.write_table(table.slice(0, 1_000), path)
    monkeypatch.setattr(trl, "LARGEST_FILE", 50_000)
    with pytest.raises(ImportRefusedError, match="unpacks to too much; correct it or take it"):
        import_runs(tmp_path / "out", options)
    path.write_bytes(whole)
    (tmp_path / "out" / "trainer_state.json").write_text('{"log_history": [{"step": "x"}]}')
    with pytest.raises(ImportRefusedError, match=r"trainer_state\.json cannot be read: .*delete"):
        import_runs(tmp_path / "out", options)


def test_without_pyarrow_a_sentence_says_what_to_install(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportRefusedError, match=r"pip install 'grpo-tui\[parquet\]'"):
        import_runs(HERE / "trl", Options(store=store))


@pytest.mark.parametrize(
    ("columns", "advantage"),
    [
        ({"right": FOUR}, [-0.5, 0.5, 0.5, -0.5]),  # a weight below 0
        ({"right": FOUR, "form": [1.0] * 4}, [0.5, -0.5, -0.5, 0.5]),  # with form or without it
    ],
)
def test_several_explanations_or_a_reversed_one_are_not_certain(
    columns: dict[str, Any], advantage: list[float], store: Path, tmp_path: Path
) -> None:
    written(tmp_path / "out", **columns, advantage=advantage)
    import_runs(tmp_path / "out", Options(store=store))
    assert [total for total, _ in rewards(store)] == [None] * 4
