import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.control import StopNow
from grpo_engine.errors import RewardError
from grpo_engine.rewards.client import PATIENCE, RewardClient
from grpo_engine.rewards.load import load_reward
from grpo_engine.rewards.outcome import FunctionResult, mean_metrics
from grpo_engine.tasks.base import RewardSpec
from tests.engine.rewards.scored import pid_of, problems_of, values_of
from tests.patience import until

CASES = Path(__file__).parent / "rewards_cases.py"


def spec(function: str, **options: Any) -> RewardSpec:
    return RewardSpec(name=f"{CASES}:{function}", options=options)


@contextmanager
def worker(tmp_path: Path, *functions: Any, limit: float = 60.0) -> Iterator[RewardClient]:
    specs = [spec(f) if isinstance(f, str) else f for f in functions]
    with RewardClient(specs, tmp_path, limit) as made:
        yield made


def score(worker: RewardClient, *texts: str, step: int = 1, **columns: Any) -> list[FunctionResult]:
    return worker.score(
        ["p"] * len(texts),
        list(texts),
        [[1] * len(text) for text in texts],
        columns,
        {"global_step": step, "max_steps": 9},
    )


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


def test_functions_are_called_as_trl_calls_them(tmp_path: Path) -> None:
    prompt = [{"role": "user", "content": "q"}]
    completion = [{"role": "assistant", "content": "a"}]
    with worker(tmp_path, "sees_all") as made:
        scored = made.score(
            [prompt, prompt],
            [completion, completion],
            [[1, 2, 3], [4]],
            {"answer": ["x", "y"]},
            {"global_step": 2, "max_steps": 4},
        )
    assert made.names == ("sees_all",)
    assert values_of(scored) == ((3.0, 1.0),)
    assert scored[0].extras["keys"] == ["answer log_extra log_metric"] * 2
    # log_metric was called with 2 and with 4
    assert mean_metrics(scored) == {"step_seen": 3.0}


@pytest.mark.parametrize(
    ("functions", "names", "texts", "columns", "values"),
    [
        (["only_some"], ("only_some",), ["yes 5", "no"], ["5", "5"], ((1.0, 0.0),)),
        (
            ["judge", spec("with_options", bonus=0.25)],
            ("Judge", "with_options"),
            ["a", "b"],
            [],
            ((2.0, 2.0), (0.25, 0.25)),
        ),
        (
            ["changes_its_input", "length_of", "length_of"],
            ("changes_its_input", "length_of", "length_of_2"),
            ["abc", "\udce9\x00é🦉"],
            [],
            ((0.0, 0.0), (3.0, 4.0), (3.0, 4.0)),
        ),
        (["in_steps"], ("in_steps",), ["abcdef"], [], ((0.5,),)),
    ],
    ids=["no kwargs", "callable and option", "input, a name twice, odd text", "steps"],
)
def test_each_function_gets_its_own_arguments_and_gives_a_score_for_each_completion(
    tmp_path: Path, functions: Any, names: Any, texts: Any, columns: Any, values: Any
) -> None:
    given = {"answer": columns, "other": [1, 2]} if columns else {}
    with worker(tmp_path, *functions) as made:
        scored = score(made, *texts, **given)
    assert made.names == names
    assert values_of(scored) == values
    assert scored[0].steps == (
        [((3, 1.0), (6, 0.0))] if "in_steps" in functions else [None] * len(texts)
    )


def test_a_reward_process_loads_neither_settings_nor_models(tmp_path: Path) -> None:
    """They would take longer than the start of the interpreter."""
    with worker(tmp_path, "loaded_before") as made:
        assert values_of(score(made, "grpo_engine.errors", "pydantic", "mlx")) == ((1.0, 0.0, 0.0),)


def test_async_functions_run_at_the_same_time_and_none_does_not_apply(tmp_path: Path) -> None:
    # run in sequence, the first would wait forever
    with worker(tmp_path, "waits_for_the_other", "length_of", "also_async", limit=20.0) as made:
        scored = score(made, "ab", "c")
    assert values_of(scored) == ((1.0, 1.0), (2.0, 1.0), (None, None))
    assert not problems_of(scored)


def test_the_first_step_names_the_completion_and_the_line_of_an_exception(tmp_path: Path) -> None:
    line = next(
        number
        for number, text in enumerate(CASES.read_text().splitlines(), 1)
        if "1 / (3 - int" in text
    )
    with worker(tmp_path, "fails_on_three") as made, pytest.raises(RewardError) as caught:
        score(made, "1", "2", "3", step=0)
    message = str(caught.value)
    assert "reward fails_on_three on completion 2" in message
    assert f"rewards_cases.py:{line}" in message
    assert "ZeroDivisionError" in message
    assert "Traceback" in message
    assert "worker_main.py" not in message


