"""Screens on runs of other trainers: what is absent says why in its own place, and is no number."""

import tarfile
from pathlib import Path

from grpo_tui.app.feed.run_state import RunState
from grpo_tui.app.feed.snapshot import Head
from grpo_tui.app.inspector.stored import GroupDetail, load_group, load_step
from grpo_tui.app.tui.screens.rollouts.render import text_rows
from grpo_tui.app.tui.screens.watch.render import function_lines
from grpo_tui.app.tui.widgets.panel import plain_text
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.foreign.importing import Options, import_runs
from tests.foreign.made import HERE, events


def group(store: Path) -> GroupDetail:
    with StoreReader(store) as reader:
        step = load_step(reader, reader.resolve("@last").key, None)
        return load_group(reader, step, step.groups[0])


def test_what_a_trainer_did_not_record_has_a_sentence_with_its_remedy(store: Path) -> None:
    import_runs(HERE / "verl", Options(store=store))
    assert group(store).missing == (
        "verl did not record tokens: verl has no setting that writes them to files"
    )
    import_runs(HERE / "trl", Options(store=store))
    assert group(store).missing == (
        "TRL did not record tokens: TRL writes none; `grpo_tui.trl.watch(trainer)` records them "
        "as it trains"
    )


def test_tokens_without_texts_are_gone_through_by_their_ids(store: Path, tmp_path: Path) -> None:
    with tarfile.open(HERE / "prime_rl.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    import_runs(tmp_path / "prime_rl", Options(store=store))
    plain, dialogue = group(store).completions
    assert not plain.by_token
    assert [plain.token_text(token) for token in plain.tokens] == [
        "id 20",
        "id 21",
        "id 22",
        "id 23",
    ]
    assert list(dialogue.tokens) == [0, 1, 2, 7, 8, 9, 10]
    (row,) = text_rows(plain, 60)
    assert plain_text([row.note]) == plain.rollout.text


def test_a_weight_that_is_not_known_has_no_factor(store: Path) -> None:
    import_runs(HERE / "verl", Options(store=store))
    state = RunState(Head())
    for event in events(store):
        state.apply(event, None)
    text = plain_text(function_lines(state.snapshot(), 50))
    assert "acc" in text
    assert "×" not in text
