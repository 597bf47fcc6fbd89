"""Functions of users as choices of a recipe; they run in the process that trains."""

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_engine import names
from grpo_engine.errors import EngineError, RecipeError
from grpo_engine.sandbox.report import describe

FORMS = "file.py:function"


class Custom(str):
    """A choice by the name of a function, which is loaded when it is first read."""

    def __new__(cls, name: str, function: Callable[..., Any] | None = None) -> "Custom":
        custom = super().__new__(cls, name)
        if function is not None:
            custom.function = function
        return custom

    def __deepcopy__(self, _memo: object) -> "Custom":
        return self

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        names.refuse_missing(self, "function")
        purpose = names.Purpose(f"function {self}", RecipeError, FORMS)
        try:
            function, _ = names.find(self, purpose)
        except EngineError:
            raise
        except (Exception, SystemExit) as error:
            raise purpose.refuse(f" cannot be loaded: {describe(error)}") from error
        if not callable(function):
            raise purpose.refuse(f" is no function but of type {type(function).__name__}")
        return function  # type: ignore[no-any-return]

    @functools.cached_property
    def parameters(self) -> Mapping[str, bool]:
        """Its arguments by name, and whether each is required."""
        return {
            name: item.default is item.empty
            for name, item in inspect.signature(self.function).parameters.items()
            if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
        }

    @functools.cached_property
    def source(self) -> Mapping[str, Any]:
        """Its file and line, its code, and the file's text with its hash."""
        function: Any = inspect.unwrap(self.function)
        while isinstance(function, functools.partial):
            function = function.func
        code = getattr(function, "__code__", getattr(type(function).__call__, "__code__", None))
        if code is None:
            raise RecipeError(f"function {self} is not written in Python: wrap it in a function")
        written = text = ""
        with suppress(OSError):  # an interpreter may not keep what was typed
            written = text = inspect.getsource(code)
            text = Path(code.co_filename).read_text(encoding="utf-8")
        return {
            "name": str(self),
            "file": code.co_filename,
            "line": code.co_firstlineno,
            "parameters": dict(self.parameters),
            "code": written,
            "text": text,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }


def is_name(value: object) -> bool:
    """Whether a text names a function and not a choice that is built in."""
    return isinstance(value, str) and (":" in value or value.endswith(".py"))
