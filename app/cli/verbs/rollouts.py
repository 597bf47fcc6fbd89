"""`grpo-tui rollouts`: list, search and print rollouts of a run."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grpo_tui.app.cli.output import print_rows
from grpo_tui.app.cli.params import GroupIndex, Json, Origin, RunRef
from grpo_tui.app.cli.store_access import reading
from grpo_tui.app.text.prompt_text import last_question
from grpo_tui.app.text.safe_text import excerpt
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.experiments.export.rows import Row, rollout_row

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.values import GroupView, RunSummary, SearchHit

Sort = Literal["reward", "advantage", "length", "kl", "clip", "newest"]
EXCERPT = 72  # cells around a match


def rollouts(
    run: RunRef,
    step: Annotated[int | None, typer.Option(help="Of this step; else the last one.")] = None,
    group: GroupIndex = None,
    origin: Origin = None,
    sort: Annotated[Sort | None, typer.Option(help="The largest first.")] = None,
    search: Annotated[
        str, typer.Option(help="Text in prompts and answers; of all steps without --step.")
    ] = "",
    limit: Annotated[int, typer.Option(help="How many at most; 0 for all.", min=0)] = 50,
    as_json: Json = False,
) -> None:
    """List the answers of a step, or find answers that hold a text.

    Example: grpo-tui rollouts @last --search '<answer>' --sort reward --limit 10
    """
    from grpo_engine.errors import quoted
    from grpo_tui.experiments.search import search as find

    columns = {"step": step, "idx": group, "origin": origin}
    chosen: dict[str, Any] = {key: value for key, value in columns.items() if value is not None}
    hits: dict[int, SearchHit] = {}
    with reading() as reader:
        target = reader.resolve(run)
        if search:
            count = limit + 1 if limit else 2**31
            order = sort or "newest"
            stream = find(reader, target.key, search, sort=order, limit=count, **chosen)
            hits = {hit.rollout: hit for hit in stream if hit}
            groups = reader.groups_by_key({hit.group for hit in hits.values()})
        else:
            groups = _step_groups(reader, target, **chosen)
    rows = {
        item.key: rollout_row(target.id, view, item) for view in groups for item in view.rollouts
    }
    listed = [rows[key] for key in hits] if search else _sorted(list(rows.values()), sort)
    selected = listed[: limit or None]
    table = [_line(row, hits.get(row["rollout"])) for row in selected]
    for column, default in (("origin", "train"), ("finish", "stop")):
        if all(line[column] == default for line in table):
            table = [{name: line[name] for name in line if name != column} for line in table]
    print_rows(selected, as_json=as_json, table=table)
    if not selected:
        print_stderr("no rollouts" + (f" with {quoted(search)}" if search else " there"))
    elif len(listed) > len(selected):
        print_stderr(f"the first {limit}; --limit 0 gives all")


def _line(row: Row, hit: "SearchHit | None") -> dict[str, Any]:
    """The columns for people; a text that was searched for shows its match."""
    line = {
        "origin": row["origin"],
        "step": row["step"],
        "group": row["group"],
        "answer": row["index"],
        "reward": row["reward"],
        "advantage": row["advantage"],
        "tokens": row["tokens"],
        "finish": row["finish"],
        "prompt": last_question(row["prompt"])[-40:],
        "completion": row["completion"],
    }
    if hit is not None:
        line[hit.where] = "".join(excerpt(hit.text, hit.start, hit.end, EXCERPT))
    return line


def _step_groups(
    reader: "StoreReader", run: "RunSummary", step: int | None = None, **chosen: Any
) -> "tuple[GroupView, ...]":
    """The groups of a step, by default the last one that has any."""
    from grpo_tui.experiments.errors import NothingStoredError

    if step is None:
        origins = [chosen["origin"]] if "origin" in chosen else ["train", "pinned", "eval"]
        last = [steps[-1] for name in origins if (steps := reader.group_steps(run.key, name))]
        if not last:
            raise NothingStoredError(f"{run.name} has no rollouts stored")
        step = last[0]
        print_stderr(f"step {step}")
    groups = reader.groups(run.key, step=step, **chosen)
    if groups:
        return groups
    index = chosen.pop("idx", None)
    if indices := {group.index for group in reader.groups(run.key, step=step, **chosen)}:
        raise NothingStoredError(
            f"{run.name} has no group {index} at step {step}; it has {min(indices)} to "
            f"{max(indices)} there"
        )
    raise NothingStoredError(
        f"{run.name} has no rollouts at step {step}; its last step is {run.step}"
    )


def _sorted(rows: list[dict[str, Any]], sort: Sort | None) -> list[dict[str, Any]]:
    if not sort:
        return rows
    column = {"length": "tokens", "clip": "clip_fraction", "newest": "rollout"}.get(sort, sort)
    return sorted(rows, key=lambda row: (row[column] is not None, row[column] or 0.0), reverse=True)
