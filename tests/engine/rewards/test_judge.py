"""Judges: what they are asked, how replies are read, and what happens when there is none."""

import asyncio
import json
import math
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.errors import RewardError
from grpo_engine.rewards import http_client
from grpo_engine.rewards.client import PATIENCE, RewardClient
from grpo_engine.rewards.load import load_reward
from grpo_engine.rewards.rubric import Rubric
from grpo_engine.rewards.verdict import as_data, read_reply
from grpo_engine.tasks.base import RewardSpec
from tests.engine.rewards.judges import (
    FAILURES,
    KEY,
    Handler,
    data_of,
    reply,
    scores,
    serving,
    write_rubric,
)
from tests.engine.rewards.scored import problems_of, values_of


@pytest.fixture(autouse=True)
def _private(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key, and short pauses."""
    monkeypatch.setenv("JUDGE_KEY", KEY)
    monkeypatch.setattr(http_client, "FIRST_PAUSE", 0.01)


@dataclass
class Judged:
    """What a judge gave a batch."""

    scores: list[Any]
    reasons: list[str]
    metrics: dict[str, float]


def judged(name: Any, *answers: Any, time_limit: float = 30.0, **columns: Any) -> Judged:
    """Have a judge, or the one of this name, judge answers to one prompt."""
    result = Judged([], [], {})
    judge = load_reward(name, {}).function if isinstance(name, str) else name
    given_scores = judge(
        prompts=columns.pop("prompts", ["What is 2 + 2?"] * len(answers)),
        completions=list(answers),
        trainer_state=SimpleNamespace(time_limit=time_limit),
        log_extra=lambda _, values: result.reasons.extend(values),
        log_metric=lambda name, value: result.metrics.update({name: value}),
        **columns,
    )
    result.scores = asyncio.run(given_scores)
    return result


def test_a_score_is_the_weighted_mean_on_the_scale(tmp_path: Path) -> None:
    """(2 * (4 - 1)/4 + 1 * (3 - 1)/4) / 3 = (1.5 + 0.5)/3 = 2/3."""
    with serving(lambda _: scores("Right, but long.", right=4, brief=3)) as script:
        name = write_rubric(
            tmp_path / "r.yaml",
            script.url,
            scale=[1, 5],
            weights={"right": 2},
            criteria={"right": "It is right.", "brief": "It is brief."},
        )
        result = judged(name, "4, I think")
    assert result.scores == [pytest.approx(2 / 3, abs=1e-15)]
    assert result.reasons == ["right 4, brief 3 of 5. Right, but long."]


TURNS = [
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "lower"},
    {"role": "assistant", "content": "4"},
]


@pytest.mark.parametrize(
    ("completion", "answer"), [(TURNS[2:], "4"), (TURNS, TURNS)], ids=["message", "dialogue"]
)
def test_a_judge_gets_the_prompt_the_answer_and_the_columns_that_the_rubric_names(
    tmp_path: Path, completion: Any, answer: Any
) -> None:
    with serving(lambda _: scores(good=1)) as script:
        name = write_rubric(
            tmp_path / "r.yaml", script.url, columns=["solution"], options={"temperature": 0}
        )
        judged(name, completion, solution=["four"])
    (request,) = script.requests
    assert data_of(request) == {
        "prompt": "What is 2 + 2?",
        "answer": answer,
        "columns": {"solution": "four"},
    }
    assert (request["model"], request["temperature"]) == ("m", 0)
    text = request["messages"][0]["content"]
    assert "- good: The answer is good." in text
    assert text.endswith('{"reason": "ONE OR TWO SENTENCES", "scores": {"good": NUMBER}}')


def test_a_ranking_gives_equal_distances_and_equal_answers_the_same(tmp_path: Path) -> None:
    """Of three different answers the ranks 1, 2, 3 are worth 1, 1/2 and 0."""
    with serving(lambda _: reply({"ranking": [3, 1, 2], "reason": "c is clear"})) as script:
        name = write_rubric(tmp_path / "r.yaml", script.url, ranking="Which is clear?")
        result = judged(name, "a", "b", "a", "c")
    assert data_of(script.requests[0])["answers"] == {"1": "a", "2": "b", "3": "c"}
    assert result.scores == [0.5, 0, 0.5, 1]
    assert result.reasons[3] == "rank 1 of 3. c is clear"


def test_each_group_is_ranked_alone_and_equal_answers_need_no_judge(tmp_path: Path) -> None:
    def prefers_longer(request: Any) -> Any:
        answers = data_of(request)["answers"]
        order = sorted(answers, key=lambda number: -len(answers[number]))
        return reply({"ranking": [int(number) for number in order]})

    with serving(prefers_longer) as script:
        name = write_rubric(tmp_path / "r.yaml", script.url, ranking="Which is longer?")
        result = judged(
            name, "a", "bb", "c", "c", "dd", "e", prompts=["p", "p", "q", "q", "r", "r"]
        )
    assert result.scores == [0, 1, None, None, 1, 0]
    assert len(script.requests) == 2


def test_equal_answers_are_judged_once_while_they_are_remembered(tmp_path: Path) -> None:
    with serving(lambda _: scores(good=10)) as script:
        name = write_rubric(tmp_path / "r.yaml", script.url, cache=2, concurrency=1)
        judge = load_reward(name, {}).function
        assert judged(judge, "a", "a", "b").metrics["judge/r/calls"] == 2
        again = judged(judge, "b", "a", "c")
        assert again.scores == [1, 1, 1]
        assert again.metrics == {
            "judge/r/calls": 3,
            "judge/r/cached": 2,
            "judge/r/failures": 0,
            "judge/r/cost": 0,
        }
        assert judged(judge, "c", "a").metrics["judge/r/cached"] == 3
    assert len(script.requests) == 4


def test_the_cost_is_that_of_the_tokens_which_the_server_counts(tmp_path: Path) -> None:
    """1000 tokens at 2 a million and 10 at 50 a million: 0.002 + 0.0005."""
    usage = {"prompt_tokens": 1000, "completion_tokens": 10}
    with serving(lambda _: reply({"scores": {"good": 1}}, **usage)) as script:
        name = write_rubric(tmp_path / "r.yaml", script.url, price=[2, 50])
        judge = load_reward(name, {}).function
        for _ in range(2):
            assert judged(judge, "a").metrics["judge/r/cost"] == pytest.approx(0.0025, rel=1e-12)


@pytest.mark.parametrize(
    "usage",
    [
        "many",
        [1],
        {"prompt_tokens": "9"},
        {"prompt_tokens": -9},
        {"prompt_tokens": 1e999},
        {"prompt_tokens": 10**400, "completion_tokens": 1},
        {"prompt_tokens": math.nan},
    ],
)
def test_a_count_of_tokens_that_is_none_costs_nothing(tmp_path: Path, usage: Any) -> None:
    with serving(lambda _: {**scores(good=10), "usage": usage}) as script:
        result = judged(write_rubric(tmp_path / "r.yaml", script.url, price=[1, 1]), "a")
    assert (result.scores, result.metrics["judge/r/cost"]) == ([1], 0)


@pytest.mark.parametrize("reason", ["x" * 3_000_000, "\ud800", "\x1b]0;x\x07", ["a"], {"a": 1}])
def test_whatever_a_reason_is_the_score_counts_and_the_reason_is_short_text(reason: Any) -> None:
    text = json.dumps({"reason": reason, "scores": {"a": 0, "b": 10}})
    ((score, basis),) = read_reply(GOOD, text, 1)
    assert (score, len(basis) < 2100) == (0.5, True)


def test_a_count_with_more_digits_than_python_reads_is_none(tmp_path: Path) -> None:
    text = json.dumps(scores(good=10) | {"usage": {"prompt_tokens": 7, "completion_tokens": 1}})
    text = text.replace("7", "7" * 5000)
    with serving(lambda _: lambda handler: handler.send(200, text)) as script:
        result = judged(write_rubric(tmp_path / "r.yaml", script.url, price=[1, 1]), "a")
    assert (result.scores, result.metrics["judge/r/cost"]) == ([1], 0)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name)
def test_a_failure_is_no_score_and_says_what_happened(tmp_path: Path, failure: Any) -> None:
    with serving(lambda _: failure.write) as script:
        name = write_rubric(
            tmp_path / "r.yaml",
            script.url,
            time_limit=0.3 if failure.is_slow else 20,
            retries=1,
            key_variable="JUDGE_KEY",
        )
        judge = load_reward(name, {}).function
        result = judged(judge, "an answer")
        again = judged(judge, "an answer")
    (score,) = result.scores
    assert isinstance(score, RewardError)
    assert failure.reason in str(score)
    assert KEY not in str(score)
    assert result.metrics["judge/r/failures"] == 1
    assert 2 * result.metrics["judge/r/calls"] == len(script.requests) == 2 * (1 + failure.may_pass)
    assert again.metrics["judge/r/cached"] == 0


def once(failure: Callable[[Handler], None]) -> Callable[[Any], Any]:
    """A server that fails at its first request."""
    replies: Iterator[Any] = iter([failure])
    return lambda _: next(replies, scores(good=10))


@pytest.mark.parametrize(
    "failure",
    [
        lambda handler: handler.send(500, "broken"),
        lambda handler: handler.send(429, "later", Retry_After="0"),
        lambda handler: handler.send(503, "later", Retry_After="Wed, 01 Jan 2020 00:00:00 GMT"),
        lambda handler: handler.send(503, "later", Retry_After="soon"),
        lambda _: None,
    ],
)
def test_what_passes_is_tried_again(tmp_path: Path, failure: Callable[[Handler], None]) -> None:
    with serving(once(failure)) as script:
        result = judged(write_rubric(tmp_path / "r.yaml", script.url), "a")
    assert result.scores == [1]
    assert result.metrics["judge/r/calls"] == 2


def test_a_server_may_ask_for_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("grpo_engine.rewards.http_client.asyncio.sleep", note)
    with serving(once(lambda handler: handler.send(429, "", Retry_After="7"))) as script:
        assert judged(write_rubric(tmp_path / "r.yaml", script.url), "a").scores == [1]
    assert 7.0 in pauses


def test_a_server_that_hangs_leaves_the_others_their_scores(tmp_path: Path) -> None:
    def hangs_on_b(request: Any) -> Any:
        if data_of(request)["answer"] == "b":
            return lambda _: script.ended.wait(60)
        return scores(good=10)

    with serving(hangs_on_b) as script:
        name = write_rubric(tmp_path / "r.yaml", script.url)
        result = judged(name, "a", "b", "c", time_limit=1.0)
    assert (result.scores[0], result.scores[2]) == (1, 1)
    assert "no reply within" in str(result.scores[1])


def test_an_outage_never_ends_a_run(tmp_path: Path) -> None:
    """From the first step on, and however long it lasts."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        spec = RewardSpec(name=write_rubric(tmp_path / "r.yaml", url, retries=0))
        with RewardClient([spec], tmp_path, 30.0) as client:
            for step in range(PATIENCE + 1):
                outcomes = client.score(["p"] * 2, ["a", "b"], [[1]] * 2, {}, {"global_step": step})
                assert values_of(outcomes) == ((None, None),)
                assert "gave no HTTP reply" in outcomes[0].rewards[0].reason
                assert [problem.cause for problem in problems_of(outcomes)] == ["no_score"] * 2


GOOD = Rubric(endpoint="http://h", model="m", scale=(0, 10), criteria={"a": "A.", "b": "B."})
RANKING = Rubric(endpoint="http://h", model="m", ranking="Which?")


@pytest.mark.parametrize(
    "text",
    [
        '{"scores": {"a": 0, "b": 10}}',
        ' {"reason": "so", "scores": {"a": 0.0, "b": 1e1}} \n',
        '```json\n{"scores": {"a": 0, "b": 10}}\n```',
        '<think>{"scores": {"a": 1}}</think>\n{"scores": {"a": 0, "b": 10}}',
        'thoughts without their beginning</think>{"scores": {"a": 0, "b": 10}}',
        '{"scores": {"a": "0", "b": "10.0"}}',
        'Here it is:\n```json\n{"scores": {"a": 0, "b": 10}}\n```',
        'Here it is:\n\n```\n{"scores": {"a": 0, "b": 10}}\n```\nHope it helps.',
        '{"scores": {"a": 0, "b": 10}}\nHope it helps.',
    ],
)
def test_forms_of_the_same_verdict_are_read(text: str) -> None:
    assert read_reply(GOOD, text, 1)[0][0] == 0.5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: 3, b: 4",
        '{"a": 3, "b": 4}',
        '{"scores": [3, 4]}',
        '{"scores": {"a": 3}}',
        '{"scores": {"a": 3, "b": 4, "c": 5}}',
        '{"scores": {"a": 3, "b": 11}}',
        '{"scores": {"a": -0.1, "b": 4}}',
        '{"scores": {"a": 3, "b": NaN}}',
        '{"scores": {"a": 3, "b": Infinity}}',
        '{"scores": {"a": 3, "b": "11"}}',
        '{"scores": {"a": 3, "b": "four"}}',
        '{"scores": {"a": 3, "b": "nan"}}',
        '{"scores": {"a": 3, "b": true}}',
        '{"scores": {"a": 3, "b": null}}',
        '{"scores": {"a": 3, "b": 4}, "scores": {"a": 10, "b": 10}}',
        'Sure! {"scores": {"a": 3, "b": 4}}',
        '{"scores": {"a": 3, "b": 4}} {"scores": {"a": 10, "b": 10}}',
        '{"scores": {"a": 3, "b": 4}',
        'The answer says {"scores": {"a": 10, "b": 10}}, so I cannot judge it.',
        '```json\n{"scores": {"a": 3, "b": 4}}\n```\n```json\n{"scores": {"a": 10, "b": 10}}\n```',
        'It is {wrong}: ```json\n{"scores": {"a": 10, "b": 10}}\n```',
        '<think>It says\n```json\n{"scores": {"a": 10, "b": 10}}\n```\nwhich',
        '{"scores": {"a": 10, "b": 10}} it says, but</think>I cannot judge it.',
        '```json\n{"scores": {"a": 10, "b": 10}}\n``` it says, but</think>I cannot judge it.',
        '{"scores": {"a": 3, "b": ' + "9" * 5000 + "}}",
        '{"scores": {"a": 3, "b": "' + "9" * 100_000 + '"}}',
        '{"scores": {"a": 3, "b": 1e999}}',
        '{"scores": ' * 50_000 + "1" + "}" * 50_000,
        "<think>" * 300_000,
        "{" + "}a" * 500_000 + "<",
        "[" * 100_000,
        "```" * 100_000,
        "{}" * 100_000,
    ],
)
def test_any_other_reply_is_no_score_and_is_quoted(text: str) -> None:
    with pytest.raises(RewardError) as caught:
        read_reply(GOOD, text, 1)
    assert "has another form" in str(caught.value)
    assert str(caught.value).endswith(f": {text[:500]}")


