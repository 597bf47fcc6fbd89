"""Rows at different turns: decoded together they equal one row at a time from scratch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_engine.config.settings import ModelConfig
from grpo_engine.events import NoteWritten, RolloutsAdvanced, Span, unscored
from grpo_engine.policy.batch import micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.load import load_policy
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts import decode
from grpo_engine.rollouts.decode import sample_groups
from grpo_engine.rollouts.dialogue import EnvironmentReply, TurnLimits, Usage
from grpo_engine.rollouts.types import PromptRows, Sampling, Trajectory
from tests.engine.policy.helpers import drain, made_up_rows
from tests.engine.rollouts.dialogues import Scripted, dialogues, one_by_one, said
from tests.engine.rollouts.oracle import assert_same, sample_one_by_one
from tests.engine.runs import of
from tests.engine.tiny import AFM7, END, MAMBA, STOP, write_model

PROMPTS = [
    PromptRows(key=f"p{group}", group=group, ids=row.prompt_ids, rows=2)
    for group, row in enumerate(made_up_rows([(5, (1,)), (12, (1,)), (1, (1,))]))
]
ROWS = 6
# a random model seldom ends by itself
STOPS = ("a", "e", "i", "o", "u", " ", "\n", "1", "2", "3")
REPLIES = {
    (place, turn): said("x" * (1 + 5 * place % 7 + turn), reward=float(turn))
    for place in range(ROWS)
    for turn in range(3)
}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A model whose predictions are flat enough for log-probabilities to 1e-4."""
    folder = write_model(tmp_path_factory.mktemp("dialogues") / "tiny", scale=1.0)
    return load_policy(ModelConfig(path=str(folder)), seed=0)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted replies come by looks and not by the clock."""
    monkeypatch.setattr(decode, "PATIENCE", 60.0)


def sample(
    policy: Policy, sampling: Sampling, dialogue: Any, prompts: Sequence[PromptRows] = PROMPTS
) -> list[Trajectory]:
    rollouts: list[Trajectory] = drain(
        sample_groups(policy, prompts, sampling, seed=1, step=2, dialogues=dialogue)
    )[1]
    return rollouts


@st.composite
def scripts(draw: st.DrawFn) -> tuple[dict[Any, EnvironmentReply], dict[Any, int], dict[int, Any]]:
    """Replies of different lengths, errors and early ends, delays, and rows that never begin."""
    replies, delays = {}, {}
    for place in range(ROWS):
        for turn in range(4):
            kind = draw(st.sampled_from(["say"] * 6 + ["again", "end", "fail", "end with words"]))
            text = "y" * draw(st.integers(1, 30))
            delays[place, turn] = draw(st.sampled_from([0, 0, 1, 3, 40]))
            replies[place, turn] = {
                "say": said(text, reward=draw(st.sampled_from([None, 0.5]))),
                "again": said(text, restarts=True),
                "end": EnvironmentReply(done=True, reward=1.0),
                "end with words": said(text, done=True),
                "fail": EnvironmentReply(error="it broke"),
            }[kind]
    lost = draw(st.sets(st.integers(0, ROWS - 1), max_size=1))
    return replies, delays, {place: EnvironmentReply(error="reset: no") for place in lost}


LIMITS = st.dictionaries(
    st.tuples(st.integers(0, ROWS - 1), st.integers(0, 3)),
    st.builds(TurnLimits, tokens=st.integers(0, 9), stop=st.sampled_from([(), ("o", "5"), ("q",)])),
)


@pytest.mark.slow
@given(
    made=scripts(),
    limited=LIMITS,
    end=st.sampled_from([None, END, STOP]),
    max_turns=st.integers(1, 4),
    max_context=st.sampled_from([0, 60]),
    sampling=st.sampled_from(
        [
            Sampling(max_new_tokens=60, stop=STOPS),
            Sampling(max_new_tokens=25, stop=STOPS[:4], temperature=0.8, top_k=20),
            Sampling(max_new_tokens=40, stop=STOPS, max_rows=2, repetition_penalty=1.2),
        ]
    ),
)
@settings(max_examples=6)
def test_made_up_dialogues_equal_one_row_at_a_time_from_scratch(
    policy: Policy,
    made: Any,
    limited: Any,
    end: int | None,
    max_turns: int,
    max_context: int,
    sampling: Sampling,
) -> None:
    script, delays, failures = made
    episodes = Scripted(script, delays, failures, limited=limited)
    limits: dict[str, Any] = {"end": end, "max_turns": max_turns, "max_context": max_context}
    expected = one_by_one(
        policy,
        PROMPTS,
        sampling,
        dialogues(Scripted(script, failures=failures, limited=limited), **limits),
        script,
        seed=1,
        step=2,
    )
    assert_same(sample(policy, sampling, dialogues(episodes, **limits)), expected, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "batching", "notes"),
    [
        ({}, "graph", 0),
        ({"sliding_window": 6, "layer_types": ["full_attention", "sliding_attention"]}, "graph", 0),
        (MAMBA, "unpadded", 0),
        (AFM7, "separate", 1),
    ],
    ids=["plain", "windows", "states", "no batches"],
)
def test_kept_caches_serve_models_of_every_build(
    tmp_path: Path, changes: dict[str, Any], batching: str, notes: int
) -> None:
    """Also without a dialogue; a batch that is slow says so."""
    folder = write_model(tmp_path / "model", scale=1.0, **changes)
    policy = load_policy(ModelConfig(path=str(folder), compute="graph"), seed=0)
    sampling = Sampling(max_new_tokens=30, stop=STOPS)
    events, alone = drain(sample_groups(policy, PROMPTS, sampling, seed=1, step=2))
    assert_same(alone, sample_one_by_one(policy, PROMPTS, sampling, seed=1, step=2), 1e-4)
    assert sum(isinstance(event, NoteWritten) for event in events) == notes
    rollouts = sample(policy, sampling, dialogues(Scripted(REPLIES)))
    expected = one_by_one(
        policy, PROMPTS, sampling, dialogues(Scripted({})), REPLIES, seed=1, step=2
    )
    assert_same(rollouts, expected, 1e-4)
    assert policy.batching == batching
    assert max(len(rollout.spans) for rollout in rollouts) >= 3


def test_a_turn_follows_a_reply_that_the_template_renders_as_nothing(policy: Policy) -> None:
    by_graph = replace(policy, kernels=None)
    silent = replace(dialogues(Scripted(REPLIES), end=None), tokens=lambda *_: ())
    sampling = Sampling(max_new_tokens=40, stop=STOPS, temperature=0.7)
    rollouts = sample(by_graph, sampling, silent)
    assert max(rollout.spans[-1].turn for rollout in rollouts) >= 2
    assert_scores(by_graph, rollouts)


AGAIN = {
    (place, turn): replace(reply, restarts=(place + turn) % 2 == 0)
    for (place, turn), reply in REPLIES.items()
}


def test_tokens_after_a_restart_depend_on_none_before_it(policy: Policy) -> None:
    """Sampled and scored, by the kernels and the graph, and with a gradient."""
    for computes in (policy, replace(policy, kernels=None)):
        sampling = Sampling(max_new_tokens=40, stop=STOPS, temperature=0.7)
        rollouts = sample(computes, sampling, dialogues(Scripted(AGAIN)))
        assert sum(len(rollout.contexts) for rollout in rollouts) >= 4
        assert_scores(computes, rollouts)
        for rollout in rollouts:
            parts = rollout.segments()
            assert sum(len(part.ids) - len(part.forced) for part in parts) == rollout.length
            assert all(part.prompt_ids[0] == 258 for part in parts[1:])


def test_each_context_may_be_as_long_as_the_models(policy: Policy) -> None:
    """Of 40 tokens each: the third begins after more tokens than one may have."""
    again = {key: replace(reply, restarts=True) for key, reply in REPLIES.items()}
    limited = {key: TurnLimits(tokens=28) for key in again}
    rollouts = sample(
        policy,
        Sampling(max_new_tokens=90),
        dialogues(Scripted(again, limited=limited), max_context=40),
        PROMPTS[:1],
    )
    for rollout in rollouts:
        assert max(len(part.prompt_ids + part.ids) for part in rollout.segments()) <= 40
    assert all(rollout.contexts[-1][0] > 40 for rollout in rollouts)


def test_a_turn_that_its_limit_cut_is_reported_as_cut(policy: Policy) -> None:
    episodes = Scripted(REPLIES, limited={(0, 0): TurnLimits(tokens=3)})
    sampling = Sampling(max_new_tokens=40)
    (rollout, *_) = sample(policy, sampling, dialogues(episodes), PROMPTS[:1])
    assert rollout.spans[0].length == 3
    assert episodes.usages[0] == Usage(context=len(PROMPTS[0].ids), tokens=3, is_cut=True)


def assert_scores(policy: Policy, rollouts: Sequence[Trajectory]) -> None:
    for batch in micro_batches(rollouts, max_rows=4):
        scores = token_scores(policy, batch, temperature=0.7, gradient=False)
        for line, row in zip(np.array(scores.logprobs), batch.rows, strict=True):
            found = line[: len(rollouts[row].ids)]
            assert found == pytest.approx(rollouts[row].raw_logprobs, abs=1e-4)


def test_the_spans_of_a_dialogue_divide_its_tokens_and_its_text(policy: Policy) -> None:
    sampling = Sampling(max_new_tokens=40, stop=STOPS)
    episodes = Scripted(REPLIES)
    for place, rollout in enumerate(sample(policy, sampling, dialogues(episodes))):
        ends = np.cumsum([0, *(span.length for span in rollout.spans)])
        assert [span.start for span in rollout.spans] == ends[:-1].tolist()
        assert ends[-1] == len(rollout.ids)
        given = [
            at
            for span in rollout.spans
            if span.kind == "environment"
            for at in range(span.start, span.start + span.length)
        ]
        assert rollout.forced == tuple(given)
        assert rollout.length == len(rollout.ids) - len(given) <= 40
        assert len(rollout.ends) == len(rollout.ids)
        answers = [m["content"] for m in rollout.messages if m["role"] == "assistant"]
        assert answers[: len(episodes.answers.get(place, []))] == episodes.answers.get(place, [])
        assert "".join(answers) == _without_replies(rollout)


def _without_replies(rollout: Trajectory) -> str:
    """The characters of the text that belong to the model's tokens."""
    ends = (0, *rollout.ends)
    return "".join(
        rollout.text[ends[span.start] : ends[span.start + span.length]]
        for span in rollout.spans
        if span.kind == "model"
    )


