"""The answers of a page: groups as Rollouts shows them, packed until the page is full."""

import json
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from grpo_engine.frozen import frozen
from grpo_tui.app.inspector.dialogue import messages
from grpo_tui.app.inspector.explain import loss_texts, probability
from grpo_tui.app.inspector.groups import balance, letter, score, verdicts
from grpo_tui.app.inspector.layout import EMPTY_SIGN
from grpo_tui.app.inspector.measures import HEAT_MODES
from grpo_tui.app.inspector.stored import (
    GroupDetail,
    GroupList,
    RolloutTokens,
    RunInfo,
    load_group,
    load_step,
    nearest_step,
    run_info,
    shades_of,
)
from grpo_tui.app.text.numbers import short, signed
from grpo_tui.app.text.prompt_text import last_question, question
from grpo_tui.app.text.safe_text import clip, safe
from grpo_tui.experiments.errors import NothingStoredError
from grpo_tui.experiments.values import GroupView, RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

PROMPT = 90  # cells of a prompt in a list
BEST_BY = ("eval/accuracy", "eval/greedy/accuracy", "reward")
LEVELS = 8  # of heat, to each side of 0
Clean = Callable[[str], str]


@frozen
class Choice:
    """Which answers a page has: of some steps or of all, and whether it shows texts."""

    steps: Sequence[int] = ()
    everything: bool = False
    redact: bool = False


@frozen
class Candidate:
    """A group that is packed if there is room."""

    run: int
    step: GroupList
    group: GroupView
    note: str


def candidates(
    reader: "StoreReader", runs: Sequence[RunSummary], choice: Choice
) -> Iterator[Candidate]:
    """The groups of the chosen steps and the pinned prompts, of each run in turn."""
    by_run = [_of_run(reader, index, run, choice) for index, run in enumerate(runs)]
    return _in_turn(by_run)


def _in_turn(parts: Sequence[Iterator[Candidate]]) -> Iterator[Candidate]:
    return (item for items in zip_longest(*parts) for item in items if item is not None)


def _of_run(
    reader: "StoreReader", index: int, run: RunSummary, choice: Choice
) -> Iterator[Candidate]:
    info = run_info(reader, run.key)

    def of_step(step: int, origin: Any, note: str = "") -> Iterator[Candidate]:
        loaded = load_step(reader, info, step, origin)
        return (
            Candidate(run=index, step=loaded, group=group, note=note) for group in loaded.groups
        )

    trained = [of_step(step, "train", note) for step, note in steps_of(reader, run, choice).items()]
    pinned = chain.from_iterable(
        of_step(step, "pinned") for step in spread(reader.group_steps(run.key, "pinned"))
    )
    return _in_turn([_in_turn(trained), pinned])


def steps_of(reader: "StoreReader", run: RunSummary, choice: Choice) -> dict[int, str]:
    """The steps whose answers are shown, with what is special about them."""
    steps = reader.group_steps(run.key)
    if choice.everything or not steps:
        return dict.fromkeys(steps, "")
    if choice.steps:
        chosen = {step: "" for step in choice.steps if step in steps}
        if not chosen:
            raise NothingStoredError(
                f"{run.title} has no answers at the steps {', '.join(map(str, choice.steps))}; it "
                f"has {len(steps)} steps with answers from {steps[0]} to {steps[-1]}"
            )
        return chosen
    metrics = reader.run(run.key).summary.metrics
    best = next((metrics[key] for key in BEST_BY if key in metrics), None)
    notes = {steps[0]: "first"}
    if best is not None and best.best_step is not None:
        notes[nearest_step(steps, best.best_step)] = f"best {best.key}"
    return dict(sorted((notes | {steps[-1]: "last"}).items()))


def spread(steps: Sequence[int]) -> list[int]:
    """All steps, the ends first and then those in the middle of the largest gaps."""
    order, gaps = list(dict.fromkeys((*steps[:1], *steps[-1:]))), [(0, len(steps) - 1)]
    for low, high in gaps:  # grows while it is walked
        middle = (low + high) // 2
        if low < middle < high:
            order.append(steps[middle])
            gaps += [(low, middle), (middle, high)]
    return order


# -- one group ----------------------------------------------------------------------------------


def listed(item: Candidate, choice: Choice) -> dict[str, Any]:
    """A group in the page's list."""
    group = item.group
    prompt = "" if choice.redact else clip(last_question(group.prompt_text), PROMPT)
    return {
        "run": item.run,
        "step": group.step,
        "note": item.note,
        "origin": group.origin,
        "index": group.index + 1,
        "prompt": prompt,
        "mean": short(group.reward_mean),
        "same": bool(group.no_signal) or group.reward_std == 0,
    }


