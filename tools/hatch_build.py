"""What pyproject.toml cannot say about the wheel; hatchling loads it."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = {name: f"grpo_tui/{name}" for name in ("app", "experiments")}


class Hook(BuildHookInterface):  # type: ignore[misc]  # hatchling is only there during a build
    """Puts the folders under the names that they are imported by."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """An editable install imports them through the links instead."""
        if version != "editable":
            build_data["force_include"] |= FOLDERS
