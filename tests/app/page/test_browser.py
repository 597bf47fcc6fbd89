"""The page in a browser: it loads nothing, draws, answers keys, and no text in it acts.

NOT RUN where there is no Chromium; axe-core judges pages after `npm install --no-save axe-core`.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_tui import record as trainer
from grpo_tui.app.cli.main import main
from tests.app import dialogues
from tests.app.compared import refs_of, sweep_of_settings
from tests.app.page.browser import PROGRAM, Browser, browser
from tests.app.stored import record, run_events
from tests.record.test_trl_steps import run_of_trl

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PROGRAM, reason="NOT RUN: there is no Chromium (apt install chromium)"),
]
AXE = Path("node_modules/axe-core/axe.min.js")
SMALL = ["rollout.prompts=4", "evaluation.problems=8", "evaluation.samples=0"]
OPEN_ALL = """(async () => {
  for (const group of document.querySelectorAll('#groups button')) {
    group.click();
    await new Promise((done) => setTimeout(done, 20));
  }
})()"""
ALERT = "window.hit = (window.hit || 0) + 1"
HOSTILE = [
    template.replace("HIT", code)
    for code in (ALERT, "alert(1)")
    for template in (
        "<script>HIT</script>",
        "</script><script>HIT</script>",
        "<img src=x onerror='HIT'>",
        "<svg onload='HIT'>",
        "<iframe srcdoc='<script>HIT</script>'></iframe>",
        "<a href='javascript:HIT'>x</a>",
        "</title><script>HIT</script>",
        "</style><script>HIT</script>",
        "<!--",
        "--><script>HIT</script>",
        "'><script>HIT</script>",
        '"onmouseover="HIT',
        "]]><script>HIT</script>",
        "{{DATA}}HIT",
        "<style>*{display:none}</style>",
        "<base href='//evil.example/'>",
        "<meta http-equiv=refresh content=0;url=//evil>",
        "\u202eHIT\u2066",
        "W" * 3000,
        "\u0301" * 500 + "\x00\x1b[2JHIT\ud800",
    )
]


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as started:
        yield started


def report(path: Path, *refs: str) -> Path:
    out = path.with_suffix(".html")
    assert main(["report", *refs, "--db", str(path), "--out", str(out)]) == 0
    return out


def trained(folder: Path, *words: str) -> Path:
    """A run of two steps by the engine."""
    path = folder / "s.db"
    sets = [word for setting in (*SMALL, *words) for word in ("--set", setting)]
    assert main(["train", "--preset", "starter", "--steps", "2", "--db", str(path), *sets]) == 0
    return report(path, "@last")


def written(folder: Path, kind: str) -> Path:
    """The page of a run of a kind."""
    if kind == "sft":
        return trained(folder, "algorithm.recipe=sft")
    if kind == "distill":
        return trained(folder, "algorithm.recipe=distill", "teacher.path=starter")
    if kind == "TRL":
        return report(run_of_trl(folder / "s.db"), "@last")
    if kind == "another trainer":  # no token numbers, no evaluations
        with trainer.run("theirs", trainer="loop", store=folder / "s.db", steps=3) as run:
            for step in (1, 2, 3):
                answers = [trainer.rollout(text, rewards={"right": text == "4"}) for text in "45"]
                groups = [trainer.group("2 + 2 =", answers), trainer.group("no answers", [])]
                run.step(step, groups, metrics={"loss": 0.1})
        return report(folder / "s.db", "@last")
    if kind == "sweep":
        path = sweep_of_settings(folder, betas=(0.04, 0.4), seeds=2, steps=4)
        return report(path, *refs_of(path))
    events = dialogues.run_events() if kind == "dialogue" else run_events(steps=24)
    record(folder / "s.db", events, name=kind)
    return report(folder / "s.db", "@last")


@pytest.mark.parametrize(
    "kind", ["grpo", "dialogue", "sft", "distill", "sweep", "TRL", "another trainer"]
)
def test_a_page_of_each_kind_draws_itself_from_its_file_alone(
    tab: Browser, tmp_path: Path, kind: str
) -> None:
    path = written(tmp_path, kind)
    for width, dark in ((1280, False), (360, True)):
        tab.open(path, width, dark=dark)
        tab.wait_for("document.querySelectorAll('.tokens span').length > 0")
        assert tab.run("document.querySelectorAll('figure canvas').length") > 0
        tab.run(OPEN_ALL)
        assert tab.run("document.documentElement.scrollWidth") <= width
        assert (tab.errors, tab.requests) == ([], [path.as_uri()])
        if AXE.exists():
            tab.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            tab.run(AXE.read_text(encoding="utf-8") + ";1")
            found = tab.run("axe.run().then((r) => r.violations.map((v) => [v.id, v.impact]))")
            assert [name for name, impact in found if impact in ("serious", "critical")] == []


def test_curves_answer_the_mouse_and_the_keyboard(tab: Browser, tmp_path: Path) -> None:
    tab.open(written(tmp_path, "grpo"))
    tab.wait_for("document.querySelectorAll('figure canvas').length > 3")
    x, y, wide = tab.run(
        "(() => { const r = document.querySelector('.u-over').getBoundingClientRect();"
        " return [r.x, r.y, r.width]; })()"
    )
    step = "document.querySelector('.u-legend .u-value').textContent"
    assert tab.run(step) == "24"
    tab.mouse("mouseMoved", x + wide / 2, y + 50)
    tab.wait_for(f"Math.abs({step} - 12.5) < 2")
    # the other charts show the same step
    values = "[...document.querySelectorAll('figure .u-legend tr:first-child .u-value')]"
    tab.wait_for(f"new Set({values}.slice(1, 4).map((v) => v.textContent)).size < 3")
    tab.mouse("mouseMoved", x + wide / 4, y + 50)
    tab.mouse("mousePressed", x + wide / 4, y + 50)
    tab.mouse("mouseMoved", x + wide / 2, y + 50)
    tab.mouse("mouseReleased", x + wide / 2, y + 50)
    tab.mouse("mouseMoved", x + wide - 1, y + 50)
    tab.wait_for(f"{step} < 15")  # the right end is where the drag ended
    tab.run("document.querySelector('figure').focus()")
    tab.press("0", "End")
    tab.wait_for(f"{step} === '24'")
    tab.press("ArrowLeft", "ArrowLeft")
    tab.wait_for(f"{step} === '22'")
    assert tab.errors == []


def test_answers_are_read_by_keyboard_and_found_by_text(tab: Browser, tmp_path: Path) -> None:
    tab.open(written(tmp_path, "grpo"))
    tab.wait_for("document.querySelectorAll('.tokens span').length > 0")
    facts = "document.getElementById('facts').textContent"
    for _ in range(80):
        tab.press("Tab")
        if tab.run("document.activeElement.className") == "tokens":
            break
    else:
        raise AssertionError("the tab key does not reach the answer")
    first = tab.run(facts)
    assert "1 of" in first
    assert "of the objective: " in first
    tab.press("ArrowRight")
    assert "2 of" in tab.run(facts)
    tab.press("ArrowDown")
    assert tab.run("document.querySelector('[aria-selected=true]').textContent")[:2] == "b "
    assert tab.run("document.activeElement.className") == "tokens"
    tab.run(
        "(() => { const s = document.getElementById('search'); s.value = 'Are both numbers';"
        " s.dispatchEvent(new Event('input')); })()"
    )
    tab.wait_for("document.getElementById('hits').textContent.includes(' prompts')")
    buttons = "document.querySelectorAll('#groups button')"
    count = tab.run(f"{buttons}.length")
    assert count > 1
    for index in range(count):  # each opens the answer that has the text
        tab.run(f"{buttons}[{index}].click()")
        tab.wait_for(f"{buttons}[{index}].getAttribute('aria-current') === 'true'")
        assert "are both numbers" in tab.run("document.querySelector('.tokens').textContent")
    assert tab.errors == []


def hostile_events() -> Iterator[ev.Event]:
    """A run with a hostile text in every place for texts."""
    draw = random.Random(0)

    def text() -> str:
        return " ".join(draw.sample(HOSTILE, 4))

    for event in run_events(steps=4):
        if isinstance(event, ev.GroupScored):
            rollouts = tuple(
                replace(
                    item,
                    text=text(),
                    ends=(),
                    rewards=tuple(replace(r, reason=text()) for r in item.rewards),
                )
                for item in event.group.rollouts
            )
            group = replace(event.group, rollouts=rollouts, prompt_text=text(), target=text())
            event = replace(event, group=group)
        if isinstance(event, ev.StepFinished):
            named = {f"rewards/{one}/mean": 0.5 for one in HOSTILE[:20]}
            event = replace(event, metrics={**event.metrics, **named})
        yield event
    for index, one in enumerate(HOSTILE):
        yield ev.AlertRaised(
            step=4, rule=f"rule {index} {one[:200]}", severity="error", explanation=one, remedy=one
        )


def test_forty_hostile_texts_in_every_field_do_nothing(tab: Browser, tmp_path: Path) -> None:
    assert len(HOSTILE) == 40
    sections: dict[str, Any] = {"task": {"name": "arithmetic", "system_prompt": HOSTILE[1]}}
    path = tmp_path / "s.db"
    record(path, hostile_events(), name=HOSTILE[2][:400], **sections)
    record(path, hostile_events(), name="W" * 80 + HOSTILE[1], seed=1, **sections)
    for page in (report(path, "@last"), report(path, *refs_of(path))):
        for width in (1280, 360):
            tab.open(page, width)
            tab.wait_for("document.querySelectorAll('.tokens span').length > 0")
            tab.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            for kind in ("img", "svg", "iframe", "object", "base", "main a", "script[src]"):
                assert tab.run(f"document.querySelectorAll('{kind}').length") == 0, kind
            assert tab.run("document.querySelectorAll('script').length") == 3
            assert tab.run("window.hit") is None
            assert tab.run("document.documentElement.scrollWidth") <= width
            assert tab.run("getComputedStyle(document.querySelector('h1')).display") == "block"
            assert (tab.errors, tab.requests) == ([], [page.as_uri()])
