"""Evaluates functions of users for the inspector and the lab, in a process of their own.

Only a file that is on this machine is run, and only as it was when the run was recorded. What a
store says of it is never run, and the file that it names only after a yes, or if its run began
here.
"""

import atexit
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_engine import consent
from grpo_engine.config.custom import Custom
from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import MathsError
from grpo_engine.names import IN_PROCESS
from grpo_engine.sandbox.client import Sandbox, ServiceCall

if TYPE_CHECKING:
    import mlx.core as mx

LIMIT_S = 60.0
Values = Mapping[str, Any]


def evaluable(recipe: Recipe, sources: Mapping[str, Values] | None = None) -> Recipe:
    """The recipe with functions that the process evaluates.

    Those of a run have its `sources`; others are the files that they name now.
    """
    changes: dict[str, Any] = {}
    refused = refusal(sources) if sources else ""
    for choice, function in recipe.functions.items():
        if sources is None and "source" in vars(function):
            continue  # The process evaluates it already.
        source = _request("describe", name=function) if sources is None else sources.get(choice, {})
        evaluate = partial(_refuse, refused) if refused else partial(_evaluate, function, source)
        changes[choice] = remote = Custom(function, evaluate)
        remote.source, remote.parameters = source, source.get("parameters", {})
    return replace(recipe, **changes)


def require(sources: Mapping[str, Values]) -> None:
    """Raise UntrustedError if a run of others names these functions and nobody has allowed them."""
    consent.require(consent.question_of_functions(sources, "this run"))


def refusal(sources: Mapping[str, Values]) -> str:
    """Why these functions of a run are not evaluated; empty if they are."""
    try:
        require(sources)
    except consent.UntrustedError:
        return "the run's own functions are not evaluated, because it did not begin here: v asks"
    return ""


def _refuse(reason: str, **_: Any) -> "mx.array":
    raise MathsError(reason)


def _evaluate(name: str, source: Values, /, **values: Any) -> "mx.array":
    """The value of a function; its slopes are computed in the process as well."""
    import mlx.core as mx

    def request(arrays: Values, push: Any = None) -> Any:
        lists = {name: array.tolist() for name, array in arrays.items()}
        return _request("call", name=name, source=source, values={**values, **lists}, push=push)

    value: Any = mx.custom_function(lambda arrays: mx.array(request(arrays)))
    value.vjp(
        lambda arrays, push, _: {
            name: mx.array(slope) for name, slope in request(arrays, push.tolist()).items()
        }
    )
    result: mx.array = value({n: item for n, item in values.items() if isinstance(item, mx.array)})
    return result


@cache
def _sandbox() -> Sandbox:
    sandbox = Sandbox(f"{__name__}:Functions", None, "functions", foreign=True)
    atexit.register(sandbox.close)
    return sandbox


def _request(method: str, **arguments: Any) -> Any:
    return _sandbox().call(ServiceCall(method, arguments, LIMIT_S)).value_or(MathsError)


class Functions:
    """What the process does."""

    def __init__(self, _server: object) -> None: ...

    def describe(self, name: str) -> Values:
        return Custom(name).source

    def call(self, name: str, source: Values, values: Values, push: Any) -> Any:
        """The value, or the slopes in each array times `push`."""
        import mlx.core as mx

        file = Path(source.get("file", ""))
        if name.startswith(IN_PROCESS):
            raise MathsError(f"{name} was given by a Python process, which alone can evaluate it")
        code = file.read_bytes() if file.is_file() else b""
        if not code or hashlib.sha256(code).hexdigest() != source.get("sha256"):
            raise MathsError(f"{name} is not evaluated: {file} is no longer as the run had it")
        function = Custom(f"{file}:{name.rpartition(':')[2]}").function
        arrays = {name: mx.array(item) for name, item in values.items() if isinstance(item, list)}
        if push is None:
            return function(**{**values, **arrays}).tolist()
        slopes = mx.grad(lambda arrays: (function(**{**values, **arrays}) * mx.array(push)).sum())
        return {name: slope.tolist() for name, slope in slopes(arrays).items()}
