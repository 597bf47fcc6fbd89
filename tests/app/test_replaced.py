"""The list of replaced parts of other libraries, and what `doctor` says of later releases."""

import ctypes
import re
import sys
import tomllib
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from grpo_engine.platform import device
from grpo_tui.app.health.replaced import TESTED, check, verdict

ROOT = Path(__file__).parents[2]
REPLACED = tomllib.loads((ROOT / "app/health/replaced.toml").read_text(encoding="utf-8"))
ITEMS = [item for items in REPLACED.values() for item in items]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item["part"])
def test_every_part_its_file_and_its_test_exist(item: dict[str, str]) -> None:
    assert item.keys() == {"part", "file", "why", "test", "until"}
    module, _, name = item["part"].partition(":")
    if module.endswith(".so"):
        if sys.platform == "linux":
            assert hasattr(ctypes.CDLL(str(device.library())), name)
    else:
        pytest.importorskip(module.partition(".")[0])
        attrgetter(name)(import_module(module))
    assert (ROOT / item["file"]).is_file()
    assert (ROOT / item["test"]).is_file()
    assert REPLACED.keys() == TESTED.keys()


def test_every_file_that_changes_the_class_of_a_layer_is_listed() -> None:
    changing = {
        str(path.relative_to(ROOT))
        for folder in ("app", "experiments", "grpo_engine")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"\.__class__ = |^ +setattr\(owner", path.read_text(), re.MULTILINE)
    }
    assert changing <= {item["file"] for item in ITEMS}


def test_the_releases_are_those_of_the_constraints() -> None:
    pinned = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.M))
    assert {name: pinned[name] for name in TESTED} == TESTED


def test_a_later_release_is_a_warning_that_names_the_tested_one() -> None:
    result = verdict(TESTED | {"mlx-lm": "0.33.0", "textual": "8.2.8.dev3"})
    assert result.level == "warning"
    assert result.result == f"mlx-lm 0.33.0, tested with {TESTED['mlx-lm']}"
    assert f"mlx-lm=={TESTED['mlx-lm']}" in result.remedy
    assert verdict({"mlx": "0.9"}).level == check().level == "fine"
