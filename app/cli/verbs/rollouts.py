"""`grpo-tui rollouts`: list, search and print rollouts of a run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grpo_tui.app.cli.output import print_rows
from grpo_tui.app.cli.params import Csv, Db, Json, Raw, RunRef
from grpo_tui.app.cli.store_access import reading
from grpo_tui.app.text.prompt_text import asked
from grpo_tui.app.text.safe_text import excerpt
from grpo_tui.app.text.stderr import print_stderr

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.values import RunSummary, SearchHit

Origin = Literal["train", "eval", "pinned"]
Sort = Literal["reward", "advantage", "length", "kl", "clip", "newest"]
EXCERPT = 72  # cells around a match


def rollouts(
    run: RunRef,
    step: Annotated[int | None, typer.Option(help="Of this step; else the last one.")] = None,
    group: Annotated[int | None, typer.Option(help="Of this group alone.")] = None,
    origin: Annotated[Origin | None, typer.Option(help="What they were sampled for.")] = None,
    sort: Annotated[Sort | None, typer.Option(help="The largest first.")] = None,
    search: Annotated[
        str, typer.Option(help="Text in prompts and answers; of all steps without --step.")
    ] = "",
    limit: Annotated[int, typer.Option(help="How many at most; 0 for all.", min=0)] = 50,
    as_json: Json = False,
    as_csv: Csv = False,
    raw: Raw = False,
    db: Db = None,
) -> None:
    """List the answers of a step, or find answers that hold a text.

    Example: grpo-tui rollouts @last --search '<answer>' --sort reward --limit 10
    """
    from grpo_engine.errors import quoted
    from grpo_tui.experiments.search import search as find

    with reading(db) as reader:
        target = reader.resolve(run)
        hits: list[SearchHit] = []
        if search:
            maximum = limit + 1 if limit else 2**31
            columns = {"step": step, "idx": group, "origin": origin}
            options = {name: value for name, value in columns.items() if value is not None}
            stream = find(
                reader, target.key, search, sort=sort or "newest", limit=maximum, **options
            )
            hits = [hit for hit in stream if hit]
            more = len(hits) == maximum
            hits = hits[: limit or None]
            rows = _of_hits(reader, target, hits)
        else:
            rows = _of_step(reader, target, step, group, origin)
            more = bool(limit) and len(rows) > limit
            rows = _sorted(rows, sort)[: limit or None]
    print_rows(rows, as_json=as_json, as_csv=as_csv, table=_table(rows, hits), raw=raw)
    if not rows:
        print_stderr("no rollouts" + (f" with {quoted(search)}" if search else " there"))
    elif more:
        print_stderr(f"the first {limit}; --limit 0 gives all")


def _table(rows: list[dict[str, Any]], hits: "Sequence[SearchHit]") -> list[dict[str, Any]]:
    """The columns for people; a text that was searched shows its match."""
    table = [
        {
            "step": row["step"], "group": row["group"], "answer": row["index"],
            "reward": row["reward"], "advantage": row["advantage"], "tokens": row["tokens"],
            "prompt": asked(row["prompt"])[-40:], "completion": row["completion"],
        }
        for row in rows
    ]  # fmt: skip
    for line, hit in zip(table, hits, strict=False):
        line[hit.where] = "".join(excerpt(hit.text, hit.start, hit.end, EXCERPT))
    return table


def _of_step(
    reader: "StoreReader",
    run: "RunSummary",
    step: int | None,
    group: int | None,
    origin: Origin | None,
) -> list[dict[str, Any]]:
    from grpo_tui.experiments.errors import NothingStoredError
    from grpo_tui.experiments.export.rows import rollout_row

    if step is None:
        origins = [origin] if origin else ["train", "pinned", "eval"]
        steps = [
            steps[-1] for origin_ in origins if (steps := reader.group_steps(run.key, origin_))
        ]
        if not steps:
            raise NothingStoredError(f"{run.name} has no rollouts stored")
        step = steps[0]
        print_stderr(f"step {step}")
    groups = [view for view in reader.groups(run.key, step, origin) if group in (None, view.index)]
    if not groups:
        which = "rollouts" if group is None else f"group {group}"
        raise NothingStoredError(
            f"{run.name} has no {which} at step {step}; its last step is {run.step}"
        )
    return [rollout_row(run, view, rollout) for view in groups for rollout in view.rollouts]


def _of_hits(
    reader: "StoreReader", run: "RunSummary", hits: "Sequence[SearchHit]"
) -> list[dict[str, Any]]:
    from grpo_tui.experiments.export.rows import rollout_row

    groups = reader.groups_by_key({hit.group for hit in hits})
    rows = {item.key: rollout_row(run, view, item) for view in groups for item in view.rollouts}
    return [rows[hit.rollout] for hit in hits]


def _sorted(rows: list[dict[str, Any]], sort: Sort | None) -> list[dict[str, Any]]:
    if not sort:
        return rows
    column = {"length": "tokens", "clip": "clip_fraction", "newest": "rollout"}.get(sort, sort)
    return sorted(rows, key=lambda row: (row[column] is not None, row[column] or 0.0), reverse=True)
