"""Call the command line in this process and keep its result."""

import csv
import io
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from grpo_tui.app.cli.main import main


class Done(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Its output, parsed as JSON."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, str]]:
        """Its output, parsed as CSV."""
        return list(csv.DictReader(io.StringIO(self.out, newline="")))


Cli = Callable[..., Done]


def caller(patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[bytes]) -> Cli:
    """Return a function that calls a command; exports do not lower this process's priority."""
    patch.setattr("grpo_engine.platform.priority.set_priority", lambda *_: True)

    def call(*args: str) -> Done:
        code = main(list(args))
        out, err = captured.readouterr()
        return Done(code, out.decode(), err.decode())

    return call
