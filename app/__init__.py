"""The Textual app and the command line; connects the engine and the store."""

if __name__ != "grpo_tui.app":  # the same file under two names would be two modules
    raise ModuleNotFoundError(
        f"there is no module {__name__!r}; the package of grpo-tui is grpo_tui.app",
        name=__name__,
    )