@pytest.mark.slow
def test_a_function_that_hangs_gets_none_and_the_others_are_scored(tmp_path: Path) -> None:
    with worker(tmp_path, "hangs", "length_of", limit=1.0) as made:
        before = pid_of(made)
        scored = score(made, "ab", "c")
        assert pid_of(made) != before
        assert values_of(scored) == ((None, None), (2.0, 1.0))
        assert values_of(score(made, "ab"))[1] == (2.0,)
    (problem,) = problems_of(scored)
    assert problem.cause == "timeout"
    assert problem.message == "took longer than 1 s; make it faster, or raise rewards.time_limit"
    assert "rewards_cases.py:" in problem.line


@pytest.mark.slow
def test_an_async_function_that_blocks_the_loop_costs_the_other_ones_nothing(
    tmp_path: Path,
) -> None:
    with worker(tmp_path, "blocks_the_loop", "also_length_of", limit=1.0) as made:
        scored = score(made, "ab", "c")
    assert values_of(scored) == ((None, None), (2.0, 1.0))
    assert [problem.cause for problem in problems_of(scored)] == ["timeout"]


MEMORY = "needs more than 4 GB of memory; make it need less, or set its attribute memory_gb"


@pytest.mark.parametrize(
    ("function", "other", "message"),
    [
        ("crashes", "length_of", "its process exited with status 7"),
        ("fills_memory", "length_of", MEMORY),
        ("fills_memory_later", "also_length_of", MEMORY),
    ],
)
def test_a_function_that_ends_the_process_gets_none_and_is_named_with_the_remedy(
    tmp_path: Path, function: str, other: str, message: str
) -> None:
    with worker(tmp_path, function, other) as made:
        for step in (0, 1):
            scored = score(made, "ab", step=step)
            assert values_of(scored) == ((None,), (2.0,))
    (problem,) = problems_of(scored)
    assert (problem.cause, problem.function) == ("crash", function)
    assert problem.message.startswith(message)
    assert str(problem).startswith(f"reward {function} ({CASES}")


def test_a_function_that_declares_it_may_need_more_memory(tmp_path: Path) -> None:
    with worker(tmp_path, "fills_memory_as_declared", "length_of") as made:
        assert values_of(score(made, "ab")) == ((6.0,), (2.0,))


def test_the_calls_of_one_row_share_the_limit_of_a_call(tmp_path: Path) -> None:
    """0.6 s for each of three rows: the second one ends beyond 1 s, and the batch's error stays."""
    with worker(tmp_path, "fails_slowly_alone", limit=1.0) as made:
        scored = score(made, "a", "b", "c")
    assert values_of(scored) == ((None, None, None),)
    assert [(p.completion, p.message) for p in problems_of(scored)] == [
        (None, "ValueError: 3 texts")
    ]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("one_too_few", "returned 1 scores for 2 completions; return exactly one each"),
        ("gives_words", "gave str 'good'; a score is a number or None"),
        ("gives_one_number", "returned float, not one score per completion"),
        ("gives_reasons_in_place_of_steps", 'log_extra("reason", ['),
    ],
)
def test_an_unusable_return_value_ends_the_first_step(
    tmp_path: Path, function: str, message: str
) -> None:
    with worker(tmp_path, function) as made, pytest.raises(RewardError, match="rewards_cases") as e:
        score(made, "a", "b", step=0)
    assert message in str(e.value)


LATER: dict[str, tuple[tuple[float | None, ...], list[tuple[int | None, str]]]] = {
    # of 2, 3, x and 4: 1/(3 - 2) = 1, a division by nought, no number, 1/(3 - 4) = -1
    "fails_on_three": ((1, None, None, -1), [(1, "exception"), (2, "exception")]),
    "fails_on_three_and_gives_nan_on_four": (
        (1, None, None, None),
        [(1, "exception"), (2, "exception"), (3, "value")],
    ),
    "one_too_few": ((None,) * 4, [(None, "count")]),
    "gives_words": ((1, None, 1, 1), [(1, "type")]),
    "gives_odd_numbers": ((None, None, 1, None), [(0, "value"), (1, "value")]),
    "exits": ((None,) * 4, [(number, "exception") for number in range(4)]),
}


def test_later_a_fault_costs_only_the_completions_that_have_it(tmp_path: Path) -> None:
    with worker(tmp_path, *LATER) as made:
        scored = score(made, *"23x4")
    for result, (values, problems) in zip(scored, LATER.values(), strict=True):
        assert values_of([result]) == (values,)
        assert [(p.completion, p.cause) for p in result.problems] == problems
        assert all(bool(reward.reason) == reward.failed for reward in result.rewards)


def test_a_weight_counts_towards_the_largest_score(tmp_path: Path) -> None:
    heavy = RewardSpec(name=f"{CASES}:with_options", weight=-1e3, options={"bonus": 1e28})
    with worker(tmp_path, heavy, spec("with_options", bonus=1e28)) as made:
        scored = score(made, "a")
    assert values_of(scored) == ((None,), (1e28,))
    assert "1e+28 with weight -1000; a score is" in problems_of(scored)[0].message


