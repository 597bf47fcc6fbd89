"""Programs as environments: what each may do, and that a run with one equals the built-in one."""

import json
import random
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.parse import build
from grpo_engine.config.settings import RunConfig
from grpo_engine.environments import client
from grpo_engine.environments.client import EnvironmentClient, Episode
from grpo_engine.environments.endpoint import (
    Request,
    RequestRefusedError,
    as_events,
    read_request,
    response_of,
)
from grpo_engine.errors import BrokenEnvironmentError
from grpo_engine.events import Event, GroupScored, RunFinished, StepFinished, TokensScored
from grpo_engine.rollouts import decode
from grpo_engine.rollouts.dialogue import EnvironmentReply, TurnLimits, Usage
from tests.engine.environments.pools import client_of, python
from tests.engine.environments.pools import play as play_rows
from tests.engine.environments.test_runs import assert_resumed, killed
from tests.engine.runs import completed, events_of, of
from tests.engine.sandbox.processes import kill
from tests.patience import until

HERE = Path(__file__).parent
SAMPLING = {"temperature": 1.0, "top_p": 1.0}
USER = {"role": "user", "content": "hello"}


def pool(folder: Path, command: str, *, limit: float = 3.0, by_status: bool = True) -> Any:
    functions = () if by_status else ("length",)
    return client_of((), {"": f"agent: {command}"}, folder, limit, functions=functions)


def hostile(folder: Path, **more: Any) -> Any:
    script = folder / "hostile_agent.py"  # a path that no other test has
    script.write_text((HERE / "hostile_agent.py").read_text())
    return pool(folder, f"python {script}", **more)


def processes(folder: Path) -> bytes:
    """The programs of a test's folder, and what they started."""
    command = ["pgrep", "-f", f"{folder}/.*_agent"]
    return subprocess.run(command, capture_output=True, check=False).stdout


def no_agent_is_left(folder: Path) -> None:
    until(lambda: not processes(folder), lambda: processes(folder))


def begin(environments: EnvironmentClient, kinds: Sequence[str]) -> list[Any]:
    rows = [Episode(environment="", row={"kind": k}, seed=3, index=i) for i, k in enumerate(kinds)]
    environments.begin(rows)
    return [row.opening for row in rows]


def play(
    environments: EnvironmentClient, kinds: Sequence[str], turns: int | None = None
) -> list[list[EnvironmentReply]]:
    """Play a program of each of these kinds."""
    texts = (f"a{number}" for number in range(1, 9))
    return play_rows(environments, [{"kind": kind} for kind in kinds], *texts, turns=turns)


ENDS = {
    "behaves": 7.0,
    "ends well": 1.0,
    "ends as failed": 0.0,
    "several numbers": 0.5,
    "guesses a key": 1.0,
    "leaves a child": 1.0,
}
FAILS = {
    "asks nothing": "reset: the program exited with status 7: the board is missing",
    "never asks": "reset: took longer than 6 s",
    "never ends": "step: took longer than 3 s",
    "breaks": "step: the program was killed by SIGSEGV",
    "a reward in words": "step: the reward is str 'much', not a number",
}


@pytest.mark.slow
def test_each_program_is_scored_or_fails_with_its_reason_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MIN_LOAD_S", 6.0)
    with hostile(tmp_path) as environments:
        played = play(environments, [*ENDS, *FAILS])
        for (kind, reward), replies in zip(ENDS.items(), played, strict=False):
            assert (replies[-1].error, replies[-1].reward) == ("", reward), kind
        for (kind, error), replies in zip(FAILS.items(), played[len(ENDS) :], strict=True):
            assert replies[-1].error.startswith(error), kind
        assert [len(replies) for replies in played[:2]] == [3, 1]
        assert played[3][-1].info == {"moves": 3, "note": "x"}
        assert played[4][-1].info == {"refused": 3}
        outcomes = environments.finish([bool(replies[-1].error) for replies in played])
        assert {outcome.reward for outcome in outcomes} == {None}  # they had theirs
    no_agent_is_left(tmp_path)


