"""Episodes of prime-rl, with what it learned of them later, in both layouts."""

import json
import math
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from grpo_engine import events as ev
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.foreign import streams
from grpo_tui.foreign.importing import Options, import_runs
from tests.foreign.made import HERE, detail, events, groups, names, texts

STREAM = Path("monitors/file/traces/stream")
ORCHESTRATOR = Path("monitors/file/traces/annotations/orchestrator/00000.jsonl")
TRAINER = Path("monitors/file/traces/annotations/trainer/00000.jsonl")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with tarfile.open(HERE / "prime_rl.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path / "prime_rl"


def seal(path: Path) -> None:
    with pyarrow.CompressedOutputStream(f"{path}.zst", "zstd") as packed:
        packed.write(path.read_bytes())
    path.unlink()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def old_layout(run: Path) -> Path:
    """The run as prime-rl wrote it before September 2026: a file for each step."""
    shipped = {row["trace_id"]: row["info"]["ship"]["step"] for row in lines(run / ORCHESTRATOR)}
    for chunk in sorted((run / STREAM).iterdir()):
        for episode in lines(chunk):
            kind, step = episode["run"]["work"]["type"], episode["run"]["work"]["step"]
            if kind == "eval" or episode["traces"][0]["id"] in shipped:
                path = run / f"rollouts/step_{step}/{kind}/effective/traces.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a") as file:
                    file.write(json.dumps(episode) + "\n")
    shutil.rmtree(run / "monitors")
    return run


def test_a_step_has_the_traces_that_it_was_trained_on_with_the_trainers_numbers(
    run: Path, store: Path
) -> None:
    """Step 3 is shipped, but the trainer has not come to it."""
    import_runs(run, Options(store=store))
    trained = [(step, group) for step, group in groups(store) if group.origin == "train"]
    assert [(step, len(group.rollouts)) for step, group in trained] == [(1, 2)] * 2 + [(2, 2)] * 2
    group = trained[0][1]
    assert group.prompt_text == "system: Answer with a number.\nuser: What is 6 * 7?"
    assert (group.target, group.example_key) == ("42", "6 * 7")
    assert group.prompt_ids == (1, 2, 3, 4, 5, 6, 7, 8, 9, 90, 91)
    plain, dialogue = group.rollouts
    assert (plain.text, plain.ids, plain.finish) == ("It is 42.", (20, 21, 22, 23), "stop")
    # right 1, and short 0.5 with a weight of 0.2
    assert plain.reward == pytest.approx(1.1)
    assert {item.name: item.weight for item in plain.rewards} == {
        "turns": 0.0,
        "right": 1.0,
        "short": 0.2,
    }
    assert plain.advantage == -(dialogue.advantage or 0.0)
    # 3 tokens call the tool; its reply has 2 and the template 2 more; then 4 answer.
    assert dialogue.ids == (10, 11, 12, 13, 14, 90, 91, 20, 21, 22, 23)
    assert [(span.kind, span.length, span.turn) for span in dialogue.spans] == [
        ("model", 3, 0),
        ("environment", 4, 0),
        ("model", 4, 1),
    ]
    assert sum(span.chars for span in dialogue.spans) == len(dialogue.text)
    assert dialogue.sampler_logprobs[3:7] == (0.0,) * 4


def test_numbers_by_token_are_those_of_the_files(run: Path, store: Path) -> None:
    import_runs(run, Options(store=store))
    (update,) = [row for row in lines(run / TRAINER) if row["trace_id"] == "train100"]
    branch = update["branches"][0]
    scored = [event for event in events(store) if isinstance(event, ev.TokensScored)]
    row = scored[0].numbers[0]
    assert row.old == pytest.approx(branch["trainer_logprobs"][11:])
    assert row.entropy == pytest.approx(branch["entropies"][11:])
    # In step 2 the last token of each answer is masked out of the loss.
    assert [item.mask for event in scored[2:4] for item in event.numbers] == [
        (1, 1, 1, 0),
        (1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0),
    ] * 2
    steps = [event for event in events(store) if isinstance(event, ev.StepFinished)]
    known = ("loss", "grad_norm", "learning_rate", "progress/tokens")
    assert [steps[1].metrics[name] for name in known] == [0.02, 0.25, 1e-5, 120.0]
    assert [step.elapsed for step in steps] == [2.5, 5.0]
    (held_out,) = [event for event in events(store) if isinstance(event, ev.EvaluationFinished)]
    assert [(row.example_key, row.samples) for row in held_out.rows] == [("6 * 7", 2), ("8 + 5", 2)]


