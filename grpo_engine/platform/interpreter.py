"""Command lines that run code of this package in a process of its own."""

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
# Only this package is loaded from the folder given first: users' code must find its own modules,
# and another interpreter its own packages, not those that lie beside this one.
_BOOT: Final = (
    "import sys, importlib.util as u; "
    "s = u.spec_from_file_location('grpo_engine', sys.argv.pop(1) + '/grpo_engine/__init__.py'); "
    "m = sys.modules['grpo_engine'] = u.module_from_spec(s); s.loader.exec_module(m); "
)


def command(code: str, *arguments: str, interpreter: str = "") -> list[str]:
    """The command that runs code with these arguments, in this interpreter or another."""
    python = str(Path(interpreter).expanduser()) if interpreter else sys.executable
    return [python, "-P", "-u", "-c", _BOOT + code, str(ROOT), *arguments]
