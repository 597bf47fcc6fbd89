"""Loads an OpenBLAS and makes MLX use it in place of the BLAS in its wheel."""

import ctypes
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from grpo_engine.cpu.relocations import BlasError, redirect
from grpo_engine.platform import device

PREFIXES: Final = ("", "scipy_")
"""Prefixes of function names in different builds."""
KERNELS: Final = {"x86_64": ("Haswell", "Nehalem"), "aarch64": ("NEOVERSEN1", "ARMV8")}
"""Conservative values of OPENBLAS_CORETYPE, tried in turn if the library's own choice fails."""
PRODUCT: Final = "cblas_sgemm"
"""MLX's product of float32 matrices; the others stay with the BLAS in its wheel."""


class OpenBlas:
    """A loaded library; MLX does not use it until `connect` is called."""

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
        prefixes = [prefix for prefix in PREFIXES if hasattr(self._library, prefix + PRODUCT)]
        if not prefixes or not hasattr(self._library, f"{prefixes[0]}openblas_get_config"):
            raise BlasError("is not OpenBLAS")
        self._prefix = prefixes[0]
        self.config = self._text("openblas_get_config")
        if "USE64BITINT" in self.config.split():
            raise BlasError("uses 64-bit integers, MLX 32-bit ones")
        self.kernel = self._text("openblas_get_corename")
        self.kernels: ctypes.CDLL | None = None
        self.sgemm = _address(self._function(PRODUCT))
        if kernels:
            try:
                self.kernels = ctypes.CDLL(kernels)
                # Products of many rows are passed on to the BLAS.
                self.kernels.set_blas(ctypes.c_void_p(self.sgemm))
                self.kernels.set_threads(threads)
                self.sgemm = _address(self.kernels.sgemm)
            except (OSError, AttributeError) as error:
                raise BlasError(f"cannot be used with {kernels}: {error}") from error

    def _function(self, name: str) -> "ctypes._NamedFuncPointer":
        return self._library[f"{self._prefix}{name}"]

    def _text(self, name: str) -> str:
        function = self._function(name)
        function.restype = ctypes.c_char_p
        return bytes(function()).decode(errors="replace")

    def set_threads(self, count: int) -> int:
        """Use `count` threads from the next product on; return how many it really uses."""
        if self.kernels is not None:  # its threads share the products of the library too
            self.kernels.set_threads(count)
            return count
        self._function("openblas_set_num_threads")(count)
        return int(self._function("openblas_get_num_threads")())

    def connect(self) -> None:
        """Make MLX use this library for products of float32 matrices in this process."""
        redirect(mlx_library(), PRODUCT, self.sgemm)


def _address(function: "ctypes._NamedFuncPointer") -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def mlx_library() -> ctypes.CDLL:
    """MLX's library: the loaded one, or the one that an import would load."""
    try:
        return ctypes.CDLL("libmlx.so", mode=os.RTLD_NOLOAD)
    except OSError:
        path = device.library()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BlasError(f"cannot be connected to MLX ({error})") from error


def bundled() -> str | None:
    """The library of `scipy-openblas32`; importing that package would load it unchecked."""
    spec = find_spec("scipy_openblas32")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    paths = (path for folder in folders for path in Path(folder).glob("lib/libscipy_openblas*.so"))
    return next(map(str, paths), None)


def installed() -> str | None:
    """The system's library, as its package installs it."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    folders = (
        f"{sys.prefix}/lib",
        f"/usr/lib/{multiarch}",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    )
    paths = (Path(folder) / "libopenblas.so.0" for folder in folders)
    return next((str(path) for path in paths if path.is_file()), None)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables within a block; a library reads them when it is loaded."""
    previous = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