def packed(reader: "StoreReader", item: Candidate, choice: Choice, clean: Clean) -> str:
    """A group's answers by token, compressed."""
    detail = load_group(reader, item.step, item.group, history=False)
    group = item.group
    shades = {mode: shades_of(detail, mode) for mode in HEAT_MODES}
    content = {
        "prompt": "" if choice.redact else safe(question(group.prompt_text), "\n"),
        "target": "" if choice.redact else safe(group.target, "\n"),
        "missing": safe(detail.missing, " "),
        "balance": safe(balance(group), " "),
        "answers": [
            _answer(completion, item.step.run, detail, choice, clean)
            | {"heat": {mode: _levels(rows[i]) for mode, rows in shades.items() if rows[i]}}
            for i, completion in enumerate(detail.completions)
        ],
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return b64encode(zlib.compress(text.encode("utf-8", "replace"), 9)).decode("ascii")


def _levels(shades: Sequence[float | None]) -> list[int]:
    """The heat of tokens in steps; one that is not 0 is seen."""
    return [
        0 if not shade else round(shade * LEVELS) or (1 if shade > 0 else -1) for shade in shades
    ]


def _answer(
    completion: RolloutTokens, run: RunInfo, detail: GroupDetail, choice: Choice, clean: Clean
) -> dict[str, Any]:
    rollout, row = completion.rollout, completion.row
    parts = list(messages(rollout.text, rollout.spans)) if rollout.spans and row is None else []
    texts = [part.text for part in parts] or completion.texts
    spans = (
        enumerate(part.span for part in parts)
        if parts
        else ((span.start, span) for span in rollout.spans)
    )
    replies = {i for i, part in enumerate(parts) if part.is_reply}
    replies |= row.reply_positions if row else set()

    def shown(text: str) -> str:
        return EMPTY_SIGN if choice.redact or not text else safe(text, "⏎\n")

    return {
        "name": letter(rollout.index),
        "reward": short(rollout.reward),
        "advantage": signed(rollout.advantage) if rollout.advantage is not None else "",
        "push": _levels([max(-1.0, min(1.0, (rollout.advantage or 0.0) / 1.5))])[0],
        "verdicts": [safe(text, " ") for text in verdicts(rollout, detail.group)],
        "rewards": [
            [
                safe(reward.name, " "),
                score(reward),
                "" if reward.weight == 1 else f"× {short(reward.weight)}",
                "" if choice.redact else safe(clean(reward.reason), "\n"),
            ]
            for reward in rollout.rewards
        ],
        "texts": [
            safe(text, "\n").strip("\n") if i in replies and not choice.redact else shown(text)
            for i, text in enumerate(texts)
        ],
        "thinking": completion.thinking,
        "turns": {
            index: _turn(span, clean, redact=choice.redact)
            for index, span in spans
            if span is not None and span.length
        },
        "replies": sorted(replies),
        "clipped": [i for i, loss in enumerate(completion.losses) if loss.side != "free"],
        "facts": _facts(completion, run),
    }


def _turn(span: Any, clean: Clean, *, redact: bool) -> str:
    """What stands before a turn of the model, or before a reply of the environment."""
    reward = "" if span.reward is None else f", reward {short(span.reward)}"
    error = f", failed: {clean(span.error)}" if span.error and not redact else ""
    name = span.name or "environment"
    who = name if span.kind == "environment" else f"turn {span.turn + 1}"
    return safe(f"{who}{reward}{error}", " ")


def _facts(completion: RolloutTokens, run: RunInfo) -> dict[str, list[str]]:
    """What Rollouts says of each token, by label."""
    row = completion.row
    if row is None or len(completion.texts) != len(row.ids):
        return {}
    stages, facts = completion.stages, dict[str, list[str]]()
    for token in range(len(row.ids)):
        texts = [
            (
                "prob.",
                "   ".join(
                    f"{n} {probability(v[token])}" for n, v in stages.items() if token < len(v)
                ),
            )
        ]
        if completion.losses:
            loss = completion.losses[token]
            texts.append(
                (
                    "ratio",
                    f"{short(loss.ratio, 3)}   bounds {short(loss.low)} to {short(loss.high)}",
                )
            )
            losses = loss_texts(completion, token, run).values()
            texts += [(label or "ratios", text) for label, text in losses]
        for label, text in texts:
            facts.setdefault(label, []).append(text)
    return {label: texts for label, texts in facts.items() if any(texts)}
