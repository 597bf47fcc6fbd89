"""The page of models is of the mlx-lm that is installed."""

import re
from importlib import metadata
from pathlib import Path

import pytest

from benchmarks.models import DATA, PAGE, architectures, page, written

ROOT = PAGE.parents[1]


def test_each_architecture_of_the_page_was_tried_with_the_installed_mlx_lm() -> None:
    text, rows = PAGE.read_text(), written()
    assert sorted(rows) == sorted(architectures())
    assert f"All {len(rows)} architectures of mlx-lm {metadata.version('mlx-lm')} " in text
    trained = sum(row["trains"] == "yes" for row in rows.values())
    assert f": {trained} train exactly." in text
    for name in ("README.md", "CHANGELOG.md"):
        words = " ".join((ROOT / name).read_text().split())
        assert re.search(rf"{trained} of mlx-lm's {len(rows)}\s+architectures", words)


def test_the_page_is_what_the_data_say() -> None:
    assert PAGE.read_text() == "\n".join(page(written().values())) + "\n"


def test_the_architectures_that_decode_by_kernels_are_those_that_are_updated_by_them() -> None:
    """As the page says of the word `kernels`."""
    for row in written().values():
        assert (row["decoding"] == "kernels") == (row["kernels"] == "yes")


def test_the_table_names_each_architecture_that_trains_once() -> None:
    table = "".join(line for line in PAGE.read_text().splitlines() if line.startswith("| "))
    names = re.findall(r"`([^`]+)`", table)
    assert sorted(names) == sorted(n for n, row in written().items() if row["trains"] == "yes")


def test_data_of_another_mlx_lm_give_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "models.csv"
    text = DATA.read_text()
    data.write_text(text.replace(f"\n{metadata.version('mlx-lm')},", "\n0.0.1,"))
    monkeypatch.setattr("benchmarks.models.DATA", data)
    assert written() == {}
