"""Named errors of the engine; each message names the value, the place and the remedy."""

import difflib
from collections.abc import Iterable

LONGEST = 200  # characters of a value in a message
PANIC = "PanicException"  # Rust libraries such as tokenizers raise it; no subclass of Exception


class EngineError(Exception):
    """Base class of the errors that the engine raises; `settings` names those that would fix it."""

    def __init__(self, message: str = "", *settings: str) -> None:
        super().__init__(message)
        self.settings = settings


class ConfigError(EngineError, ValueError):
    """A setting has an unusable value."""


class PresetNotFoundError(EngineError, LookupError):
    """No preset has this name."""


class RecipeError(ConfigError):
    """A setting of a recipe has a value that is illegal, not read, or excluded by another one."""

    @property
    def setting(self) -> str:
        """The name of the (first) setting; empty if the error is about the whole recipe."""
        return self.settings[0] if self.settings else ""


class ModelError(EngineError):
    """A model, tokenizer or adapter cannot be loaded, imported or written."""


class DataError(EngineError, ValueError):
    """A data set, or a row in it, cannot be used."""


class NotFetchedError(DataError, ModelError):
    """A model or data set of the hub is not in the cache of this machine."""


class RunError(EngineError):
    """A run ended with an error that the engine does not know."""


class RewardError(EngineError):
    """A reward function cannot be loaded, failed, or returned something other than scores."""


class BrokenEnvironmentError(EngineError):
    """An environment or a tool cannot be loaded, or fails each time."""


class OutsideError(EngineError, ValueError):
    """A name or a link leads out of the folder that it belongs in."""


class CheckpointError(EngineError):
    """A checkpoint is missing, damaged, or belongs to another configuration."""


class NotWrittenError(EngineError):
    """A checkpoint could not be written, for example because the disk is full."""


class MemoryLimitError(EngineError, MemoryError):
    """The run would need more memory than the machine has."""


class DeviceFaultError(EngineError):
    """A GPU failed, and a smaller step was not enough or not possible."""


class SelfCheckError(EngineError):
    """The self-check before the first step found a difference."""


class MissingPackageError(EngineError, ImportError):
    """An optional package that this task needs is not installed."""


class MathsError(EngineError, ValueError):
    """Arrays have shapes that do not match, or one that the recipe reads is missing."""


class NotFiniteError(EngineError, ArithmeticError):
    """Losses or gradients were not finite several times in a row."""


class RankLostError(EngineError):
    """A rank of a run on several machines has ended."""


def quoted(value: object) -> str:
    """A value in a message, as Python writes it; a long one is cut."""
    if isinstance(value, str):
        return repr(value) if len(value) <= LONGEST else _cut(repr(value[:LONGEST]), len(value))
    try:
        return shortened(repr(value))
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of thousands of digits"
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deep"


def shortened(text: str) -> str:
    """A text in a message; a long one is cut, and its length said."""
    return text if len(text) <= LONGEST else _cut(text[:LONGEST], len(text))


def _cut(text: str, length: int) -> str:
    return f"{text}… ({length:,} characters)"


def nearest(name: str, choices: Iterable[str], count: int = 3) -> str:
    """The choices closest to a wrong name, as the end of a sentence; empty if none is close."""
    if len(name) > LONGEST:
        return ""
    leaf, leaves = name.rpartition(".")[2], {item: item.rpartition(".")[2] for item in choices}
    if leaf in leaves.values() or "." in name:  # names of one section would all be alike
        unique = dict.fromkeys(leaves.values())
        close = [leaf] if leaf in unique else difflib.get_close_matches(leaf, unique, 3, cutoff=0.6)
        result = [item for match in close for item in leaves if leaves[item] == match]
    else:
        result = difflib.get_close_matches(name, leaves, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(result[:count])}?" if result else ""
