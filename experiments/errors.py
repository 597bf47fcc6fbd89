"""Named errors of the store; each message names the value, the place and the remedy."""


class StoreError(Exception):
    """Base of all errors that the store raises on purpose."""


class StoreUnusableError(StoreError, OSError):
    """The file cannot be opened, is no store, or is damaged."""


class NoStoreError(StoreError, LookupError):
    """There is no file yet, or nothing in it."""


class StoreReadOnlyError(StoreError):
    """The file may be read but not written, and why."""


class RunNotFoundError(StoreError, LookupError):
    """No run has this name, id or prefix, or several have it."""


class NothingStoredError(StoreError, LookupError):
    """The run exists, but nothing of what was asked for was stored."""


class QueryError(StoreError, ValueError):
    """A filter, column, sort key or search cannot be understood."""


class ExportError(StoreError, ValueError):
    """This cannot be exported in this format."""


class ImportRefusedError(StoreError, ValueError):
    """A file cannot be taken in as runs."""


class CompareError(StoreError, ValueError):
    """These runs cannot be compared in this way."""


class PresetNotFoundError(StoreError, LookupError):
    """No preset has this name."""
