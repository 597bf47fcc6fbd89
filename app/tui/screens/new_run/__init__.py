"""New run: settings as a form that is checked, tried out, estimated and launched."""

from grpo_tui.app.tui.screens.new_run.screen import NewRunScreen

__all__ = ["NewRunScreen"]
