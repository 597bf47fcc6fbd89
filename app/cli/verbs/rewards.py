"""`grpo-tui rewards`: list the reward functions, describe one, or try one on a completion."""

import inspect
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from grpo_engine import names
from grpo_engine.config.safe_json import parse_json
from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import ConfigError, RewardError, quoted, shortened
from grpo_engine.rewards.builtins import BUILT_IN
from grpo_engine.rewards.outcome import FunctionResult, mean_metrics
from grpo_engine.tasks.answers import text_of
from grpo_engine.tasks.base import RewardSpec, load_task
from grpo_tui.app import exit_codes
from grpo_tui.app.cli.output import print_fields, print_json, print_rows, print_table, print_text
from grpo_tui.app.cli.params import Json
from grpo_tui.app.text.stderr import print_stderr

TIME_LIMIT = 30.0  # seconds of a call, as in a run

app = typer.Typer(
    help="List the reward functions; show or try one. "
    "Example: grpo-tui rewards test numeric_answer --completion 'so 7' --column answer=7"
)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the reward functions that are built in or brought by packages.

    Example: grpo-tui rewards list --json
    """

    rows = [
        {"reward": name, "scores": row.scores, "what": row.summary}
        for name, row in BUILT_IN.items()
    ]
    rows += [
        {"reward": name, "scores": "", "what": what} for name, what in names.summaries("rewards")
    ]
    print_rows(rows, as_json=as_json)
    if not as_json:
        print(
            "\nYour own: file.py:function, module:function, judge:rubric.yaml.\n"
            "grpo-tui rewards show NAME: what it does and its options\n"
            'grpo-tui rewards test NAME --completion "…": try it on a completion'
        )


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A reward function, built in or your own.")],
    as_json: Json = False,
) -> None:
    """Show what a reward function does, which columns it needs and its options.

    Example: grpo-tui rewards show soft_overlong
    """
    from grpo_engine.rewards.load import ARGUMENTS, load_reward

    loaded = load_reward(name, {})
    needs = [column for column in loaded.required if column not in ARGUMENTS]
    options = {
        key: parameter.default
        for key, parameter in loaded.parameters.items()
        if key not in ARGUMENTS and parameter.default is not parameter.empty
    }
    text = inspect.getdoc(loaded.function) or "It has no docstring."
    if as_json:
        print_json(
            {
                "name": loaded.name,
                "help": text,
                "needs": needs,
                "file": loaded.file,
                "options": json.loads(json.dumps(options, default=str)),
            }
        )
        return
    fields = {"needs": needs or "no column or option", "file": loaded.file or "built in"}
    print_text(f"{loaded.name}\n\n{text}\n")
    print_fields(fields | {f"option {key}": repr(value) for key, value in options.items()})


@app.command("test")
def try_(
    name: Annotated[str, typer.Argument(help="file.py:function, module:function or a built-in.")],
    completion: Annotated[
        list[str], typer.Option("--completion", "-c", help="An answer; may be repeated.")
    ],
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The prompt.")] = "",
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A column of the data, as JSON or text."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="Use the prompt and columns of this task's first problem, "
            "and pass completions in the form that a run on it does; text without a task."
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the function.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Try a reward function on completions, in a process of its own as in a run.

    Exit status 1 where it failed. Example: grpo-tui rewards test mine.py:brevity -c "Yes."
    """

    prompts, columns = _problem(task) if task else (prompt, {})
    columns |= _pairs(column, "--column")
    if task:
        fields = {"prompt": text_of(prompts), **columns}
        print_stderr("\n".join(f"{key}: {shortened(str(fields[key]))}" for key in fields))
    spec = RewardSpec(name=name, options=_pairs(option, "--option"))
    title, outcome, printed = _score(spec, prompts, columns, completion)
    report(title, outcome, completion, printed, as_json)
    if not as_json and name not in BUILT_IN:
        form = "text" if isinstance(prompts, str) else "messages"
        advice = "" if task else "; with --task as a run on the task does"
        print_stderr(f"completions were passed as {form}{advice}")
    if outcome.problems:
        raise typer.Exit(exit_codes.FAILED)


def _score(
    spec: Any, prompts: Any, columns: dict[str, Any], completions: list[str]
) -> tuple[str, Any, str]:
    """Call the function; return its title, its outcome, and what it printed."""
    from grpo_engine.platform.scratch import scratch
    from grpo_engine.rewards.client import RewardClient

    with scratch("rewards") as folder:
        log = folder / "rewards.log"
        try:
            with RewardClient([spec], folder, TIME_LIMIT) as client:
                client.check(list(columns), "the data given")
                title = client.names[0]
                (outcome,) = client.try_on(prompts, completions, columns)
        except RewardError as error:
            # The log is removed with the folder, so its end goes into the message.
            text = _text_of(log).strip()[-2000:]
            raise RewardError(
                f"{error}\nIts last output:\n{text}" if text else str(error)
            ) from error
        return title, outcome, _text_of(log)  # whole, since the process has ended


def _text_of(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def _problem(task: str) -> tuple[Any, dict[str, Any]]:
    """The prompt of the task's first problem as rewards get it, and the problem's columns."""
    from grpo_engine.rollouts.prompts import conversation, for_rewards

    loaded = load_task(TaskConfig(name=task, held_out_size=1))
    first = loaded.train[0]
    return for_rewards(first, conversation(loaded, first)), dict(first.columns)


def _pairs(arguments: list[str] | None, flag: str) -> dict[str, Any]:
    """Parse NAME=VALUE arguments; a value is JSON if it parses, otherwise text."""
    pairs: dict[str, Any] = {}
    for argument in arguments or []:
        name, sign, text = argument.partition("=")
        if not sign:
            raise ConfigError(f"{flag} {quoted(argument)} has no `=`; write {flag} NAME=VALUE")
        try:
            value = parse_json(text)
            # A number stays text, as a column of a JSONL file often has it.
            pairs[name] = text if flag == "--column" and isinstance(value, int | float) else value
        except json.JSONDecodeError:
            pairs[name] = text
        except ValueError as error:
            raise ConfigError(f"{flag} {name}: {error}") from None
    return pairs


def report(
    title: str, outcome: FunctionResult, completions: list[str], printed: str, as_json: bool
) -> None:
    """Print each completion's score, what the function logged, and what went wrong."""
    rows: list[dict[str, Any]] = [
        {"score": reward.value, "completion": text, "reason": reward.reason, "steps": step}
        for text, reward, step in zip(completions, outcome.rewards, outcome.steps, strict=True)
    ]
    logged = {"extras": outcome.extras, "metrics": mean_metrics([outcome]), "printed": printed}
    if as_json:
        problems = [
            {"kind": p.cause, "completion": p.completion, "line": p.line, "message": p.message}
            for p in outcome.problems
        ]
        print_json({"function": title, "scores": rows, "problems": problems, **logged})
        return
    columns = [key for key in rows[0] if key == "score" or any(row[key] for row in rows)]
    print_table(
        [{key: "None" if row[key] is None else row[key] for key in columns} for row in rows]
    )
    for name, value in logged.items():
        if value:
            print_text(f"{name}  {value}")
    for problem in outcome.problems:
        print_stderr(f"{problem}\n{problem.traceback}".strip())
    print_stderr(f"{title}: {outcome.seconds:.3f} s")