def test_of_many_requests_at_once_some_wait_for_their_turn_and_the_others_are_refused(
    tmp_path: Path,
) -> None:
    """Of 60, one is asked, 16 wait and 43 are refused; then 5 are answered, and 12 too late."""
    mark = tmp_path / "refused"
    with hostile(tmp_path) as environments:
        row = {"kind": "floods", "refused": 43, "mark": str(mark)}
        environments.begin([Episode(environment="", row=row, seed=3, index=0)])
        while not mark.exists():
            environments.replies(0.05)
        for _ in range(5):
            environments.submit(0, "a")
            while not environments.replies(0.1):
                pass
        (outcome,) = environments.finish([False])
    late = 60 - 5 - outcome.state["refused"]
    assert late in (11, 12)  # one more is refused if all come before the first is asked
    assert outcome.state == {"answered": 5, "refused": 55 - late, "over": late}
    assert max(log.stat().st_size for log in tmp_path.glob("*.log")) < 2_000_000


FAILED = "step: the program exited with status 1"
RAISED = f"{FAILED}: ValueError: bang"
REFUSED = ".*refused: {}, but the run samples with 1.*"


@pytest.mark.parametrize(
    ("by_status", "ends"),
    [
        (True, {"raises": (RAISED, None), "notes an error": ("", 0.0)}),
        (
            False,
            {
                "ends well": ("", None),
                "ends as failed": (FAILED, None),
                "raises": (RAISED, None),
                "is refused": (REFUSED.format("n is 2"), None),
                "begins refused": (REFUSED.format("temperature is 0.2"), None),
            },
        ),
    ],
)
def test_a_status_is_a_reward_unless_the_program_raised_or_functions_score(
    tmp_path: Path, by_status: bool, ends: dict[str, tuple[str, float | None]]
) -> None:
    with hostile(tmp_path, by_status=by_status) as environments:
        played = [replies[-1] for replies in play(environments, list(ends))]
    for (kind, (error, reward)), reply in zip(ends.items(), played, strict=True):
        assert re.fullmatch(error, reply.error), (kind, reply.error)
        assert reply.reward == reward, kind


@pytest.mark.parametrize(("by_status", "reward"), [(True, 0.0), (False, None)])
def test_after_the_last_turn_a_program_may_score_or_fail(
    tmp_path: Path, by_status: bool, reward: float | None
) -> None:
    with hostile(tmp_path, by_status=by_status) as environments:
        scored, failed = play(environments, ["goes on", "goes on until it fails"], turns=2)
        assert (len(scored), len(failed)) == (2, 2)
        outcomes = environments.finish([False, False])
        assert environments.last(1).error == ""
    assert [outcome.reward for outcome in outcomes] == [0.25, reward]
    assert outcomes[0].state == {"refused": 400}


def test_a_request_that_does_not_follow_the_last_answer_begins_a_new_context(
    tmp_path: Path,
) -> None:
    with hostile(tmp_path) as environments:
        (opening,) = begin(environments, ["forgets"])
        assert opening.replaces
        assert opening.messages == ({"role": "user", "content": "question 0"},)
        assert environments.last(0).limits == TurnLimits(tokens=5, stop=("x",))
        environments.submit(0, "an answer x")
        while not (found := environments.replies(0.1)):
            pass
        assert found[0][1].restarts
        assert found[0][1].messages == ({"role": "user", "content": "question 1"},)


def test_the_program_of_a_rollout_that_failed_elsewhere_is_ended(tmp_path: Path) -> None:
    """As when the chat template refuses what it asks."""
    with hostile(tmp_path) as environments:
        begin(environments, ["behaves"])
        assert processes(tmp_path)
        environments.finish([True])
        no_agent_is_left(tmp_path)


def test_a_lost_process_repeats_its_programs(tmp_path: Path) -> None:
    """Both sandbox processes are killed; the programs start again and get the same answers."""
    with hostile(tmp_path) as environments:
        begin(environments, ["behaves", "behaves"])
        for index in range(2):
            environments.submit(index, "a1")
        replies: dict[int, EnvironmentReply] = {}
        while len(replies) < 2:
            replies |= dict(environments.replies(0.1))
        for sandbox in environments._sandboxes:
            kill(sandbox)
        for turn in (2, 3):
            for index in range(2):
                environments.submit(index, f"a{turn}")
            replies = {}
            while len(replies) < 2:
                replies |= dict(environments.replies(0.1))
        assert [(r.done, r.reward, r.error) for r in replies.values()] == [(True, 7.0, "")] * 2


def test_a_program_that_is_not_there_is_named_at_the_start(tmp_path: Path) -> None:
    for command, message in (
        ("no-such-agent --fast", "no program 'no-such-agent'"),
        ("", "no com"),
    ):
        with pytest.raises(BrokenEnvironmentError, match=message):
            pool(tmp_path, command).__enter__()


