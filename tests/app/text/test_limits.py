"""What is said of a metric beside its limit is what the alert behind the limit finds."""

import pytest

from grpo_tui.app.text.limits import LIMITS, judged
from tests.engine.alerts.test_alerts import fold, healthy


def word(key: str, values: list[float], **alerts: float) -> str:
    ((word, _),) = judged(key, values, {"alerts": alerts}, [])
    return word


@pytest.mark.parametrize("key", LIMITS)
def test_a_value_is_high_where_its_alert_is_raised_and_fine_elsewhere(key: str) -> None:
    limit, bound = LIMITS[key], LIMITS[key].value({})
    for count in range(limit.steps + 1):
        numbers = [healthy(step) for step in range(1, 31)]
        numbers = [
            row | {key: 2 * bound} if i >= 30 - count else row for i, row in enumerate(numbers)
        ]
        raised = limit.rule in {alert.rule for alert in fold(numbers)}
        values = [row[key] for row in numbers[-20:]]
        assert word(key, values) == ("high" if raised else "fine"), count
    assert raised


def test_the_verdict_is_by_the_limit_of_the_run_and_says_what_it_compares() -> None:
    ((word, text),) = judged("kl", [0.3, 0.04, 0.05, 0.06, 0.07, 0.5], {}, [])
    assert word == "fine"
    assert text == "the median of the last 5 steps, .06, is within the limit of .1 (alerts.kl)."
    ((word, text),) = judged("kl", [0.06] * 5, {"alerts": {"kl": 0.05}}, [])
    assert word == "high"
    assert "beyond the limit of .05 (alerts.kl); no alert: five times" in text
    ((word, text),) = judged("kl", [0.06] * 5, {"alerts": {"kl": 0.05}}, ["kl_above_limit"])
    assert text.endswith("(alerts.kl); see the alert.")
    assert dict(judged("kl", [], {}, [])) == {
        "limit": ".1 (alerts.kl): the median of 5 steps is compared with it."
    }
    assert dict(judged("kl", [0.01, 0.05, 0.02], {}, [])) == {
        "limit": ".1 (alerts.kl): the median of 5 steps is compared with it; so far .05 at most."
    }
    assert list(judged("entropy", [1.0] * 9, {}, [])) == []
