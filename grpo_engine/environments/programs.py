"""Programs that a process of environments starts: their command, variables and last output."""

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from grpo_engine.errors import BrokenEnvironmentError
from grpo_engine.sandbox.variables import short

TAIL = 4096  # bytes of a program's last output
LOOPBACK = "127.0.0.1,localhost"


def search_path() -> str:
    """Where programs are searched: first beside the Python that runs this."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def command_of(name: str, prefix: str, example: str) -> list[str]:
    """The command behind a setting's prefix, whose program must be there."""
    try:
        command = shlex.split(name.removeprefix(prefix))
    except ValueError as error:  # a quotation mark without its second one
        raise BrokenEnvironmentError(f"{name}: {error}; write `{example}`") from None
    if not command or shutil.which(command[0], path=search_path()) is None:
        missing = f"there is no program {command[0]!r}" if command else "it has no command"
        raise BrokenEnvironmentError(f"{name}: {missing}; write `{example}`")
    return command


def variables_of(named: Sequence[str], home: Path) -> dict[str, str]:
    """The short list, those that are `named`, and a HOME; no proxy for this machine."""
    return {
        **short(os.environ, named, home),
        "PATH": search_path(),
        "NO_PROXY": LOOPBACK,
        "no_proxy": LOOPBACK,
    }


class ErrorOutput:
    """What a program writes about errors, of which the end is kept."""

    def __init__(self) -> None:
        self.tail, self._has_ended = b"", asyncio.Event()

    @contextmanager
    def opened(self) -> Iterator[TextIO]:
        """The file for the program, open here until it has started."""
        self.tail = b""
        self._has_ended.clear()
        output, written = os.pipe()
        asyncio.get_running_loop().add_reader(output, self._drain, output)
        with os.fdopen(written, "w") as file:
            yield file

    @property
    def has_ended(self) -> bool:
        """Whether the program and what it started have ended, or closed it."""
        return self._has_ended.is_set()

    async def end(self) -> bytes:
        """Its last bytes, which may come a little later than other signs of the end.

        Descendants of the program may go on writing.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_ended.wait(), 1.0)
        return self.tail

    def _drain(self, output: int) -> None:
        data = os.read(output, 1 << 16)
        self.tail = (self.tail + data)[-TAIL:]
        if not data:
            asyncio.get_running_loop().remove_reader(output)
            os.close(output)
            self._has_ended.set()
            os.write(2, self.tail)  # the log
