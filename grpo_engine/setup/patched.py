"""Finds functions of the formulas that another program has replaced, so that a run can say so."""

import functools
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlx
import numpy as np

_OURS = "grpo_engine.maths"
# where functions that the formulas define or import come from
_ROOTS = (
    str(Path(__file__).parents[1]), str(Path(np.__file__).parent), *mlx.__path__,
)  # fmt: skip
_STDLIB = sysconfig.get_path("stdlib")


def patched() -> dict[str, str]:
    """Replaced functions: their names, such as `signal.group_standard`, and file and line."""
    return {
        name: location
        for path, module in sorted(sys.modules.items()) if f"{path}.".startswith(f"{_OURS}.")
        for name, value in _functions(path.removeprefix(_OURS).lstrip("."), vars(module))
        if (location := _foreign(value))
    }  # fmt: skip


def _functions(module: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The functions of a module by name, those in its tables included."""
    for name, value in values.items():
        if name.startswith("__"):
            continue
        table = value if isinstance(value, Mapping) else {name: value}
        for key, function in table.items():
            yield f"{module}.{key}".lstrip("."), function


def _foreign(value: Any) -> str:
    """File and line of a function from elsewhere; empty for one of ours or of a library."""
    while isinstance(value, functools.partial):
        value = value.func
    code = getattr(value, "__code__", None)
    if code is None:
        return ""
    file = code.co_filename
    in_library = file.startswith(_STDLIB) and "site-packages" not in file
    if in_library or file.startswith(_ROOTS) or file.startswith("<frozen"):
        return ""
    return f"{file}:{code.co_firstlineno}"
