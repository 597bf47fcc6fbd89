"""Named errors of the store; each message names the value, the place and the remedy."""

from collections.abc import Collection

from grpo_engine.errors import nearest, quoted


class StoreError(Exception):
    """Base class of the errors that the store raises on purpose."""


class StoreUnusableError(StoreError, OSError):
    """The file cannot be opened, is not a store, or is damaged."""


class NoStoreError(StoreError, LookupError):
    """The file does not exist or is empty."""


class StoreReadOnlyError(StoreError):
    """The file can be read but not written; the message says why."""


class OutsideStoreError(StoreError, ValueError):
    """The store names a file or folder outside the folder that it is in."""


class RunNotFoundError(StoreError, LookupError):
    """No run has this name, id or prefix, or several do."""


class RunActiveError(StoreError):
    """The run is still in progress."""


class OtherTrainerError(StoreError):
    """The run was trained by another program, which alone can do what was asked."""


class NothingStoredError(StoreError, LookupError):
    """The run exists but has no data of the requested kind."""


class QueryError(StoreError, ValueError):
    """A filter, column, sort key, search, comparison or export is not valid."""


class ExportError(StoreError, ValueError):
    """The data cannot be exported in this format."""


class ImportRefusedError(StoreError, ValueError):
    """A file cannot be imported as runs."""


def check_choice(kind: str, value: str, choices: Collection[str]) -> None:
    """Refuse a value that is not among the choices."""
    if value not in choices:
        raise QueryError(
            f"there is no {kind} {quoted(value)}{nearest(value, choices)}; "
            f"choose from {', '.join(choices)}"
        )