def test_a_stream_is_followed_while_its_chunks_are_sealed(run: Path, store: Path) -> None:
    """The trainer comes to step 3 later; a chunk that was read while plain is sealed then."""
    notes = (run / TRAINER).read_text()
    third = [row["trace_id"] for row in lines(run / ORCHESTRATOR)[-4:]]

    def moves() -> Iterator[None]:
        yield
        yield
        assert len(texts(store)) == 12
        seal(run / STREAM / "00000.jsonl")
        streams_of = json.loads(notes.splitlines()[0])["branches"]
        more = "".join(
            json.dumps({"trace_id": uid, "info": {}, "branches": streams_of}) + "\n"
            for uid in third
        )
        with (run / TRAINER).open("a") as file:
            file.write(more[:-9])
            file.flush()
            yield
            file.write(more[-9:])
        seal(run / STREAM / "00001.jsonl")
        yield
        yield
        assert detail(store).summary.step == 3
        raise KeyboardInterrupt

    move = moves()
    import_runs(run, Options(store=store, follow=True, wait=lambda: next(move)))
    assert len(texts(store)) == 12 + 8
    assert import_runs(run, Options(store=store)) == []


def test_the_layout_of_before_is_read_without_what_it_lacks(run: Path, store: Path) -> None:
    import_runs(old_layout(run), Options(store=store))
    assert detail(store).summary.step == 3
    files = detail(store).files
    assert files is not None
    assert "since September 2026" in files.missing["the trainer's log-probabilities"]
    assert "the sampler's log-probabilities" in files.recorded
    answers = [answer for _, group in groups(store) for answer in group.rollouts]
    assert len(answers) == 20
    assert all(answer.advantage is None for answer in answers)


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"nodes": 7}, ""),
        ({"nodes": [{"parent": 5, "sampled": True, "message": {"content": ["x"]}}]}, "x"),
        ({"rewards": {"right": 1}, "metrics": [1], "task": None}, "It is 42."),
        ({"rewards": {"right": {"score": math.inf, "weight": "w"}}}, "It is 42."),
        ({"agent": None, "calls": [{"finish_reason": ["stop"]}]}, "It is 42."),
    ],
)
def test_fields_that_are_not_as_they_should_be_are_left_out(
    fields: dict[str, Any], answer: str, run: Path, store: Path
) -> None:
    path = run / STREAM / "00000.jsonl"
    episodes = lines(path)
    episodes[0]["traces"][0] |= fields
    path.write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
    import_runs(run, Options(store=store))
    assert answer in texts(store)
    assert detail(store).summary.step == 2


def test_damage_is_named(run: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LARGEST_CHUNK", 1_000)
    seal(run / STREAM / "00000.jsonl")
    with pytest.raises(ImportRefusedError, match=r"00000\.jsonl\.zst unpacks to more than"):
        import_runs(run, Options(store=store))
    (run / STREAM / "00000.jsonl.zst").write_bytes(b"no zstd")
    with pytest.raises(ImportRefusedError, match=r"00000\.jsonl\.zst cannot be unpacked: "):
        import_runs(run, Options(store=store))
    (run / STREAM / "00000.jsonl.zst").unlink()
    (run / STREAM / "00000.jsonl").write_bytes(b'{"traces": []}\n{"a": 1\n')
    with pytest.raises(ImportRefusedError, match=r"00000\.jsonl:2 is not JSON: .*correct it"):
        import_runs(run, Options(store=store))
    (run / ORCHESTRATOR).write_text('{"info": {}}\n')
    with pytest.raises(ImportRefusedError, match=r"orchestrator/00000\.jsonl:1: trace_id must be"):
        import_runs(run, Options(store=store))
    assert not store.exists() or names(store) == []


def test_an_evaluation_that_ends_after_its_step_was_recorded_is_taken_as_a_whole(
    run: Path, store: Path
) -> None:
    """Of step 2's evaluation the first of four answers is there in time, the others later."""
    chunks = sorted((run / STREAM).iterdir())
    episodes = [line for chunk in chunks for line in chunk.read_text().splitlines()]
    works = [json.loads(line)["run"]["work"] for line in episodes]
    held_out = [
        line
        for line, work in zip(episodes, works, strict=True)
        if work["type"] == "eval" and work["step"] <= 2
    ]
    assert len(held_out) == 4
    for chunk in chunks:
        kept = [line for line in chunk.read_text().splitlines() if line not in held_out[1:]]
        chunk.write_text("\n".join([*kept, ""]))
    samples: list[int] = []

    def evaluated() -> int:
        with StoreReader(store) as reader:
            key = reader.resolve("@last").key
            (stored,) = reader.evaluations(key)
            answers = [group.rollouts for group in reader.groups(key, origin="eval")]
            series = reader.metric_series(key, "eval/rewards/right")
        assert (stored.step, series.steps) == (2, (2,))
        return sum(len(rollouts) for rollouts in answers)

    def moves() -> Iterator[None]:
        yield
        yield
        samples.append(evaluated())
        with chunks[-1].open("a") as file:
            file.write("\n".join([*held_out[1:], ""]))
        yield  # it may be growing
        yield
        yield
        samples.append(evaluated())
        raise KeyboardInterrupt

    move = moves()
    import_runs(run, Options(store=store, follow=True, wait=lambda: next(move)))
    assert samples == [1, 4]
    (last,) = [e for e in events(store) if isinstance(e, ev.EvaluationFinished)]
    assert [row.samples for row in last.rows] == [2, 2]
