"""The build compiles our C for both instruction sets, or does without, and tags the wheel so."""

import re
import runpy
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from grpo_engine.cpu import library

ROOT = Path(__file__).resolve().parents[1]


class Interface:
    def __init__(self, root: Path) -> None:
        self.root, self.warnings = str(root), list[str]()
        self.app = SimpleNamespace(display_warning=self.warnings.append)


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names in the build hook, and the hook itself for a copy of the C files."""
    module: Any = ModuleType("hatchling.builders.hooks.plugin.interface")
    module.BuildHookInterface = Interface
    monkeypatch.setitem(sys.modules, module.__name__, module)
    shutil.copytree(
        library.FOLDER, tmp_path / "grpo_engine/cpu", ignore=shutil.ignore_patterns("*.so", "*.py")
    )
    names = runpy.run_path(str(ROOT / "tools/hatch_build.py"))
    return {**names, "hook": names["Hook"](tmp_path)}


def test_build_and_package_agree_on_the_variants_and_the_hash(build: dict[str, Any]) -> None:
    assert set(build["VARIANTS"]) == set(library.VARIANTS)
    assert build["source_hash"](library.FOLDER) == library.source_hash()


@pytest.mark.slow
@pytest.mark.skipif(not library.available().path, reason="nothing is compiled here")
def test_a_wheel_with_kernels_is_for_this_platform_and_any_python(build: dict[str, Any]) -> None:
    data: dict[str, Any] = {"force_include": {}}
    build["hook"].initialize("standard", data)
    assert {"grpo_engine/cpu/kernels-avx2.so", "grpo_engine/cpu/kernels-avx512.so"} <= set(
        data["force_include"].values()
    )
    assert re.fullmatch(r"py3-none-manylinux_2_\d+_x86_64", data["tag"])
    assert build["hook"].warnings == []
    build["hook"].finalize("standard", data, "")
    assert not Path(build["hook"].output).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="compiled on Linux only")
@pytest.mark.parametrize("change", [{"CC": "false"}, {"CC": "/none/cc"}, {"CC": "", "PATH": ""}])
def test_without_a_compiler_that_works_the_wheel_is_pure_and_a_line_says_so(
    build: dict[str, Any], monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    data: dict[str, Any] = {"force_include": {}}
    build["hook"].initialize("standard", data)
    assert set(data) == {"force_include"}
    assert not any(name.endswith(".so") for name in data["force_include"].values())
    assert len(build["hook"].warnings) == 1
    build["hook"].finalize("standard", data, "")


@pytest.mark.skipif(sys.platform != "linux", reason="compiled on Linux only")
def test_an_editable_install_without_a_compiler_leaves_no_old_library(
    build: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "grpo_engine/cpu/kernels-avx2.so"
    old.write_text("old")
    monkeypatch.setenv("CC", "false")
    build["hook"].initialize("editable", {"force_include": {}})
    assert not old.exists()
