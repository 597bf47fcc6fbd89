"""The command line called in this process, and what came of it."""

import csv
import io
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from app.cli.main import main


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, str]]:
        """What it printed, as CSV."""
        return list(csv.DictReader(io.StringIO(self.out, newline="")))


Cli = Callable[..., Done]


def caller(patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[bytes]) -> Cli:
    """Calls a command; an export does not lower the priority of all tests after it."""
    patch.setattr("grpo_engine.platform.priority.lower_priority", lambda niceness: niceness)

    def call(*args: str) -> Done:
        code = main(list(args))
        out, err = captured.readouterr()
        return Done(code, out.decode(), err.decode())

    return call