def test_a_function_that_never_works_ends_the_run(tmp_path: Path) -> None:
    with worker(tmp_path, "one_too_few") as made:
        for _ in range(PATIENCE - 1):
            score(made, "a")
        with pytest.raises(RewardError, match=f"failed completely {PATIENCE} times in a row"):
            score(made, "a")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:f", "there is no file"),
        (f"{CASES}:missing", "has no 'missing'; it has length_of"),
        ("no_such_package.rewards:f", "there is no module no_such_package"),
        ("numeric_anser", "did you mean numeric_answer?"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_named_before_training(name: str, message: str) -> None:
    with pytest.raises(RewardError) as caught:
        load_reward(name, {})
    assert message in str(caught.value)


def test_an_option_that_a_function_does_not_take_is_an_error(tmp_path: Path) -> None:
    wrong = RewardSpec(name=f"{CASES}:only_some", options={"bonus": 1})
    with (
        pytest.raises(RewardError, match="takes no option 'bonus'; it takes answer, completions"),
        worker(tmp_path, wrong),
    ):
        pass


def test_a_missing_column_is_named_before_training(tmp_path: Path) -> None:
    with worker(tmp_path, "needs_solution", RewardSpec(name="numeric_answer")) as made:
        with pytest.raises(RewardError, match="needs the column 'solution', which task t does not"):
            made.check(["answer"], "task t")
        made.check(["answer", "solution"], "task t")


def test_a_column_is_named_by_a_setting_only_where_there_is_one(tmp_path: Path) -> None:
    for function, has_setting in (("needs_solution", False), ("only_some", True)):
        with (
            worker(tmp_path, function) as made,
            pytest.raises(RewardError, match=r"Name one of|Rename the parameter") as caught,
        ):
            made.check(["other"], "task t")
        assert ("task.columns" in str(caught.value)) == has_setting


def test_no_function_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match=r"name one in rewards\.functions"):
        RewardClient([], tmp_path, 1.0)


def test_scoring_ends_at_the_first_look_after_the_user_stops_the_run(tmp_path: Path) -> None:
    looks: list[bool] = []

    def stopped() -> bool:
        if (tmp_path / "pid").exists():  # it hangs
            looks.append(len(looks) == 5)
        return any(looks)

    made = RewardClient([spec("hangs")], tmp_path, 600.0, stopped)
    with made, pytest.raises(StopNow):
        score(made, "a", path=[str(tmp_path / "pid")])
    assert looks == [False] * 5 + [True]
    assert pid_of(made) is None


@pytest.mark.slow
def test_processes_in_sessions_of_their_own_end_with_a_call_that_takes_too_long(
    tmp_path: Path,
) -> None:
    wanted = tmp_path / "pids"
    with worker(tmp_path, "leaves_daemons_and_hangs", limit=5.0) as made:
        assert problems_of(score(made, "a", path=[str(wanted)]))[0].cause == "timeout"
        pids = list(map(int, wanted.read_text().split()))
        assert len(pids) == 2
        until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("function", ["starts_a_child", "hangs_in_c", "leaves_daemons_and_hangs"])
def test_no_orphan_is_left_when_the_engine_is_killed(tmp_path: Path, function: str) -> None:
    if function == "hangs_in_c" and sys.platform != "linux":
        pytest.skip("needs the kernel's signal on a closed pipe")
    code = f"""
import sys
from pathlib import Path
from grpo_engine.rewards.client import RewardClient
from grpo_engine.tasks.base import RewardSpec
from tests.patience import until
made = RewardClient([RewardSpec(name={f"{CASES}:{function}"!r})], Path({str(tmp_path)!r}), 600)
with made:
    made.score(["p"], ["c"], [[1]], {{"path": [{str(tmp_path / "pids")!r}]}}, {{"global_step": 1}})
"""
    engine = subprocess.Popen([sys.executable, "-c", code])
    wanted = tmp_path / "pids"
    until(lambda: wanted.exists() and wanted.read_text())
    pids = list(map(int, wanted.read_text().split()))
    assert all(map(alive, pids))
    engine.kill()
    engine.wait()
    until(lambda: not any(map(alive, pids)))


def test_the_worker_ignores_the_interrupt_and_has_its_own_group(tmp_path: Path) -> None:
    with worker(tmp_path, "length_of") as made:
        pid = pid_of(made)
        assert pid is not None
        assert os.getpgid(pid) == pid
        os.kill(pid, 2)
        assert values_of(score(made, "ab")) == ((2.0,),)
        threads = Path(f"/proc/{pid}/environ")
        if threads.exists():
            assert b"OMP_NUM_THREADS=1" in threads.read_bytes()
