"""The documentation pages: link targets exist, and pictures match the script's output."""

import re
from pathlib import Path

import pytest

from docs import screens
from grpo_engine.alerts.rules import RULES
from grpo_engine.config.parse import settings
from grpo_engine.config.settings import AlertsConfig
from grpo_engine.metrics import METRICS
from grpo_tui.app.tui.dialogs.help.topics import ALERTS, THRESHOLDS, metric_part, setting_part

ROOT = Path(__file__).parents[3]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/*.md")),
)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_points_to_is_there(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


def test_every_picture_is_shown_and_made_by_the_script() -> None:
    pages = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    shown = set(re.findall(r"images/([\w-]+)\.svg", pages))
    assert shown == {*screens.SHOTS, "replay", "results-starter", "two-trainers"}
    assert {path.stem for path in screens.IMAGES.iterdir()} == shown


def test_every_metric_alert_and_setting_is_explained() -> None:
    for name in METRICS:
        (_, text), *_ = metric_part(name).paragraphs
        assert len(re.findall(r"[.!?](?:\s|$)", text)) >= 2, name
    for path in settings():
        (_, text), *_ = setting_part(path).paragraphs
        assert len(text) > 4, path
        assert text.strip().endswith("."), path
    assert set(RULES) <= set(ALERTS)
    assert set(THRESHOLDS.values()) == set(AlertsConfig.model_fields)