def test_what_would_change_the_sampling_is_refused_with_the_reason() -> None:
    good = {"messages": [USER], "temperature": 1, "n": 1, "seed": 4, "user": "x", "top_p": None}
    request = read_request(json.dumps(good).encode(), SAMPLING)
    assert (request.messages, request.max_tokens, request.stop) == ([USER], 0, ())
    for change, message in (
        ({"temperature": 0.2}, "temperature is 0.2, but the run samples with 1"),
        ({"top_p": 0.5}, "top_p is 0.5"),
        ({"n": 2}, "n is 2"),
        ({"presence_penalty": 1}, "presence_penalty is 1"),
        ({"logprobs": True}, "logprobs is True"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": []}, "messages is not a list"),
        ({"messages": ["x"]}, "the role None"),
        ({"messages": [USER, {"role": "assistant", "content": "so"}]}, "is the assistant's"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "not text"),
        ({"messages": [{**USER, "tool_calls": [{}]}]}, "tool_calls are not calls"),
        ({"max_tokens": -1}, "max_tokens -1"),
        ({"stop": [""]}, "stop is neither"),
        ({"tools": [{"function": {}}]}, "tools is not a list of functions"),
    ):
        with pytest.raises(RequestRefusedError, match=message):
            read_request(json.dumps({**good, **change}).encode(), SAMPLING)
    for body in (b"{", b"[]", b"[" * 100_000):
        with pytest.raises(RequestRefusedError, match="the body is no"):
            read_request(body, SAMPLING)


def test_messages_reach_the_template_as_text_and_objects() -> None:
    call = {"id": "1", "function": {"name": "add", "arguments": '{"a": 1}'}, "type": "function"}
    sent = [
        {"role": "developer", "content": [{"type": "text", "text": "be"}, {"text": " kind"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]
    read = read_request(json.dumps({"messages": sent}).encode(), SAMPLING).messages
    assert [message["content"] for message in read] == ["be kind", "", "2"]
    assert read[0]["role"] == "system"
    assert read[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}


def request_of(**changes: Any) -> Request:
    return read_request(
        json.dumps({"messages": [USER], "model": "m", **changes}).encode(), SAMPLING
    )


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
CALL = 'so <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def test_an_answer_has_openais_form() -> None:
    request = request_of(tools=TOOLS)
    whole = response_of(request, CALL, 2, context=7, tokens=3, is_cut=False)
    (choice,) = whole["choices"]
    assert (whole["object"], whole["model"]) == ("chat.completion", "m")
    assert whole["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "so"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    for text, changes, finish, content in (
        (CALL, {}, "stop", CALL),  # no tool was offered
        (
            "<tool_call>add(1)</tool_call>",
            {"tools": TOOLS},
            "stop",
            "<tool_call>add(1)</tool_call>",
        ),
        ("one two", {"stop": "two"}, "stop", "one "),
        ("one two three", {"stop": ["three", " two"]}, "stop", "one"),
    ):
        sent = response_of(request_of(**changes), text, 1, context=0, tokens=0, is_cut=False)
        (choice,) = sent["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == (finish, content)
    cut = response_of(request, "x", 1, context=0, tokens=9, is_cut=True)
    assert cut["choices"][0]["finish_reason"] == "length"


def test_a_stream_has_the_answer() -> None:
    request = request_of(tools=TOOLS, stream=True, stream_options={"include_usage": True})
    response = response_of(request, CALL, 2, context=7, tokens=3, is_cut=False)
    first, done, rest = as_events(response).split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    event = json.loads(first.removeprefix("data: "))
    (choice,) = event["choices"]
    assert choice["delta"]["tool_calls"][0]["index"] == 0
    assert choice["delta"]["content"] == "so"
    assert choice["finish_reason"] == "tool_calls"
    assert event["usage"]["total_tokens"] == 10


def guess(environment: str = "", interpreter: str = "", **changes: Any) -> RunConfig:
    base: dict[str, Any] = {
        "steps": 3,
        "model": {"path": "starter-guess"},
        "task": {"name": "guess", "environment": environment, "interpreter": interpreter},
        "rollout": {"prompts": 2, "group_size": 3, "max_new_tokens": 40},
        "optimizer": {"learning_rate": 1e-3},
        "evaluation": {"problems": 1, "pinned": 0, "before_and_after": False},
        "checkpoint": {"every": 2},
    }
    return build({**base, **changes})


AGENT = f"agent: python {HERE}/guess_agent.py"


def tokens_and_numbers(events: Sequence[Event]) -> tuple[list[Any], list[float]]:
    assert isinstance(events[-1], RunFinished), events[-1]
    groups = [e.group for e in of(GroupScored, events)]
    tokens = [(r.ids, r.text, r.finish) for group in groups for r in group.rollouts]
    numbers = [r.reward for group in groups for r in group.rollouts]
    for event in events:
        if isinstance(event, TokensScored):
            numbers += [value for row in event.numbers for value in row.old]
        if isinstance(event, StepFinished):
            numbers += [event.metrics[name] for name in ("loss", "grad_norm", "turns/mean")]
    return tokens, [float(number) for number in numbers if number is not None]


PATIENT = "from grpo_engine.rollouts import decode; decode.PATIENCE = 600.0\n"


@pytest.fixture(scope="module", autouse=True)
def _patient() -> Iterator[None]:
    """On a busy machine a program may take longer than a run waits for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "PATIENCE", 600.0)
        yield


@pytest.fixture(scope="module")
def by_agent(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    return events_of(guess(AGENT), tmp_path_factory.mktemp("agent"))


@pytest.mark.slow
def test_programs_learn_guess_as_the_built_in_environment_does(
    by_agent: list[Event], tmp_path: Path
) -> None:
    """One by HTTP alone, and one with the package openai in another interpreter."""
    expected = tokens_and_numbers(events_of(guess(), tmp_path / "built-in"))
    other = guess(f"agent: python {HERE}/guess_openai.py", python())
    for events in (by_agent, events_of(other, tmp_path / "openai")):
        tokens, numbers = tokens_and_numbers(events)
        assert tokens == expected[0]
        assert numbers == pytest.approx(expected[1], abs=1e-5)
        assert max(text.count("‹") + text.count("\n") for _, text, _ in tokens) > 2


FORGETFUL = """
import json, os, sys
from urllib.request import Request, urlopen
row, answers = json.load(sys.stdin), []
for turn in range(3):
    messages = [*row["prompt"], {"role": "user", "content": " ".join(answers) or "begin"}]
    data = json.dumps({"messages": messages, "max_tokens": 4}).encode()
    key = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    with urlopen(Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", data, key)) as r:
        answers.append(json.load(r)["choices"][0]["message"]["content"])
open(os.environ["GRPO_TUI_REWARD"], "w").write(str(len(set("".join(answers)))))
"""


@pytest.mark.slow
def test_a_program_that_rewrites_its_context_is_trained_in_segments(tmp_path: Path) -> None:
    (tmp_path / "forgetful.py").write_text(FORGETFUL)
    events = completed(guess(f"agent: python {tmp_path}/forgetful.py", steps=2), tmp_path / "run")
    rollouts = [r for e in of(GroupScored, events) for r in e.group.rollouts]
    assert all(len(r.spans) == 6 and r.spans[1].length > 20 for r in rollouts)
    gaps = [e.metrics["sampling/sampling_logp_difference/max"] for e in of(StepFinished, events)]
    assert max(gaps) < 1e-4
    assert all(e.metrics["grad_norm"] > 0 for e in of(StepFinished, events))


@pytest.mark.slow
def test_twenty_kills_leave_no_program_and_runs_resume_bit_for_bit(
    by_agent: list[Event], tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    code = (HERE / "guess_agent.py").read_text()
    waits = f"    while os.path.exists({str(hold)!r}):\n        time.sleep(0.01)\n"
    code = code.replace("    request = ", f"{waits}    request = ").replace(
        "import sys", "import sys, time"
    )
    (tmp_path / "killed_agent.py").write_text(code)
    dice = random.Random(7)
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        config = guess(f"agent: python {tmp_path}/killed_agent.py")

        def wait() -> None:
            hold.touch()  # the programs go on no further, so that the third step does not end
            time.sleep(dice.random() * 0.4)

        killed(config, folder, "PhaseStarted 3 generate", wait, PATIENT)
        hold.unlink()
        assert_resumed(events_of(config, folder / "run", resume=True), by_agent)
        no_agent_is_left(tmp_path)


def test_the_usage_of_a_completion_reaches_the_program(tmp_path: Path) -> None:
    with hostile(tmp_path) as environments:
        begin(environments, ["reports usage"])
        environments.submit(0, "x", Usage(context=4, tokens=2, is_cut=True))
        while not (found := environments.replies(0.1)):
            pass
    assert found[0][1].info == {
        "prompt_tokens": 4,
        "completion_tokens": 2,
        "total_tokens": 6,
        "cut": "length",
    }
