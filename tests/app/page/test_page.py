"""The page of a run: what is in the file, what is left out, and that nothing in it can act."""

import hashlib
import json
import re
import zlib
from base64 import b64decode, b64encode
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from grpo_engine import events as ev
from grpo_tui import record as trainer
from grpo_tui.app.inspector.explain import arithmetic
from grpo_tui.app.inspector.stored import load_group, load_step
from grpo_tui.app.page.answers import Choice, spread
from grpo_tui.app.page.write import clean, page
from grpo_tui.experiments.errors import NothingStoredError
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.store import ExperimentStore
from tests.app.compared import refs_of, sweep_of_settings
from tests.app.stored import PINNED, STEPS, record, run_events

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\x1b[2J\x00 ]]>{{DATA}}"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    record(tmp_path / "s.db", name="calm-otter")
    return tmp_path / "s.db"


def page_of(path: Path, *refs: str, limit: int = 5_000_000, **choice: Any) -> str:
    with StoreReader(path) as reader:
        runs = [reader.resolve(ref) for ref in refs or ("@last",)]
        return page(reader, runs, Choice(**choice), limit=limit)


def data_of(html: str) -> Any:
    return json.loads(html.partition('id="data">')[2].partition("</script>")[0])


def unpacked(group: Any) -> Any:
    return json.loads(zlib.decompress(b64decode(group["data"])))


class Markup(HTMLParser):
    """The elements of a page, and the text of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.code: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.elements[-1] if self.elements else ("", {})
        if tag in self.code and "type" not in attributes and data.strip():
            self.code[tag].append(data)
            self.elements.append(("", {}))


def test_the_page_allows_its_own_code_alone_and_loads_nothing(store: Path) -> None:
    html = page_of(store)
    markup = Markup(html)
    policy = next(a["content"] for _, a in markup.elements if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    code = [*markup.code["script"], *markup.code["style"]]
    hashes = {
        f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in code
    }
    assert len(hashes) == 3
    assert set(re.findall(r"'sha256-[^']+'", policy)) == hashes
    for tag, attributes in markup.elements:
        assert not {"style", "srcset", "action"} & attributes.keys(), tag
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("href", "#")[:1] in ("#", "d")  # type: ignore[index]  # or data:
        assert "src" not in attributes


def test_the_page_has_the_verdict_the_problems_the_curves_and_the_answers(store: Path) -> None:
    html = page_of(store)
    assert "Held-out accuracy" in html
    assert "prompts give no signal" in html
    data = data_of(html)
    reward = next(chart for chart in data["charts"] if chart["key"] == "reward")
    assert reward["lines"][0]["x"] == list(range(1, STEPS + 1))
    with StoreReader(store) as reader:
        stored = reader.metric_series(1, "reward").values
        assert reward["lines"][0]["low"] == pytest.approx(stored, rel=1e-5)
        step = load_step(reader, 1, STEPS)
        completion = load_group(reader, step, step.groups[0]).completions[1]
    first = next(g for g in data["groups"] if (g["step"], g["index"]) == (STEPS, 1))
    shown = unpacked(first)["answers"][1]
    row = completion.row
    assert row is not None
    told = arithmetic(
        completion.losses[3],
        step.run.recipe,
        row.updates[-1],
        length=len(row.ids),
        max_length=step.run.max_length,
    )
    assert shown["facts"]["share"][3] == f"of the objective: {told}"
    assert "".join(shown["texts"]) == completion.rollout.text
    pinned = {g["index"] for g in data["groups"] if g["origin"] == "pinned"}
    assert len(pinned) == len(PINNED)
    assert {g["step"] for g in data["groups"] if g["origin"] == "pinned"} == {2, 4, 6}


def test_no_text_of_a_run_becomes_markup(tmp_path: Path) -> None:
    """The texts are everywhere that a model, a user's function or a task can write."""

    def planted() -> Any:
        for event in run_events(steps=2):
            if isinstance(event, ev.GroupScored):
                rollouts = tuple(
                    replace(
                        item,
                        text=HOSTILE * 2,
                        ends=(),
                        rewards=tuple(replace(r, reason=HOSTILE) for r in item.rewards),
                    )
                    for item in event.group.rollouts
                )
                group = replace(event.group, rollouts=rollouts, prompt_text=HOSTILE, target=HOSTILE)
                event = replace(event, group=group)
            yield event
        yield ev.AlertRaised(
            step=2, rule=HOSTILE, severity="error", explanation=HOSTILE, remedy=HOSTILE
        )

    path = tmp_path / "s.db"
    record(path, planted(), name=HOSTILE.replace("\x00", ""))
    html = page_of(path, "@last")
    markup = Markup(html)
    assert not any(tag == "img" for tag, _ in markup.elements)
    assert len(re.findall(r"(?i)</script", html)) == 3  # two scripts and the data
    assert not set(html) & {"\u202e", "\x1b", "\x00"}
    detail = unpacked(data_of(html)["groups"][0])
    assert "</script><img" in detail["answers"][0]["texts"][0]  # it is data, and written as text
    assert "\u202e" not in json.dumps(detail, ensure_ascii=False)


def test_what_was_measured_once_went_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with trainer.run("once", store=path) as run:
        run.step(1, metrics={"reward": 0.5})
        run.evaluation(1, [trainer.problem("1 + 1", samples=4, correct=3)])
    html = page_of(path)
    assert "<b>75%</b>" in html
    assert "Reward was .5 in the only step that has one." in html
    assert "→" not in html.partition('id="curves"')[0]


