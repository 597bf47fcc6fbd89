"""`grpo-tui runs`: list runs; show, rename, tag, note, archive, delete, import."""

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_engine.errors import quoted
from grpo_tui.app.cli.output import print_fields, print_json, print_rows, print_table, print_text
from grpo_tui.app.cli.params import Json, RunRef, Runs
from grpo_tui.app.cli.store_access import reading, resolve_all, writing
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.app.text.words import count_of
from grpo_tui.experiments.errors import NoStoreError, QueryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from grpo_engine.run_health import Health
    from grpo_tui.app.text.run_columns import Outcome, RunColumn
    from grpo_tui.experiments.importing import Imported
    from grpo_tui.experiments.store import ExperimentStore
    from grpo_tui.experiments.values import AlertView, PostMortem, RunDetail, RunSummary

ALERT_FIELDS = (
    "key",
    "rule",
    "severity",
    "first_step",
    "last_step",
    "count",
    "value",
    "limit",
    "group",
    "explanation",
    "remedy",
    "muted",
)
ENDED_BADLY = ("lost", "stalled", "unknown", "aborted", "failed")

app = typer.Typer(
    help="List runs; show, rename, tag, note, archive, delete, import. Without a command it is "
    "`list`: grpo-tui runs --filter status:running"
)


@app.command("list")
def list_(
    filter: Annotated[
        str, typer.Option("--filter", "-f", help="Words, status:running, reward>0.5, !, |.")
    ] = "",
    sort: Annotated[
        str, typer.Option(help="A field, setting or metric; -KEY sorts in descending order.")
    ] = "-created",
    columns: Annotated[
        str,
        typer.Option(help="More columns: best reward, last kl, =optimizer.learning_rate as lr."),
    ] = "",
    all_: Annotated[bool, typer.Option("--all", help="Include archived runs.")] = False,
    limit: Annotated[int, typer.Option(help="Maximum number; 0 for all.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """List runs.

    Example: grpo-tui runs --filter 'status:completed reward>0.5' --sort '-best reward'
    """
    from grpo_tui.app.feed.outcomes import outcomes
    from grpo_tui.app.text.run_columns import COLUMNS, added
    from grpo_tui.experiments.export.rows import run_row
    from grpo_tui.experiments.values import column_label

    expressions = [text for text in columns.split(",") if text.strip()]
    ends: dict[int, Outcome] = {}
    try:
        with reading() as reader:
            selected = reader.runs(
                filter, sort=sort, columns=expressions, archived=all_, limit=limit or None
            )
            queued = sum(item.state == "queued" for item in reader.queue())
            ends = outcomes(reader, selected)
    except NoStoreError as error:
        selected, queued = (), 0
        print_stderr(str(error))
    columns_by_title = {column.title: column for column in COLUMNS}
    columns_by_title |= {column_label(text): added(text) for text in expressions}
    print_rows(
        ({**run_row(run), **health_fields(ends[run.key].health)} for run in selected),
        as_json=as_json,
        table=_table(columns_by_title, selected, ends),
        right=[title for title, column in columns_by_title.items() if column.align == ">"],
    )
    if not selected and filter:
        print_stderr(f"no run matches {quoted(filter)}")
    if queued:
        print_stderr(f"{count_of(queued, 'queued run')}; `grpo-tui sweep --queue` trains them")


def health_fields(health: "Health") -> dict[str, str]:
    """What JSON has of a run's health."""
    return {"health": health.label, "health_reason": health.reason}


def _table(
    columns: "Mapping[str, RunColumn]",
    runs: "Sequence[RunSummary]",
    ends: "Mapping[int, Outcome]",
) -> "Iterator[dict[str, str]]":
    """The runs as text, without the columns of ours in which no run has a value."""
    from grpo_tui.app.text.run_columns import COLUMNS

    now = time.time()
    texts = {
        title: ["".join(text for text, _ in column.draw(run, now, ends[run.key])) for run in runs]
        for title, column in columns.items()
    }
    titles = [
        title
        for title, column in columns.items()
        if column not in COLUMNS or any(text not in ("", "–") for text in texts[title])
    ]
    for cells in zip(*(texts[title] for title in titles), strict=True):
        yield dict(zip(titles, cells, strict=True))


@app.command("show")
def show(
    run: RunRef,
    all_settings: Annotated[
        bool, typer.Option("--all", help="Include settings at their defaults.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show one run: status, settings that are not the defaults, metrics, alerts, attempts.

    Example: grpo-tui runs show @last --json
    """
    from grpo_tui.app.page.facts import gather
    from grpo_tui.experiments.post_mortem import post_mortem

    with reading() as reader:
        summary = reader.resolve(run)
        page = _RunPage(
            content=gather(reader, summary),
            detail=reader.run(summary.key),
            code=reader.code(summary.key),
            alerts=reader.alerts(summary.key),
            end=post_mortem(reader, summary.key) if summary.status in ENDED_BADLY else None,
        )
    if as_json:
        print_json(_json_of(page))
    else:
        _print_run(page, all_settings=all_settings)


@dataclass(frozen=True, slots=True)
class _RunPage:
    """What `runs show` has of a run, as a text or as JSON."""

    content: dict[str, Any]  # that of its report
    detail: "RunDetail"
    code: "Mapping[str, Any]"
    alerts: "Sequence[AlertView]"
    end: "PostMortem | None"


def _json_of(page: _RunPage) -> dict[str, Any]:
    content, detail = page.content, page.detail
    return {
        **content["run"],
        "health": content["health"],
        "health_reason": content["health_reason"],
        "begun_from": detail.descent,
        "origin": detail.origin,
        "files": detail.files and asdict(detail.files),
        "config": detail.config,
        "versions": detail.versions,
        "code": page.code,
        "folder": detail.folder,
        "attempts": [asdict(item) for item in detail.attempts],
        "alerts": [{name: getattr(item, name) for name in ALERT_FIELDS} for item in page.alerts],
        "post_mortem": page.end and asdict(page.end),
    }


def _print_run(page: _RunPage, *, all_settings: bool) -> None:
    from grpo_tui.app.page.facts import tables
    from grpo_tui.app.text.event_text import device_text
    from grpo_tui.app.text.run_text import files_text

    content, detail = page.content, page.detail
    device = content["run"]["device"]
    fields = content["run"] | {
        "health": f"{content['health']}: {content['health_reason']}",
        "device": device and device_text(device),
        "begun_from": detail.descent,
        "origin": detail.origin,
        "code": ", ".join(map(_commit, page.code.items())),
    }
    fields["elapsed"] = fields["elapsed"] or None  # its trainer may have recorded no times
    print_fields({k: v for k, v in fields.items() if " " not in k and v not in ("", None)})
    for label, text in files_text(detail.files):
        print_text(f"{label}: {text}")
    settings = detail.settings if all_settings else content["settings"]
    for title, rows in tables({**content, "settings": settings, "alerts": []}).items():
        if rows:
            print_text(f"\n{title}")
            print_table(rows)
    for alert in page.alerts:
        _print_alert(alert)
    if page.end is not None:
        _print_end(detail.summary, page.end)


def _commit(version: "tuple[str, Mapping[str, Any]]") -> str:
    """A file, or `.` for the folder, with its commit and whether it differs from that."""
    name, known = version
    commit = str(known.get("commit", ""))[:10] or "of no repository"
    return f"{name} {commit}" + " with changes" * bool(known.get("dirty"))


def _print_alert(alert: "AlertView") -> None:
    muted = ", muted" if alert.muted else ""
    print_text(
        f"\n{alert.severity} {alert.rule} ({alert.count} x, steps {alert.first_step} to "
        f"{alert.last_step}{muted}): {alert.explanation} {alert.remedy}"
    )


def _print_end(summary: "RunSummary", mortem: "PostMortem") -> None:
    """Say why a run ended, and what a resume repeats."""
    step = mortem.checkpoint_step
    saved = "no checkpoint" if step is None else f"checkpoint at {step}"
    print_text(
        f"\n{summary.status}: {mortem.cause}\n"
        f"last step {mortem.last_step}, {saved}, "
        f"{count_of(mortem.steps_to_redo, 'step')} to redo: grpo-tui resume {summary.id}"
    )


@app.command("rename")
def rename(run: RunRef, name: str) -> None:
    """Rename a run.

    Example: grpo-tui runs rename calm-otter baseline
    """
    names = _change([run], lambda store, key: store.rename(key, name))
    print_stderr(f"renamed {names} to {name}")


def _change(runs: "Sequence[str]", change: "Callable[[ExperimentStore, int], object]") -> str:
    """Change these runs in the store; return their names."""
    with reading() as reader:
        selected = resolve_all(reader, runs)
    with writing() as store:
        for run in selected:
            change(store, run.key)
    return ", ".join(run.name for run in selected)


@app.command("tag")
def tag(
    runs: Runs,
    add: Annotated[list[str] | None, typer.Option("--add", "-a", help="Tag to add.")] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", "-r", help="Tag to remove.")
    ] = None,
) -> None:
    """Add tags to runs or remove them.

    Example: grpo-tui runs tag @last --add good --remove todo
    """
    if not "".join([*(add or ()), *(remove or ())]).strip():
        raise typer.BadParameter("give --add TAG or --remove TAG")
    _change(runs, lambda store, key: store.tag(key, add or (), remove or ()))
    with reading() as reader:
        for run in resolve_all(reader, runs):
            print_stderr(f"tags of {run.name}: {', '.join(run.tags) or 'none'}")


@app.command("note")
def note(run: RunRef, text: str) -> None:
    """Set a run's note; empty text removes it.

    Example: grpo-tui runs note @last "beta too high"
    """
    names = _change([run], lambda store, key: store.change(key, note=text))
    print_stderr(f"updated the note of {names}")


@app.command("archive")
def archive(
    runs: Runs,
    undo: Annotated[bool, typer.Option("--undo", help="Show them again.")] = False,
) -> None:
    """Hide runs from lists; nothing is removed.

    Example: grpo-tui runs archive old-run
    """
    names = _change(runs, lambda store, key: store.change(key, archived=not undo))
    print_stderr(f"{'not archived' if undo else 'archived'}: {names}")


@app.command("delete")
def delete(
    runs: Runs,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also delete runs that are not archived.")
    ] = False,
) -> None:
    """Permanently delete archived runs and their folders: checkpoints, tokens, logs.

    Example: grpo-tui runs delete old-run --yes
    """
    from grpo_tui.experiments.purge import purge

    with reading() as reader:
        selected = resolve_all(reader, runs)
    for run in selected:
        if run.active:
            raise QueryError(f"{run.name} is {run.status}; `grpo-tui stop {run.id}` first")
        if not run.archived and not force:
            raise QueryError(
                f"{run.name} is not archived; `grpo-tui runs archive {run.id}` first, or --force"
            )
    names = ", ".join(run.name for run in selected)
    if not yes:
        if not sys.stdin.isatty():
            raise QueryError(f"deleting {names} cannot be undone; confirm with --yes")
        typer.confirm(f"Delete {safe(names)} with all checkpoints?", err=True, abort=True)
    with writing() as store:
        store.delete(run.key for run in selected)
        for run in selected:
            purge(store, run.key)
            print_stderr(f"deleted {run.name}")


@app.command("import")
def import_(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="OTHER.db, also as .xz, BUNDLE.zip, or another trainer's run: its folder or file."
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on as another trainer's run grows, until ctrl+c.")
    ] = False,
    name: Annotated[str, typer.Option(help="Name of another trainer's run.")] = "",
    task: Annotated[str, typer.Option(help="Task of another trainer's run.")] = "",
    run: Annotated[str, typer.Option(help="The one run to import of a file of several.")] = "",
    as_json: Json = False,
) -> None:
    """Import the runs of other stores, of bundles and of other trainers.

    Example: grpo-tui runs import colleague.db
    """
    imported: list[dict[str, str]] = []
    stores = {path: importer for path in paths if (importer := _importer(path))}
    if stores and (follow or name or task or run):
        raise typer.BadParameter(
            f"{next(iter(stores))} is a store: leave --follow, --name, --task and --run out"
        )
    if len(paths) > 1 and (follow or name):
        raise typer.BadParameter("give one PATH with --follow or --name")
    with writing() as store:
        for path, importer in stores.items():
            imported += [
                {"id": run, "name": called} for run, called in importer(store, path, print_stderr)
            ]
    for path in paths:
        if path not in stores:
            imported += _import_foreign(path, follow=follow, name=name, task=task, run=run)
    print_rows(imported, as_json=as_json)
    if not imported:
        print_stderr("nothing was imported: all of it is already in the store")


def _importer(path: Path) -> "Callable[..., Imported] | None":
    """What imports the runs of a store or a bundle; None if they are of another trainer."""
    from grpo_tui.experiments.bundles import import_bundle, is_bundle
    from grpo_tui.experiments.importing import import_packed, import_store, is_packed
    from grpo_tui.foreign.formats import is_foreign

    if is_bundle(path):
        return import_bundle
    if is_packed(path):
        return import_packed
    return None if is_foreign(path) else import_store


def _import_foreign(path: Path, **options: Any) -> "Iterator[dict[str, str]]":
    """Import the runs of another trainer."""
    from grpo_tui.experiments.db.paths import store_path
    from grpo_tui.foreign.importing import Options, import_runs

    for run in import_runs(path, Options(store=store_path(), progress=print_stderr, **options)):
        print_stderr(f"{run.name}: {count_of(run.steps, 'step')} added")
        yield {"id": run.id, "name": run.name}
