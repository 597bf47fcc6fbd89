"""The page of models is of the mlx-lm that is installed."""

import re
from importlib import metadata
from pathlib import Path

import pytest

from benchmarks.models import PAGE, architectures, written

ROOT = PAGE.parents[1]


def test_each_architecture_of_the_page_was_tried_with_the_installed_mlx_lm() -> None:
    text, rows = PAGE.read_text(), written()
    assert list(rows) == sorted(architectures())
    assert f"All {len(rows)} architectures of mlx-lm {metadata.version('mlx-lm')} " in text
    trained = sum("| yes" in row[:40] for row in rows.values())
    assert f": {trained} train exactly." in text
    for page in ("README.md", "CHANGELOG.md"):
        words = " ".join((ROOT / page).read_text().split())
        assert re.search(rf"{trained} of mlx-lm's {len(rows)}\s+architectures", words)


def test_a_page_of_another_mlx_lm_keeps_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "models.md"
    page.write_text(re.sub(r"mlx-lm \S+ as", "mlx-lm 0.0.1 as", PAGE.read_text()))
    monkeypatch.setattr("benchmarks.models.PAGE", page)
    assert written() == {}
