"""`grpo-tui models`: list local models, import GGUF files, export trained models."""

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from grpo_engine.config.parse import changed, flatten
from grpo_engine.evaluation.target import Target, of_run
from grpo_engine.events import EvaluationFinished
from grpo_engine.paths import irregular_file
from grpo_tui.app.cli.output import print_json, print_rows
from grpo_tui.app.cli.params import Checkpoint, Json, RunRef, Trust
from grpo_tui.app.cli.store_access import reading
from grpo_tui.app.jobs.report_table import before_and_after
from grpo_tui.app.text.stderr import print_stderr

app = typer.Typer(help="List models; import or export one. Example: grpo-tui models")

Dtype = Literal["float32", "float16", "bfloat16"]
NOT_LISTED = (
    "name",
    "model.path",
    "model.adapter",
)  # named elsewhere, or true of this machine alone


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the models on this machine: built-in, imported, and in the Hugging Face cache.

    Example: grpo-tui models
    """
    print_rows(list(local_models()), as_json=as_json)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A GGUF file of the llama family.")],
    out: Annotated[Path | None, typer.Option(help="Folder to make.")] = None,
    dtype: Annotated[Dtype, typer.Option(help="Number format of the weights.")] = "float32",
    as_json: Json = False,
) -> None:
    """Make a model folder of a GGUF file, as other local tools have them.

    Example: grpo-tui models import SmolLM2-135M-Instruct.Q4_1.gguf
    """
    from grpo_engine.models.from_gguf import import_gguf

    folder = out or imported_folder() / file.stem
    result = import_gguf(file, folder, dtype=dtype)
    summary = (
        f"{result.parameters / 1e6:.1f} M parameters ({result.architecture}, "
        f"{', '.join(result.formats)}) as {dtype}, {result.bytes / 1e6:.0f} MB"
    )
    _print_result(result, summary, as_json)


def _print_result(result: Any, summary: str, as_json: bool) -> None:
    """Print the folder and what is in it."""
    if as_json:
        print_json(dataclasses.asdict(result) | {"folder": str(result.folder)})
    else:
        print(str(result.folder))
        print_stderr(summary)


@app.command("export")
def export_(
    run: RunRef,
    to: Annotated[
        Literal["mlx", "hf", "peft", "gguf"],
        typer.Option(help="For MLX, transformers, peft (the adapter alone), or llama.cpp."),
    ] = "mlx",
    out: Annotated[Path | None, typer.Option(help="Folder to make; default: RUN-TO.")] = None,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16", "q8_0"],
        typer.Option(help="Number format; q8_0 is for gguf, peft is always float32."),
    ] = "float32",
    step: Checkpoint = None,
    _trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Write a run's model for another program, reopen it, and compare it with the trained one.

    Example: grpo-tui models export @last --to gguf --dtype q8_0
    """
    from grpo_engine.models.export import export

    with reading() as reader:
        record = reader.resolve(run)
        target = of_run(Path(reader.run(record.key).folder), {}, step)
        card = card_of(record.name, target, reader.evaluations(record.key))
    name = re.sub(r"[^\w.-]+", "-", record.name).lstrip(".")
    result = export(target.config.model, out or Path(f"{name}-{to}"), to, dtype, card)
    summary = (
        f"step {target.step}, {result.bytes / 1e6:.1f} MB as {dtype}; reopened: log-probabilities "
        f"differ by {result.difference:.1g} nats a token on average"
    )
    _print_result(result, summary, as_json)


def card_of(name: str, target: Target, evaluations: Sequence[EvaluationFinished]) -> str:
    """The README.md of an exported model, with the front matter that model hubs read."""
    from grpo_tui.app.cli.markdown import table

    config = target.config
    held_out = before_and_after([item for item in evaluations if item.step <= target.step])
    changes = changed(flatten(config)).items()
    rows = [{"setting": path, "value": value} for path, value in changes if path not in NOT_LISTED]
    lines = [
        "---",
        f"base_model: {target.base}",
        "tags: [grpo, reinforcement-learning]",
        "---",
        "",
        f"# {name}",
        "",
        f"{target.base}, trained for {target.step} steps with the recipe "
        f"`{config.algorithm.recipe}` on `{config.task.name}` by grpo-tui.",
        "",
        *(["## Held-out problems", "", "```", held_out, "```", ""] if held_out else []),
        "## Settings that differ from the defaults",
        "",
        *table(("setting", "value"), rows),
    ]
    return "\n".join(lines) + "\n"


def imported_folder() -> Path:
    """Return the folder for imported models if none is given."""
    from platformdirs import user_data_path

    return user_data_path("grpo-tui", appauthor=False) / "models"


def local_models() -> Iterator[dict[str, Any]]:
    """Return the models that need no network."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    from grpo_engine.policy.embedded import EMBEDDED

    for name, folder in EMBEDDED.items():
        yield _row(name, folder, "embedded")
    for folder in sorted(imported_folder().glob("[!.]*/config.json")):
        yield _row(str(folder.parent), folder.parent, "imported")
    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    folders = {
        repository.repo_id: revision.snapshot_path
        for repository in repositories
        if repository.repo_type == "model"
        for revision in repository.revisions
        if (revision.snapshot_path / "config.json").is_file()
        and any(revision.snapshot_path.glob("*.safetensors"))
    }
    for name, folder in sorted(folders.items()):
        yield _row(name, folder, "Hugging Face cache")


def _row(path: str, folder: Path, origin: str) -> dict[str, Any]:
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    model_type = "damaged"
    if not irregular_file(folder):
        with suppress(OSError, ValueError, AttributeError):
            model_type = json.loads((folder / "config.json").read_text()).get("model_type", "?")
    return {"path": path, "type": model_type, "size_mb": round(size / 1e6, 1), "from": origin}
