"""`reasoning-gym:<name>`: any generator of the package reasoning-gym, with its scorer.

`task.options` holds fields of the generator's configuration. `reasoning-gym:gsm_symbolic` asks
"… What is the combined total of kiwi and apple that John now has in the house? …", answer "288".
"""

import builtins
import inspect
import json
import os
import re
import sys
import types
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Final

from grpo_engine.config.declaration import Setting
from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError, MissingPackageError, nearest
from grpo_engine.tasks.answers import final_answer
from grpo_engine.tasks.base import Example, RewardSpec, Task, generated_task, user_message
from grpo_engine.tasks.by_text import Score, by_text
from grpo_engine.tasks.options import read_options

SYSTEM: Final = (
    "Think inside <think> and </think>, then give the final answer, and nothing else, inside "
    "<answer> and </answer>."
)
SIZE: Final = 100_000
# Generators that list all problems on construction, which takes long.
SIZES: Final = {"acre": 2_000, "word_ladder": 10_000}
# Generators that iterate over sets, so their problems differ between processes.
UNSTABLE: Final = frozenset(
    {
        "isomorphic_strings",
        "knight_swap",
        "list_functions",
        "polynomial_multiplication",
        "quantum_lock",
        "ransom_note",
    }
)
# A generator seeds problem i with seed + i; NumPy, which some use, needs seeds below 2**32.
HELD_OUT_SEED: Final = 1 << 30
REWARDS: Final = (RewardSpec(name="gym_score"), RewardSpec(name="format_all", weight=0.2))
LONGEST_ANSWER = 10_000


def names() -> list[str]:
    return sorted(_registry())


def build(config: TaskConfig) -> Task:
    _, _, name = config.name.partition(":")
    available = _registry()
    if name not in available:
        raise DataError(
            f"reasoning-gym has no generator {name!r}{nearest(name, available)}; "
            "`grpo-tui tasks list --gym` shows all"
        )
    read_options(config, options_of(config))
    options: dict[str, Any] = {"seed": 0, **config.options}
    size = config.train_size or SIZES.get(name, SIZE)
    spare = 8 * config.held_out_size + 64
    make = _maker(name, options, size)
    make_spare = _maker(name, options | {"seed": options["seed"] + HELD_OUT_SEED}, spare)
    make(0)  # An invalid value of an option fails here, before anything else is built.
    return generated_task(
        config,
        config.name,
        lambda index: make(index) if index < HELD_OUT_SEED else make_spare(index - HELD_OUT_SEED),
        [name, version("reasoning-gym"), json.dumps(options, sort_keys=True)],
        size=size,
        start=HELD_OUT_SEED,
        system_prompt=SYSTEM,
        description=(inspect.getdoc(available[name][0]) or name).splitlines()[0],
        default_rewards=REWARDS,
        accuracy="gym_score",
        notes=_notes(name),
    )


def options_of(config: TaskConfig) -> Mapping[str, Setting]:
    """The fields of the generator's configuration, which the generator checks."""
    settings = fields(_registry()[config.name.partition(":")[2]][1])
    return {
        field.name: Setting(
            help="Of the generator.",
            annotation=Any,
            default=None if field.default is MISSING else field.default,
        )
        for field in settings
        if field.name != "size"
    }


def _notes(name: str) -> tuple[str, ...]:
    """Notes for the user on a generator whose problems are not reproducible."""
    if name not in UNSTABLE or os.environ.get("PYTHONHASHSEED", "random") != "random":
        return ()
    return (
        f"reasoning-gym:{name} makes other problems in every process; set PYTHONHASHSEED=0 for a "
        "run that can be repeated and resumed exactly",
    )


def _registry() -> Mapping[str, Any]:
    try:
        with warnings.catch_warnings():
            # Hide compile-time warnings of its dependencies from the user.
            warnings.simplefilter("ignore")
            import reasoning_gym  # noqa: F401
            from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise MissingPackageError(
            f"this task needs the package reasoning-gym ({error}); `pip install 'grpo-tui[tasks]'`"
        ) from error
    registry: Mapping[str, Any] = DATASETS
    return registry


def _maker(name: str, options: Mapping[str, Any], size: int) -> Any:
    dataset = _dataset(name, json.dumps(dict(options), sort_keys=True), size)

    def make(index: int) -> Example:
        entry = dataset[index]
        columns = {
            "question": entry["question"],
            "answer": str(entry["answer"]),
            "gym": {"name": name, "options": dict(options), "size": size, "index": index},
            "metadata": json.loads(json.dumps(entry["metadata"], default=str, skipkeys=True)),
        }
        return Example(
            key=f"{name}-{options['seed']}-{index}",
            prompt=user_message(entry["question"]),
            target=str(entry["answer"]),
            columns=columns,
        )

    return make


@lru_cache(maxsize=64)
def _dataset(name: str, options: str, size: int) -> Any:
    _registry()
    from reasoning_gym import create_dataset

    chosen = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(options).items()}
    try:
        if name == "composite":
            from reasoning_gym.composite import DatasetSpec

            chosen["datasets"] = [DatasetSpec(**spec) for spec in chosen.get("datasets", ())]
        return create_dataset(name, size=size, **chosen)
    except (AssertionError, TypeError, ValueError) as error:
        raise DataError(
            f"task.options of reasoning-gym:{name}: {error or 'a value is out of its range'}",
            "task.options",
        ) from error


@lru_cache(maxsize=4096)
def _entry(name: str, options: str, size: int, index: int) -> Any:
    return _dataset(name, options, size)[index]


@by_text
def gym_score(
    text: str, gym: Mapping[str, Any], question: str, answer: str, metadata: Mapping[str, Any]
) -> Score:
    """Give what the generator's own scorer says of the answer, 0 to 1.

    The scorer gets the problem as the generator makes it. Where that depends on the process (a
    few generators walk through sets), it gets the columns instead.
    """
    options = json.dumps(dict(gym["options"]), sort_keys=True)
    dataset = _dataset(gym["name"], options, gym["size"])
    entry = _entry(gym["name"], options, gym["size"], gym["index"])
    if entry["question"] != question:
        entry = {"question": question, "answer": answer, "metadata": dict(metadata)}
    result = final_answer(text)[:LONGEST_ANSWER]
    if refused(dataset, result):
        return 0.0, "the answer names a Python function; this scorer would run it"
    reason = f"found {result[:60]!r}, expected {answer[:60]!r}"
    return float(dataset.score_answer(result, entry)), reason


_RUNNABLE = re.compile(
    r"__|\b(?:"
    + "|".join(
        name
        for name, value in vars(builtins).items()
        if isinstance(value, types.BuiltinFunctionType | type)
        and name not in ("abs", "divmod", "max", "min", "pow", "round", "sum", "float", "int")
        and not name.startswith("_")
        and not (isinstance(value, type) and issubclass(value, BaseException))
    )
    + r"|lambda|import)\s*\("
)


@lru_cache(maxsize=256)
def runs_text(module: str) -> bool:
    """Whether the generator's module runs an answer as Python (sympy's parser, eval, exec)."""
    source = inspect.getsource(sys.modules[module])
    return re.search(r"\b(?:parse_expr|sympify|eval|exec)\(", source) is not None


def refused(dataset: Any, answer: str) -> bool:
    """Whether an answer could call Python functions through such a scorer."""
    return runs_text(type(dataset).__module__) and _RUNNABLE.search(answer) is not None
