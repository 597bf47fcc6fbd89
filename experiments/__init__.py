"""The experiment store: records, compares and exports runs; imports no UI and no MLX."""

if __name__ != "grpo_tui.experiments":
    raise ModuleNotFoundError(
        f"there is no module {__name__!r}; the package of grpo-tui is grpo_tui.experiments",
        name=__name__,
    )
