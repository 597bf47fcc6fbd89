"""Whether the app ends because of an error, which Textual keeps to itself."""

import sys

from textual.app import App


def has_crashed(app: App[int]) -> bool:
    """Whether an unhandled error ends the app."""
    return bool(app._exception or sys.exception())
