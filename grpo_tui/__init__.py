"""The workbench as it is installed: `grpo_tui.app` and `grpo_tui.experiments`."""
