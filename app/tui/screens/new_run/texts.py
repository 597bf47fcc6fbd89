"""The settings as text: JSON and Markdown, with the differences from their origin."""

from grpo_engine.config.declaration import as_text
from grpo_tui.app.tui.screens.new_run.view import View
from grpo_tui.experiments.export.json import json_text
from grpo_tui.experiments.export.markdown import md_cell, table


def as_json(view: View) -> str:
    """All settings as one JSON object."""
    config = view.checked.config
    return json_text({} if config is None else config.model_dump(mode="json"), indent=2) + "\n"


def as_markdown(view: View) -> str:
    """The differences, then all settings, as tables."""
    base, checked = view.form.start, view.checked
    lines = [f"# {md_cell(view.name)}", ""]
    lines += [f"From {view.origin.kind} {md_cell(view.origin.name)}.", ""]
    if checked.changed:
        changed = (
            {"setting": path, "was": as_text(base[path]), "is": checked.fields[path].text}
            for path in checked.changed
        )
        lines += [*table(("setting", "was", "is"), changed), ""]
    every = ({"setting": path, "value": row.text} for path, row in checked.fields.items())
    lines += table(("setting", "value"), every)
    return "\n".join(lines) + "\n"
