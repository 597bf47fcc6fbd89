import io
import json
import re
from pathlib import Path

import pytest

from grpo_tui.app.cli.main import main
from tests.engine.byte_tokenizer import byte_tokenizer

CASES = Path(__file__).parents[2] / "engine" / "rewards" / "rewards_cases.py"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(list(words))
    out, err = capsys.readouterr()
    return status, out, err


def test_tasks_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "tasks", "list", "--json")
    assert status == 0
    assert {"arithmetic", "countdown", "gsm8k"} <= {row["task"] for row in json.loads(out)}
    _, out, _ = run(capsys, "tasks")
    assert "grpo-tui tasks show NAME" in out


@pytest.mark.slow  # importing the generators takes seconds
def test_every_reasoning_gym_generator_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("reasoning_gym")
    _, out, _ = run(capsys, "tasks", "list", "--gym")
    assert "reasoning-gym:gsm_symbolic" in out
    assert len(out.splitlines()) > 100


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "d.jsonl"
    path.write_text(
        "\n".join(json.dumps({"prompt": f"What is 1+{i}?", "answer": str(i + 1)}) for i in range(9))
    )
    return path


@pytest.mark.slow
def test_three_examples_are_shown_as_the_model_sees_them(
    capsys: pytest.CaptureFixture[str], rows: Path
) -> None:
    byte_tokenizer().save_pretrained(rows.parent / "model")
    model = f"model.path={rows.parent / 'model'}"
    words = ["tasks", "show", str(rows), "--set", "task.options.chat=true", "--set", model]
    status, out, _ = run(capsys, *words)
    assert status == 0
    assert out.count("── example") == 3
    assert "target       " in out
    _, text, _ = run(
        capsys, *words, "--json", "--count", "2", "--held-out", "--set", "task.held_out_size=2"
    )
    page = json.loads(text)
    assert (page["train"], page["held_out"], len(page["examples"])) == (7, 2, 2)
    first = page["examples"][0]
    expected = f"<|user|>{first['prompt'][0]['content']}<|end|><|assistant|>"
    assert first["text"] == expected
    assert first["ids"] == byte_tokenizer().encode(expected, add_special_tokens=False)


def test_rows_that_cannot_be_used_are_named_or_counted(
    capsys: pytest.CaptureFixture[str], rows: Path
) -> None:
    byte_tokenizer().save_pretrained(rows.parent / "model")
    capsys.readouterr()  # what transformers says when it is imported
    with rows.open("a") as file:
        file.write('\n{"prompt": "half of \\ud83d", "answer": "1"}\n')
    words = [
        "tasks",
        "show",
        str(rows),
        "--set",
        f"model.path={rows.parent / 'model'}",
        "--set",
        "task.held_out_size=2",
    ]
    status, out, err = run(capsys, *words)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert f"1 of 10 rows cannot be used: {rows}:10: the prompt holds '\\ud83d'" in err
    status, out, _ = run(capsys, *words, "--set", "task.bad_rows=skip")
    assert status == 0
    assert ", 1 skipped" in out
    assert f"1 of 10 rows are skipped: {rows}:10:" in out


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("tasks", "show", "countdwn"), 2, "did you mean countdown?"),
        (("tasks", "show", "x.jsonl"), 2, "there is no file or folder"),
        (("rewards", "show", "numeric_anser"), 1, "did you mean numeric_answer?"),
        (("rewards", "test", "length", "-c", "x", "--column", "a"), 2, "has no `=`"),
        (("rewards", "test", f"{CASES}:needs_solution", "-c", "x"), 1, "needs the column"),
    ],
)
def test_a_wrong_word_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, message: str
) -> None:
    found, out, err = run(capsys, *words)
    assert (found, out) == (status, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_rewards_lists_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "rewards", "--json")
    assert "math_equal" in {row["reward"] for row in json.loads(out)}
    _, out, _ = run(capsys, "rewards", "show", "soft_overlong")
    assert "max_length, buffer" in out
    assert "DAPO" in out
    _, out, _ = run(capsys, "rewards", "show", "regex", "--json")
    assert json.loads(out)["options"] == {"full": False}


def test_a_function_of_the_users_is_tried_on_completions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, _ = run(
        capsys,
        "rewards",
        "test",
        f"{CASES}:only_some",
        "-c",
        "it is 5",
        "-c",
        "it is 6",
        "--column",
        "answer=5",
        "--json",
    )
    assert status == 0
    found = json.loads(out)
    assert found["function"] == "only_some"
    assert [row["score"] for row in found["scores"]] == [1.0, 0.0]


def test_what_a_function_prints_logs_and_raises_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, err = run(
        capsys, "rewards", "test", f"{CASES}:fails_on_three", "-c", "2", "-c", "3"
    )
    assert status == 1
    assert "None" in out
    assert "reward fails_on_three on completion 1" in err
    assert "ZeroDivisionError" in err
    assert "completions were passed as text" in err
    status, out, _ = run(
        capsys, "rewards", "test", "numeric_answer", "-c", "so 7", "--column", "answer=7"
    )
    assert status == 0
    assert "found 7, expected 7" in out


def test_a_tasks_first_problem_gives_prompt_and_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, _ = run(
        capsys, "rewards", "test", "countdown", "--task", "countdown", "-c", "no", "--json"
    )
    assert status == 0
    assert json.loads(out)["scores"][0]["score"] == 0.0


@pytest.mark.slow
def test_a_task_decides_what_a_tried_function_gets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rows: Path
) -> None:
    """`hello` is 15 short of 20 characters, and a list of one message 19 short of 20."""
    file = tmp_path / "mine.py"
    file.write_text("def near(completions, **_):\n    return [len(c) - 20 for c in completions]\n")
    for more, score in (((), -15), (("--task", "arithmetic"), -19), (("--task", str(rows)), -15)):
        _, out, err = run(capsys, "rewards", "test", f"{file}:near", "-c", "hello", *more)
        assert re.search(rf"{score} +hello", out), more
    _, _, err = run(
        capsys, "rewards", "test", f"{file}:near", "-c", "hello", "--task", "arithmetic"
    )
    assert "passed as messages" in err
    # and which problem it is tried on is shown: a score may depend on it
    _, out, err = run(capsys, "rewards", "test", f"{file}:near", "-c", "hello", "--task", str(rows))
    assert re.search(r"^prompt: \S+", err, re.MULTILINE)
    assert re.search(r"^answer: \S+", err, re.MULTILINE)
    assert "answer" not in out


def test_an_episode_is_played_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 * 7 = 84 by the tool; the answer without a call is the end."""
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "12 * 7"}}</tool_call>'
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{call}\n84\n"))
    status, out, _ = run(capsys, "tasks", "test", "calculator")
    assert status == 0
    assert "⚙ calculator(12 * 7) → 84" in out
    assert "the episode is over" in out


def test_a_task_without_an_environment_cannot_be_played(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, _, err = run(capsys, "tasks", "test", "arithmetic")
    assert status != 0
    assert "task arithmetic has no environment and no tools" in err
