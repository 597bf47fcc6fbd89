"""Loads a model's tokenizer, which is tried in the sandbox first, with limits of time and memory.

Steps of `tokenizer.json` can double a text forty times, and on some files its library ends the
process. What passes is loaded in this process from then on.
"""

import hashlib
import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from platformdirs import user_cache_path

from grpo_engine.errors import PANIC, ModelError
from grpo_engine.platform.private import private_folder
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.sandbox.client import ServiceCall, call_once

SERVICE: Final = "grpo_engine.policy.tokenizer:Tokenizers"
CPU_S: Final = 20.0
WALL_S: Final = 600.0  # for a process that has to wait for a processor
MEMORY: Final = 2 << 30
FILES: Final = ("*.json", "*.py", "*.model", "*.tiktoken", "*.txt")
UNRELATED: Final = ("config.json", "generation_config.json", "model.safetensors.index.json")
CLASS: Final = ("model_type", "tokenizer_class", "auto_map")  # settings that choose its class
PIECE: Final = 1_000  # tokens of the vocabulary, or characters, in one text that is tried
PIECES: Final = 50  # of the vocabulary, evenly spread

_problems: dict[str, str] = {}


def load_tokenizer(folder: Path, *, trust: bool = False, end_ids: Any = None) -> Any:
    """mlx-lm's wrapper of the tokenizer in a folder; ModelError if it is beyond a limit."""
    from mlx_lm.utils import load_tokenizer

    try_tokenizer(folder, trust)
    return load_tokenizer(folder, {"trust_remote_code": trust}, eos_token_ids=end_ids)


def try_tokenizer(folder: Path, trust: bool) -> None:
    """Raise ModelError if a tokenizer is beyond a limit, or ends or panics in its process.

    One that fails in another way passes: loading it tells the error. What passed is remembered by
    the content of its files; models that come with the program are not tried.
    """
    if folder in EMBEDDED.values():
        return
    digest = _digest(folder)
    if digest not in _problems:
        cache = private_folder(user_cache_path("grpo-tui") / "tokenizers")
        passed = cache / digest if cache else None
        _problems[digest] = "" if passed and passed.exists() else _problem(folder, trust)
        if passed and not _problems[digest]:
            with suppress(OSError):
                passed.touch()
    if problem := _problems[digest]:
        files = (folder / "tokenizer.json", folder / "tokenizer.model", folder)
        file = next(filter(Path.exists, files))
        raise ModelError(
            f"model.path: the tokenizer {file} {problem}, tried in a process of its own; get the "
            "model again from where you trust it, or choose another one",
            "model.path",
        )


def _digest(folder: Path) -> str:
    """A digest of all that a tokenizer is made from, and of the library that makes it."""
    digest = hashlib.sha256(version("tokenizers").encode())
    for path in sorted({path for pattern in FILES for path in folder.glob(pattern)}):
        if path.name not in UNRELATED:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.name} {content}\n".encode(errors="surrogateescape"))
    with suppress(OSError, ValueError, AttributeError, RecursionError):
        settings = json.loads((folder / "config.json").read_bytes())
        digest.update(repr([settings.get(name) for name in CLASS]).encode())
    return digest.hexdigest()


def _problem(folder: Path, trust: bool) -> str:
    """What is wrong with a tokenizer, as the end of a sentence; empty if nothing is."""
    arguments = {"folder": str(folder), "trust": trust, "cpu_s": CPU_S}
    call = ServiceCall("load_and_use", arguments, WALL_S)
    failure = call_once(SERVICE, "tokenizer", call, memory=MEMORY).failure
    if failure is None:
        return ""
    cause, message = failure.cause, failure.message
    if cause == "timeout" or "SIGVTALRM" in message:
        return f"needs more than {CPU_S:g} s"
    if cause == "exception" and not message.startswith(PANIC):
        return ""
    return message if cause == "memory" else f"fails ({message[:200]})"


class Tokenizers:
    """Loads and uses tokenizers in the sandbox."""

    def __init__(self, _server: object) -> None:
        """Needs nothing of the process."""

    def load_and_use(self, folder: str, trust: bool, cpu_s: float) -> None:
        """Encode and decode short and long texts; the process ends if that takes too long."""
        from transformers import AutoTokenizer

        signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
        try:
            kind: Any = AutoTokenizer
            tokenizer = kind.from_pretrained(folder, trust_remote_code=trust)
            for text in _texts(tokenizer):
                with suppress(Exception):  # one text that it refuses does not excuse the others
                    tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _texts(tokenizer: Any) -> Iterator[str]:
    """Texts of every character of the Basic Multilingual Plane, and of the whole vocabulary."""
    yield "1 + 1 ="
    characters = [chr(code) for code in range(1, 1 << 16) if not 0xD800 <= code < 0xE000]
    for start in range(0, len(characters), PIECE):
        yield "".join(characters[start : start + PIECE])
    for word in ("a", " ", "0", "the quick brown fox "):
        yield word * (PIECE * 5 // len(word))
    for start in range(0, len(tokenizer), max(PIECE, len(tokenizer) // PIECES)):
        with suppress(Exception):
            yield tokenizer.decode([*range(start, min(start + PIECE, len(tokenizer)))])
