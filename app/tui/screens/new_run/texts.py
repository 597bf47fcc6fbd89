"""The settings as text: JSON and Markdown, with what differs from where they come from."""

import json

from app.tui.screens.new_run.form import shown
from app.tui.screens.new_run.view import View
from grpo_engine.config.settings import flatten


def as_json(view: View) -> str:
    """All settings as one tree."""
    config = view.checked.config
    return config.model_dump_json(indent=1) if config is not None else "{}"


def as_markdown(view: View) -> str:
    """What differs, then everything, as tables."""
    base = flatten(view.form.base)
    lines = [f"# {view.name}", "", f"From {view.origin.kind} {view.origin.name}.", ""]
    if view.checked.changed:
        lines += ["| setting | was | is |", "| --- | --- | --- |"]
        lines += [
            f"| {path} | {_cell(shown(base[path]))} | {_cell(view.checked.fields[path].text)} |"
            for path in view.checked.changed
        ]
        lines.append("")
    lines += ["| setting | value |", "| --- | --- |"]
    lines += [f"| {path} | {_cell(row.text)} |" for path, row in view.checked.fields.items()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A value inside a table; JSON's escapes make control characters harmless."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("|", "\\|")
