"""The documentation pages: link targets exist, and pictures match the script's output."""

import re
from pathlib import Path

import pytest

from docs import picture, screens
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
    assert shown == {*screens.SHOTS, "replay"}
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


def test_a_moving_picture_draws_a_row_once_for_as_long_as_it_stays() -> None:
    row = picture.Row
    still, one, two = row([("same", None)]), row([("one", None)]), row([("two", None)])
    text = screens.moving([[still, one], [still, two], [still, two]], (4, 2), "#000000", each=1.0)
    # three frames and six repeats of the last: one unchanged row covers all nine of them
    assert re.findall(r'<g class="(f[\d-]+)"', text) == ["f0-1", "f0-9", "f1-9"]
    assert text.count(">same<") == text.count(">two<") == 1
    assert "@keyframes f1-9{0%{visibility:hidden}11.111%{visibility:visible}}" in text
    # it begins at second 3 of 9, in the last frame, which is also what shows without motion
    assert ".f1-9{visibility:visible;animation:f1-9 9.00s step-end -3.00s infinite}" in text
    assert ".f0-1{visibility:hidden;animation:f0-1 9.00s step-end -3.00s infinite}" in text
