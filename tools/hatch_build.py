"""What pyproject.toml cannot say about the wheel: folders, and compiled C; hatchling loads it."""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = {name: f"grpo_tui/{name}" for name in ("app", "experiments")}
KERNELS = "grpo_engine/cpu"
SOURCE = "passes.c"  # it includes the others
VARIANTS = {"avx2": ("-mavx2", "-mfma"), "avx512": ("-mavx512f", "-mfma")}
FLAGS = ("-O3", "-shared", "-fPIC", "-pthread", "-Wl,-s")
COMPILERS = ("cc", "gcc", "clang")


class Hook(BuildHookInterface):  # type: ignore[misc]  # hatchling is only there during a build
    """Compiles the kernels, and puts the folders under the names that they are imported by."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """An editable install imports through links, and finds the kernels beside their source."""
        folder = Path(self.root) / KERNELS
        if version == "editable":
            for old in folder.glob("kernels-*.so"):
                old.unlink()
            self.compile(folder)
            return
        build_data["force_include"] |= FOLDERS
        self.output = tempfile.mkdtemp()
        if libraries := self.compile(Path(self.output)):
            build_data["force_include"] |= {
                str(path): f"{KERNELS}/{path.name}" for path in libraries
            }
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag(libraries)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiled files, which are in the wheel now."""
        del build_data, artifact_path
        if version != "editable":
            shutil.rmtree(self.output)

    def compile(self, output: Path) -> list[Path]:
        """The libraries for this machine; none, with a warning, where they cannot be compiled."""
        if sys.platform != "linux" or platform.machine() != "x86_64":
            return []
        tool = compiler()
        if not tool:
            self.app.display_warning("No C compiler: installed without kernels for processors.")
            return []
        sources = Path(self.root) / KERNELS
        digest = source_hash(sources)
        try:
            with tempfile.TemporaryDirectory(dir=output) as draft:
                for name, flags in VARIANTS.items():
                    subprocess.run(
                        [
                            *tool,
                            *FLAGS,
                            *flags,
                            f'-DSOURCE_HASH="{digest}"',
                            "-o",
                            f"{draft}/kernels-{name}.so",
                            str(sources / SOURCE),
                        ],
                        stdin=subprocess.DEVNULL,
                        capture_output=True,
                        text=True,
                        check=True,
                    )
                return [path.replace(output / path.name) for path in sorted(Path(draft).iterdir())]
        except (OSError, subprocess.SubprocessError) as error:
            lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
            self.app.display_warning(f"Installed without kernels for processors: {lines[0]}")
            return []


def compiler() -> list[str]:
    """The command in $CC, or the first compiler there is."""
    if chosen := shlex.split(os.environ.get("CC", "")):
        return chosen
    return next(([path] for name in COMPILERS if (path := shutil.which(name))), [])


def source_hash(folder: Path) -> str:
    """As `grpo_engine.cpu.library.source_hash`."""
    return sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.c")))).hexdigest()


def platform_tag(libraries: list[Path]) -> str:
    """The tag of the oldest glibc that has all symbols that the libraries use."""
    pattern = re.compile(rb"GLIBC_(\d+)\.(\d+)")
    versions = [pair for path in libraries for pair in pattern.findall(path.read_bytes())]
    if not versions:  # another C library
        return f"linux_{platform.machine()}"
    major, minor = max((int(major), int(minor)) for major, minor in versions)
    return f"manylinux_{major}_{minor}_{platform.machine()}"