def test_the_template_ends_a_turn_that_ended_otherwise_and_only_then(policy: Policy) -> None:
    """A quarter of all tokens end a turn; the template's is the one that ended the first."""
    often = replace(policy, end_ids=frozenset(range(0, 256, 4)))
    sampling = Sampling(max_new_tokens=60)
    opened = sample(often, sampling, dialogues(Scripted(REPLIES), end=None))[0]
    end = opened.ids[opened.spans[1].start - 1]
    seen = set()
    for rollout in sample(often, sampling, dialogues(Scripted(REPLIES), end=end)):
        for span in rollout.spans:
            if span.kind == "environment" and span.length:
                before, first = rollout.ids[span.start - 1], rollout.ids[span.start]
                assert first == (259 if before == end else end)
                seen.add(before == end)
    assert seen == {True, False}


@dataclass
class Clock:
    """A clock that each look moves on by a tick."""

    tick: float = 0.0
    now: float = 0.0

    def monotonic(self) -> float:
        self.now += self.tick
        return self.now


def test_a_slow_environment_holds_up_the_others_once(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait of at most 2.5 s by a clock that only waits move: 1 + 1 + .5."""

    clock = Clock()

    class Slow(Scripted):
        waited = 0.0

        def replies(self, seconds: float) -> list[tuple[int, EnvironmentReply]]:
            found = super().replies(seconds)
            clock.now += 0 if found else seconds
            if not found and sum(self.turns[place] for place in self.turns if place) < others:
                self.waited += seconds
            return found

    sampling = Sampling(max_new_tokens=60, stop=STOPS)
    plain = Scripted(REPLIES)
    sample(policy, sampling, dialogues(plain))
    others = sum(count for place, count in plain.turns.items() if place)
    monkeypatch.setattr(decode, "time", clock)
    monkeypatch.setattr(decode, "PATIENCE", 2.5)
    monkeypatch.setattr(decode, "TICK", 1.0)
    episodes = Slow(REPLIES, delays={(0, 0): 10_000})
    sample(policy, sampling, dialogues(episodes))
    assert episodes.waited == 2.5


def test_the_text_on_the_board_adds_up_to_the_text_of_the_rollout(policy: Policy) -> None:
    events, rollouts = drain(
        sample_groups(
            policy,
            PROMPTS,
            Sampling(max_new_tokens=40, stop=STOPS),
            seed=1,
            step=2,
            dialogues=dialogues(Scripted(REPLIES)),
        )
    )
    shown: dict[tuple[int, int], str] = {}
    spans: dict[tuple[int, int], list[Span]] = {}
    ends, lengths, waits = {}, Counter[tuple[int, int]](), set()
    for event in events:
        assert isinstance(event, RolloutsAdvanced)
        progress = event.finished, event.total
        for delta in event.rows:
            key = (delta.group, delta.index)
            shown[key] = shown.get(key, "") + delta.text
            ends[key] = delta.finish
            lengths[key] += delta.tokens or 0
            spans[key] = [*spans.get(key, []), *delta.spans]
            waits |= {key} if delta.waits else set()
            assert not delta.waits or delta.finish is None
    assert progress == (len(rollouts), len(rollouts))
    assert shown == {(one.group, one.index): one.text for one in rollouts}
    assert ends == {(one.group, one.index): one.finish for one in rollouts}
    assert lengths == {(one.group, one.index): one.length for one in rollouts}
    for one in rollouts:
        told, whole = spans[one.group, one.index], [unscored(span) for span in one.spans]
        # a turn that a limit ended is known only with the rollout
        assert told == whole or (told == whole[:-1] and whole[-1].kind == "model")


def test_a_row_that_all_wait_for_is_reported_once(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "time", Clock(tick=0.01))  # less than the time between reports
    sampling = Sampling(max_new_tokens=60, stop=STOPS)
    episodes = Scripted(REPLIES, delays={(0, 0): 500})
    events, _ = drain(
        sample_groups(
            policy,
            [replace(PROMPTS[0], rows=1)],
            sampling,
            seed=1,
            step=2,
            dialogues=dialogues(episodes),
        )
    )
    reports = of(RolloutsAdvanced, events)
    deltas = [delta for event in reports for delta in event.rows]
    told = [delta.waits for delta in deltas]
    # no token is sampled during the wait of 500 polls: it is told once, and the dialogue continues
    assert True in told
    assert not any(here and there for here, there in pairwise(told))
    assert episodes.turns[0] > 1
