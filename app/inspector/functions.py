"""Evaluates functions of users for the inspector and the lab, in a process of their own.

Only a file that is on this machine is run, and only as it was when the run was recorded: what a
store says of it is never run.
"""

import atexit
import hashlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_engine.config.custom import Custom
from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import MathsError
from grpo_engine.names import IN_PROCESS
from grpo_engine.platform.scratch import scratch
from grpo_engine.sandbox.client import Call, Sandbox

if TYPE_CHECKING:
    import mlx.core as mx

LIMIT_S = 60.0
Source = Mapping[str, Any]
UNKNOWN: Source = {"file": "", "sha256": "", "parameters": {}}


def evaluable(recipe: Recipe, sources: Mapping[str, Source] | None = None) -> Recipe:
    """The recipe with functions that the process evaluates.

    Those of a run have its `sources`; others are the files that they name now.
    """
    changes: dict[str, Any] = {}
    for choice, function in recipe.functions.items():
        if sources is None and "source" in vars(function):
            continue  # of the process already
        known = _ask("describe", name=function) if sources is None else sources.get(choice, {})
        source = {"name": function, **UNKNOWN, **known}
        changes[choice] = remote = Custom(function, partial(_evaluate, source))
        remote.source, remote.parameters = source, source["parameters"]
    return replace(recipe, **changes)


def _evaluate(source: Source, **values: Any) -> "mx.array":
    """The value of a function; its slopes are computed in the process as well."""
    import mlx.core as mx

    inputs = {name: value for name, value in values.items() if isinstance(value, mx.array)}
    others = {name: value for name, value in values.items() if name not in inputs}

    def ask(given: Any, push: Any = None) -> list[mx.array]:
        lists = {name: value.tolist() for name, value in zip(inputs, given, strict=True)}
        results = _ask("call", source=source, inputs=lists, others=others, push=push)
        return [mx.array(result) for result in results]

    value: Any = mx.custom_function(lambda given: ask(given)[0])
    value.vjp(lambda given, push, _: ask(given, push.tolist()))
    result: mx.array = value([*inputs.values()])
    return result


@cache
def _sandbox() -> Sandbox:
    stack = ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(scratch("functions"))
    return stack.enter_context(Sandbox(f"{__name__}:Functions", folder, "functions"))


def _ask(method: str, **arguments: Any) -> Any:
    return _sandbox().ask(Call(method, arguments, LIMIT_S)).value_or(MathsError)


class Functions:
    """What the process does."""

    def __init__(self, _server: object) -> None: ...

    def describe(self, name: str) -> Source:
        return Custom(name).source

    def call(self, source: Source, inputs: Source, others: Source, push: Any) -> list[Any]:
        """The value, or the slopes in each input times `push`."""
        import mlx.core as mx

        name, file = source["name"], Path(source["file"])
        if name.startswith(IN_PROCESS):
            raise MathsError(f"{name} was given by a Python process, which alone can evaluate it")
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != source["sha256"]:
            raise MathsError(f"{name} is not evaluated: {file} is no longer as the run had it")
        function = Custom(f"{file}:{name.rpartition(':')[2]}").function

        def value(*given: mx.array) -> mx.array:
            result: mx.array = function(**dict(zip(inputs, given, strict=True)), **others)
            return result

        given = [*map(mx.array, inputs.values())]
        results = [value(*given)] if push is None else mx.vjp(value, given, [mx.array(push)])[1]
        return [result.tolist() for result in results]