def test_a_key_that_a_reply_lacks_is_named() -> None:
    with pytest.raises(RewardError, match="no key 'scores'"):
        read_reply(GOOD, '{"a": 4, "b": 3}', 1)
    with pytest.raises(RewardError, match="no key 'ranking'"):
        read_reply(RANKING, "[1, 2]", 2)


@pytest.mark.parametrize(
    "order",
    [
        "[1, 2]",
        "[1, 2, 3, 3]",
        "[0, 1, 2]",
        '["1", "2"]',
        "[1.0, 2, 3]",
        "[true, 2, 3]",
        "{}",
        "[[1, 2, 3]]",
        "3",
    ],
)
def test_a_ranking_has_each_answer_once(order: str) -> None:
    with pytest.raises(RewardError, match="each number from 1 to 3 once"):
        read_reply(RANKING, f'{{"ranking": {order}}}', 3)


@given(st.permutations(range(1, 6)), st.sampled_from([int, str]))
def test_scores_of_a_ranking_order_the_answers_as_it_does(order: list[int], form: type) -> None:
    reply = json.dumps({"ranking": [*map(form, order)]})
    values = [value for value, _ in read_reply(RANKING, reply, 5)]
    assert sorted(range(1, 6), key=lambda number: -values[number - 1]) == order
    assert sum(values) == 2.5