@pytest.mark.slow
def test_what_does_not_fit_is_left_out_and_said(store: Path) -> None:
    whole, small = page_of(store), page_of(store, limit=130_000)
    kept, all_of_them = len(data_of(small)["groups"]), len(data_of(whole)["groups"])
    assert 0 < kept < all_of_them
    assert len(small) <= 130_000
    trained = sum(group["origin"] == "train" for group in data_of(small)["groups"])
    assert f"{trained} of 8 prompts of the steps 1, 6, of 6 with answers" in small
    assert "No more fits into 0.13 MB" in small
    assert "pinned prompts at" not in whole
    everything = data_of(page_of(store, limit=0, everything=True))
    assert {g["step"] for g in everything["groups"]} == set(range(1, STEPS + 1))
    chosen = data_of(page_of(store, steps=[2]))["groups"]
    assert {g["step"] for g in chosen if g["origin"] == "train"} == {2}
    with pytest.raises(NothingStoredError, match=r"no answers at the steps 99; .* from 1 to 6"):
        page_of(store, steps=[99])


def test_redacted_has_numbers_and_no_prompt_or_answer(store: Path) -> None:
    html = page_of(store, redact=True)
    groups = data_of(html)["groups"]
    details = [unpacked(group) for group in groups]
    text = html + json.dumps(details)
    with StoreReader(store) as reader:
        stored = reader.groups(1)
    assert not [g.prompt_text for g in stored if g.prompt_text in text]
    assert not [r.text for g in stored for r in g.rollouts if r.text in text]
    assert details[0]["answers"][0]["heat"]["push"]
    assert details[0]["answers"][0]["facts"]["why"][0]


def with_canaries(number: int) -> Any:
    """A run in which every text that a prompt or an answer may be quoted in has a canary."""
    for event in run_events(steps=2):
        if isinstance(event, ev.GroupScored):
            span = ev.Span(start=0, length=1, kind="environment", turn=0, error="canary-error")
            span = replace(span, info={"canary-key": "canary-info"})
            rollouts = tuple(
                replace(
                    item,
                    text=f"canary-answer {number}",
                    ends=(),
                    spans=(span,),
                    rewards=tuple(replace(r, reason="canary-reason") for r in item.rewards),
                )
                for item in event.group.rollouts
            )
            group = replace(event.group, prompt_text="canary-prompt", target="canary-target")
            event = replace(event, group=replace(group, rollouts=rollouts))
        yield event
    for rule in ("reward_exception", "environment_error", "reward_no_score", "canary_rule"):
        yield ev.AlertRaised(
            step=2,
            rule=rule,
            severity="error",
            explanation="ValueError: could not read 'canary-answer'.",
            remedy="canary-remedy",
        )
    yield ev.NoteWritten(step=2, text="canary-log")
    yield ev.RunFailed(step=2, error="ValueError", message="canary-message", traceback="canary-tb")


@pytest.mark.slow
def test_redacted_quotes_nothing_of_prompts_and_answers_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    for number in (1, 2):
        task = {"name": "arithmetic", "system_prompt": f"canary-system {number}"}
        record(path, with_canaries(number), name=f"run-{number}", task=task | {"prefill": "canary"})
    with ExperimentStore(path) as made:
        for key in (1, 2):
            made.change(key, note="best was 'canary-answer'")
    for refs in (("run-1",), ("run-1", "run-2")):
        html = page_of(path, *refs, redact=True)
        details = [unpacked(group) for group in data_of(html)["groups"]]
        assert "canary" not in html + json.dumps(details)
        assert "The run failed" not in html
        assert html.count("failures") >= 3  # what it is about stays
    assert "text 2" in html
    everything = page_of(path, "run-1")
    for text in ("canary-answer", "canary-message", "canary-remedy", "canary-system", "best was"):
        assert text in everything


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/max/mine.py:brevity", "mine.py:brevity"),
        ("cannot read ~/x/y.jsonl, line 3", "cannot read y.jsonl, line 3"),
        (r"C:\Users\Max\a.txt", "a.txt"),
        ("http://node7.example:8080/v1", "v1"),
        ("eval/accuracy of </think>", "eval/accuracy of </think>"),
        ("7 / 8 GB and a/b", "7 / 8 GB and a/b"),
    ],
)
def test_folders_and_hosts_are_cut(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.slow
def test_several_runs_have_what_compare_says_and_one_curve_for_each_setting(tmp_path: Path) -> None:
    path = sweep_of_settings(tmp_path, betas=(0.04, 0.4), seeds=2, steps=4)
    html = page_of(path, *refs_of(path))
    assert "t test over seeds and problems" in html
    assert "algorithm.beta" in html
    data = data_of(html)
    assert len(data["runs"]) == 4
    assert data["lines"] == ["beta 0.04 (2 seeds)", "beta 0.4 (2 seeds)"]
    lines = data["charts"][0]["lines"]
    assert [line["line"] for line in lines] == [0, 1]
    with StoreReader(path) as reader:
        runs = [run.key for run in reader.runs("cfg.algorithm.beta=0.04")]
        last = [reader.metric_series(run, "eval/accuracy").values[-1] for run in runs]
    held_out = next(c for c in data["charts"] if c["key"] == "eval/accuracy")["lines"][0]
    assert held_out["y"][-1] == pytest.approx(sum(last) / 2, rel=1e-5)
    assert held_out["low"][-1] < held_out["y"][-1] < held_out["high"][-1]


def test_the_ends_come_first_and_then_the_middle_of_the_largest_gap() -> None:
    assert spread(range(0, 9)) == [0, 8, 4, 2, 6, 1, 3, 5, 7]
    assert spread([5]) == [5]
    assert spread([]) == []
