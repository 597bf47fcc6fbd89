"""Replies on disk by a hash, in a folder that only this user can enter."""

import os
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path

from grpo_engine.platform.private import HASH_BYTES, is_intact, private_folder, write


class Cache:
    """At most `size` entries; the oldest go first. Without a usable folder there are none."""

    def __init__(self, name: str, size: int) -> None:
        folder = private_folder(user_cache_path("grpo-tui") / name) if size else None
        self._size, self._folder = size, folder or Path(os.devnull)

    def read(self, key: str) -> str | None:
        with suppress(OSError):  # pruned by another run
            if is_intact(path := self._folder / key):
                return path.read_bytes()[:-HASH_BYTES].decode()
        return None

    def write(self, key: str, text: str) -> None:
        """Keep a text; a full disk is no error."""
        with suppress(OSError):
            write(self._folder / key, text.encode())

    def prune(self) -> None:
        """Remove the oldest entries beyond the size."""
        with suppress(OSError):
            files = [*self._folder.iterdir()]
            if len(files) > self._size:
                files.sort(key=lambda file: file.stat().st_mtime_ns)
                for file in files[: -self._size]:
                    file.unlink(missing_ok=True)