@given(st.text() | st.lists(st.dictionaries(st.text(max_size=9), st.text())))
def test_data_stays_one_line_without_tags_and_says_the_same(value: Any) -> None:
    data = as_data(value)
    assert json.loads(data) == value
    assert not {"<", "~", "\n"} & set(data)


@pytest.mark.parametrize(
    "text", ["<|im_start|>", "</s>", "[INST]", "[/INST]", "]~b]", "<｜User｜>"]
)
def test_no_special_token_is_left_in_the_data(text: str) -> None:
    assert text not in as_data(f"a{text}b")
    assert json.loads(as_data(f"a{text}b")) == f"a{text}b"


def test_code_and_mathematics_stay_readable() -> None:
    assert as_data("x[0] = [1, 2]; a > b") == '"x[0] = [1, 2]; a > b"'
    assert as_data("naïve 漢字") == '"naïve 漢字"'


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"api_key": KEY}, "api_key is no entry of it; there are endpoint, model, key_variable"),
        ({"key_variable": KEY}, "key_variable is the name of an environment variable"),
        ({"key_variable": "NOT_SET_ANYWHERE"}, "that key_variable names is not set"),
        ({"endpoint": f"https://user:{KEY}@host/v1"}, "endpoint is host, port and path"),
        ({"endpoint": f"https://host/v1?key={KEY}"}, "endpoint is host, port and path"),
        ({"endpoint": f"https://host:{KEY}/v1"}, "endpoint is host, port and path"),
        ({"endpoint": "api.openai.com/v1"}, "as in https://api.openai.com/v1"),
        ({"scale": [5, 1]}, "scale is the lowest score and a higher one"),
        ({"scale": [0, math.nan]}, "scale.1: Input should be a"),
        ({"criteria": {}}, "give either criteria or a ranking"),
        ({"criteria": {"a": "A."}, "ranking": "Which?"}, "give either criteria or a ranking"),
        ({"weights": {"good": 0}}, "weights.good: Input should be greater than 0"),
        ({"weights": {"bad": 1}}, "weights are by the names of criteria"),
        ({"model": None}, "model: Input should be a valid string"),
        ({"concurrency": 0}, "concurrency: Input should be greater than or equal to 1"),
    ],
)
def test_a_wrong_rubric_is_refused_in_a_sentence_without_the_key(
    tmp_path: Path, entries: Any, problem: str
) -> None:
    name = write_rubric(tmp_path / "r.yaml", "http://127.0.0.1:9/v1", **entries)
    with pytest.raises(RewardError) as caught:
        load_reward(name, {})
    assert problem in str(caught.value)
    assert KEY not in str(caught.value)
    assert str(caught.value).startswith(f"reward judge:{tmp_path}/r.yaml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [(None, "cannot read"), ("a: [", "while parsing"), ("- 1", "valid dictionary"), ("", "valid")],
)
def test_a_file_that_is_no_rubric_is_refused(
    tmp_path: Path, text: str | None, problem: str
) -> None:
    if text is not None:
        (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(RewardError, match=problem):
        load_reward(f"judge:{tmp_path}/r.yaml", {})


def test_a_key_that_no_header_can_have_is_refused_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", f"{KEY}\nX-Other: 1")
    name = write_rubric(tmp_path / "r.yaml", "http://h/v1", key_variable="JUDGE_KEY")
    with pytest.raises(RewardError, match="characters that no header can have") as caught:
        load_reward(name, {})
    assert KEY not in str(caught.value)


def test_the_columns_of_a_rubric_are_required(tmp_path: Path) -> None:
    name = write_rubric(tmp_path / "r.yaml", "http://h/v1", columns=["solution", "two words"])
    assert load_reward(name, {}).required[-2:] == ["solution", "two words"]


def test_the_key_goes_with_the_request_and_is_cut_out_of_what_comes_back(tmp_path: Path) -> None:
    with serving(lambda _: scores(f"your key is {KEY}", good=1)) as script:
        name = write_rubric(tmp_path / "r.yaml", script.url, key_variable="JUDGE_KEY")
        result = judged(name, "a")
    assert script.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert result.reasons == ["good 1 of 10. your key is [key]"]


@pytest.mark.parametrize("spell", ["\\u{:04x}", "\\u{:04X}", "\\\\u{:04x}"])
def test_a_key_that_is_spelled_by_numbers_is_cut_out_as_well(tmp_path: Path, spell: str) -> None:
    """Of a reason that is shown, and of a reply that is quoted."""
    key = "".join(spell.format(ord(letter)) for letter in KEY)
    texts = iter([f'{{"reason": "it is {key}", "scores": {{"good": 1}}}}', f'["{key}"]'])
    with serving(lambda _: reply(next(texts))) as script:
        name = write_rubric(tmp_path / "r.yaml", script.url, key_variable="JUDGE_KEY")
        result = judged(name, "a", "b")
    assert sorted(result.reasons) == ["", "good 1 of 10. it is [key]"]
    quotes = [str(score) for score in result.scores if isinstance(score, RewardError)]
    assert [quote.endswith(': ["[key]"]') for quote in quotes] == [True]
