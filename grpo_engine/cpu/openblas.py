"""Loads an OpenBLAS and makes MLX use it in place of the BLAS in its wheel."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from grpo_engine.cpu import slots
from grpo_engine.cpu.library import Library
from grpo_engine.errors import EngineError
from grpo_engine.platform import device

PREFIXES: Final = ("", "scipy_")
"""Prefixes of function names in different builds."""
KERNELS: Final = {"x86_64": ("Haswell", "Nehalem"), "aarch64": ("NEOVERSEN1", "ARMV8")}
"""Conservative values of OPENBLAS_CORETYPE, tried in turn if the library's own choice fails."""


class BlasError(EngineError, OSError):
    """A library that MLX cannot use; the message completes a sentence that begins with "it"."""


class OpenBlas:
    """A loaded library; MLX does not use it until `serve` is called."""

    def __init__(self, path: str, *, threads: int, kernel: str = "", kernels: str = "") -> None:
        """Load the library; its threads start at once, so their number is set before.

        `kernels` is our compiled library, which then computes products of few rows.
        """
        variables = {"OPENBLAS_NUM_THREADS": "1" if kernels else str(threads)}
        if kernel:
            variables["OPENBLAS_CORETYPE"] = kernel
        try:
            with _environment(variables):
                self._library = ctypes.CDLL(path)
        except OSError as error:
            raise BlasError(f"cannot be loaded ({error})") from error
        self.path = path
        names = [prefix for prefix in PREFIXES if self._has(f"{prefix}cblas_sgemm")]
        if not names or not self._has(f"{names[0]}openblas_get_config"):
            raise BlasError("is not OpenBLAS")
        self._prefix = names[0]
        self.config = self._text("openblas_get_config")
        if "USE64BITINT" in self.config.split():
            raise BlasError("uses 64-bit integers, MLX 32-bit ones")
        self.kernel = self._text("openblas_get_corename")
        self.kernels: Library | None = None
        if kernels and (sgemm := self.address("cblas_sgemm")):
            try:
                self.kernels = Library(kernels, sgemm, threads)
            except (OSError, AttributeError) as error:
                raise BlasError(f"cannot be used with {kernels}: {error}") from error

    def _has(self, name: str) -> bool:
        return hasattr(self._library, name)

    def _function(self, name: str) -> "ctypes._NamedFuncPointer":
        return self._library[f"{self._prefix}{name}"]

    def _text(self, name: str) -> str:
        function = self._function(name)
        function.restype = ctypes.c_char_p
        return bytes(function()).decode(errors="replace")

    @property
    def max_threads(self) -> int:
        """The maximum number of threads of this build; 0 if unknown."""
        words = dict(word.split("=", 1) for word in self.config.split() if "=" in word)
        return int(words.get("MAX_THREADS", "0"))

    def set_threads(self, count: int) -> int:
        """Use `count` threads from the next product on; return how many it really uses."""
        if self.kernels is not None:  # its threads share the products of the library too
            self.kernels.set_threads(count)
            return count
        self._function("openblas_set_num_threads")(count)
        return int(self._function("openblas_get_num_threads")())

    def address(self, name: str) -> int | None:
        if self.kernels is not None and name == "cblas_sgemm":
            return self.kernels.sgemm
        name = f"{self._prefix}{name}"
        if not self._has(name):
            return None
        return ctypes.cast(self._library[name], ctypes.c_void_p).value

    def serve(self) -> None:
        """Make MLX use this library for products and decompositions in this process.

        If MLX's library has no slots to fill, a library with plain names is made visible to the
        whole process, where such a build of MLX looks first.
        """
        try:
            slots.redirect(mlx_library(), self.address)
        except slots.SlotsError as error:
            if self._prefix:
                raise BlasError(f"does not fit this build of MLX ({error})") from error
            ctypes.CDLL(self.path, mode=ctypes.RTLD_GLOBAL)


def mlx_library() -> ctypes.CDLL:
    """MLX's library: the loaded one, or the one that an import would load."""
    try:
        return ctypes.CDLL("libmlx.so", mode=os.RTLD_NOLOAD)
    except OSError:
        path = device.library()
    if path is None:
        raise slots.SlotsError("libmlx.so is not found")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise slots.SlotsError(str(error)) from error


def bundled() -> str | None:
    """The library of `scipy-openblas32`; importing that package would load it unchecked."""
    from importlib.util import find_spec

    spec = find_spec("scipy_openblas32")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(place).glob("lib/libscipy_openblas*.so")):
            return str(file)
    return None


def installed() -> str | None:
    """The system's library, as its package installs it."""
    import sys
    import sysconfig

    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    folders = (f"{sys.prefix}/lib", f"/usr/lib/{multiarch}", "/usr/lib64", "/usr/lib",
               "/usr/local/lib")  # fmt: skip
    paths = (Path(folder) / "libopenblas.so.0" for folder in folders)
    return next((str(path) for path in paths if path.is_file()), None)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables within a block; a library reads them when it is loaded."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
