"""Log records of the libraries that read a model's files, which quote what they find in them."""

import logging
import os
from contextlib import suppress
from typing import Any

LIBRARIES = tuple(
    f"{os.sep}{name}{os.sep}"
    for name in ("mlx_lm", "transformers", "tokenizers", "huggingface_hub")
)


def escape_library_logs() -> None:
    """Make what a terminal would obey visible in their records; a second call does nothing."""
    make = logging.getLogRecordFactory()
    if getattr(make, "escapes", False):
        return

    def factory(*arguments: Any, **keywords: Any) -> logging.LogRecord:
        record = make(*arguments, **keywords)
        if any(library in record.pathname for library in LIBRARIES):
            with suppress(TypeError, ValueError, KeyError):  # the handler reports a wrong format
                record.msg, record.args = escaped(record.getMessage()), ()
        return record

    factory.escapes = True  # type: ignore[attr-defined]  # marks ours
    logging.setLogRecordFactory(factory)


def escaped(text: str) -> str:
    """Write each character that is not printable as an escape; line ends and tabs stay."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text
    )
