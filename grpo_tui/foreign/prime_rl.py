"""prime-rl's file monitor: episodes of verifiers, what the trainer adds to them later, and metrics.

An episode is written once, as it arrives; the step that trained on it and the trainer's numbers by
token follow as annotations. Before September 2026 each step had files of its own instead.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Final

from grpo_engine.events import Finish, Origin, Span
from grpo_engine.frozen import frozen
from grpo_tui import record
from grpo_tui.foreign.files import (
    LARGEST_STEP,
    Folder,
    Row,
    as_text,
    finite,
    first_row,
    mapping,
    rows,
)
from grpo_tui.foreign.messages import answer_of, prompt_of, text_of
from grpo_tui.foreign.reader import Format, Reader, Step, by_prompt, evaluation_of
from grpo_tui.foreign.streams import SEALED, Position, Stream

MONITOR: Final = "monitors/file"
TRACES: Final = f"{MONITOR}/traces"
ENDS: Final = (".jsonl", "/*.jsonl", "/*.jsonl.zst")  # one file, and chunks of a folder
OLD_FILES: Final = "rollouts/step_*/*/effective/traces.jsonl"
OLD: Final = re.compile(r"step_(\d{1,8})/(train|eval)/effective/traces\.jsonl")
RENAMED: Final = {
    "loss/mean": "loss",
    "optim/grad_norm": "grad_norm",
    "optim/lr": "learning_rate",
    "entropy/all/mean": "entropy",
    "time/step": "step_time",
}
FINISHES: Final[Mapping[str, Finish]] = {
    "max_turns": "turns",
    "max_output_tokens": "length",
    "max_input_tokens": "context",
    "max_total_tokens": "context",
    "stop": "stop",
    "length": "length",
}


class PrimeReader(Reader):
    format = trainer = "prime-rl"
    remedies: ClassVar = {
        "rewards": "give the environment's taskset a @reward",
        "rewards by function": "give the environment's taskset a @reward",
        "reference solutions": "give the task's data an answer",
        "advantages": "monitors.file of the orchestrator, since September 2026",
        "tokens": "sample with a renderer, which gives token ids",
        "the sampler's log-probabilities": "sample with a renderer, which gives them",
        "the trainer's log-probabilities": "monitors.file of the trainer, since September 2026",
        "the reference's log-probabilities": "an algorithm with a reference model",
        "entropy by token": "monitors.file of the trainer, since September 2026",
        "metrics": "monitors.file",
        "held-out evaluations": "orchestrator.eval",
    }

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder.path, folder.path.name)
        self.folder = folder
        self._episodes = Stream(folder, *(f"{TRACES}/stream{end}" for end in ENDS))
        self._updates = Stream(folder, *(f"{TRACES}/annotations/*{end}" for end in ENDS))
        self._logged = Stream(folder, f"{MONITOR}/metrics.jsonl", "metrics.jsonl")
        self._metrics: dict[int, dict[str, float]] = defaultdict(dict)
        self._old: dict[int, dict[str, Path]] = defaultdict(dict)
        self._shipped: dict[int, dict[str, None]] = defaultdict(dict)  # trace ids by step
        self._annotated: set[str] = set()  # ids of traces that the trainer has come to
        self._notes: dict[str, list[Position]] = defaultdict(list)  # by trace id
        self._positions: dict[str, Position] = {}  # of the episodes of traces
        self._held_out: dict[int, list[Position]] = defaultdict(list)
        self._before: dict[int, int] = {}  # the step before each

    def steps(self) -> dict[int, Any]:
        """The steps that the trainer has come to, or all if it annotates none."""
        for _, row in self._logged.new():
            self._log(row)
        for position, row in self._updates.new():
            self._annotate(position, row)
        for position, row in self._episodes.new():
            self._arrive(position, row)
        for path in self.folder.files(OLD_FILES):
            match = OLD.search(path.as_posix())
            if match and 0 < (step := int(match[1])) <= LARGEST_STEP:
                self._old[step][match[2]] = path
        trained = [n for n, ids in self._shipped.items() if not self._annotated.isdisjoint(ids)]
        last = max(trained, default=LARGEST_STEP)
        states: dict[int, Any] = {
            step: [len(self._notes[uid]) for uid in ids]
            for step, ids in self._shipped.items()
            if step <= last and ids.keys() <= self._positions.keys()
        }
        states |= {
            step: [path.stat().st_size for path in files.values()]
            for step, files in self._old.items()
            if "train" in files
        }
        self._before = {later: step for step, later in pairwise([-1, *sorted(states)])}
        return {step: (states[step], len(self._evaluated(step))) for step in sorted(states)}

    def _evaluated(self, step: int) -> list[Position]:
        """The held-out episodes since the step before."""
        return [
            position
            for at, positions in sorted(self._held_out.items())
            if self._before[step] < at <= step
            for position in positions
        ]

    def _log(self, row: Row) -> None:
        step = row.values.get("step")
        if type(step) is not int or not 0 < step <= LARGEST_STEP:
            return  # of the inference servers, which count no steps
        by_trainer = row.values.get("producer", "trainer") == "trainer"
        for name, value in row.rest(frozenset({"step", "time", "producer"})).items():
            self._metrics[step][RENAMED.get(name, name) if by_trainer else name] = value

    def _annotate(self, position: Position, row: Row) -> None:
        uid = row.text("trace_id")
        self._notes[uid].append(position)
        shipped = mapping(mapping(row.values.get("info")).get("ship")).get("step")
        if type(shipped) is int and 0 < shipped <= LARGEST_STEP:
            self._shipped[shipped][uid] = None
        if any("trainer_logprobs" in branch for branch in _dicts(row.values.get("branches"))):
            self._annotated.add(uid)

    def _arrive(self, position: Position, row: Row) -> None:
        work = mapping(mapping(row.values.get("run")).get("work"))
        step = work.get("step")
        if work.get("type") == "eval" and type(step) is int and 0 <= step <= LARGEST_STEP:
            self._held_out[step].append(position)
        for trace in _dicts(row.values.get("traces")):
            self._positions[str(trace.get("id"))] = position

    def read(self, step: int) -> Step:
        files = self._old.get(step, {})
        train = list(traces_of(rows(files["train"]))) if files else list(self._trained(step))
        groups = groups_of(train, "train")
        evaluations = []
        held_out = list(traces_of(rows(files["eval"]))) if "eval" in files else []
        held_out += traces_of(map(self._episodes.row, self._evaluated(step)))
        if held_out:
            answers = groups_of(held_out, "eval")
            evaluations.append(evaluation_of([item.group for item in answers]))
            groups += answers
        return Step(groups=groups, metrics=self._metrics.get(step, {}), evaluations=evaluations)

    def _trained(self, step: int) -> Iterator["Trace"]:
        """The traces that a step trained on, with their annotations."""
        ids = self._shipped[step]
        for position in dict.fromkeys(self._positions[uid] for uid in ids):
            for trace in traces_of([self._episodes.row(position)]):
                if (uid := str(trace.values.get("id"))) in ids:
                    notes = [self._updates.row(note).values for note in self._notes[uid]]
                    yield replace(trace, notes=notes)


# -- episodes -----------------------------------------------------------------------------------


@frozen
class Trace:
    """What one agent did in an episode; of several branches the last."""

    episode: Mapping[str, Any]
    values: Mapping[str, Any]
    notes: Sequence[Mapping[str, Any]] = ()

    @property
    def group(self) -> tuple[str, str]:
        """What the answers to one prompt share."""
        task = mapping(self.values.get("task")) or mapping(self.episode.get("task"))
        group = mapping(self.episode.get("group")).get("id", task.get("key") or task.get("hash"))
        return str(group), str(mapping(self.values.get("agent")).get("name", ""))

    @property
    def nodes(self) -> tuple[int, list[Mapping[str, Any]]]:
        """The index of the last branch, and its nodes from the root."""
        nodes = _dicts(self.values.get("nodes"))
        parents = {node.get("parent") for node in nodes}
        path: list[Mapping[str, Any]] = []
        at = len(nodes) - 1
        while at >= 0:
            path.append(nodes[at])
            parent = nodes[at].get("parent")
            at = parent if type(parent) is int and parent < at else -1
        return sum(index not in parents for index in range(len(nodes))) - 1, path[::-1]

    def prompt(self) -> record.Prompt:
        messages = [mapping(node.get("message")) for node in self._split()[0]]
        return prompt_of(messages)

    def _split(self) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        """The nodes before the model's first, and the rest."""
        _, nodes = self.nodes
        first = next((i for i, node in enumerate(nodes) if node.get("sampled")), len(nodes))
        return nodes[:first], nodes[first:]

    def rollout(self) -> record.Rollout:
        info: dict[str, Any] = {}
        for item in (self.values, *self.notes):
            info |= mapping(item.get("info"))
        messages = [mapping(node.get("message")) for node in self._split()[1]]
        text, spans = answer_of(messages)
        scores = {name: mapping(v) for name, v in mapping(self.values.get("rewards")).items()}
        weights = {name: finite(score.get("weight", 1.0)) for name, score in scores.items()}
        rewards = {name: finite(score.get("score")) for name, score in scores.items()}
        metrics = {name: finite(v) for name, v in mapping(self.values.get("metrics")).items()}
        return record.rollout(
            text,
            rewards=metrics | rewards,
            weights=dict.fromkeys(metrics, 0.0) | {k: w or 0.0 for k, w in weights.items()},
            advantage=finite(info.get("advantage")),
            finish=self._finish(),
            tokens=self._tokens() or record.Tokens(spans=spans),
        )

    def _finish(self) -> Finish:
        reasons = [call.get("finish_reason") for call in _dicts(self.values.get("calls"))[-1:]]
        reasons.insert(0, self.values.get("stop_condition"))
        return next(filter(None, (FINISHES.get(str(reason), "") for reason in reasons)), "")

    def prompt_ids(self) -> list[int]:
        ids, mask = self._ids()
        return ids[: mask.index(True)] if True in mask else []

    def _ids(self) -> tuple[list[int], list[bool]]:
        """The tokens of the branch, and which of them the model sampled; none if it is unsure."""
        ids: list[int] = []
        mask: list[bool] = []
        for node in self.nodes[1]:
            ids += _list(node.get("token_ids"))
            mask += map(bool, _list(node.get("mask")))
        return (ids, mask) if len(ids) == len(mask) else ([], [])

    def _tokens(self) -> record.Tokens | None:
        ids, mask = self._ids()
        if True not in mask:
            return None
        start = mask.index(True)
        out = self._stream("is_masked", mask) or [None] * len(mask)
        return record.tokens(
            ids[start:],
            sampler=self._numbers("logprobs", mask)[start:],
            old=self._numbers("trainer_logprobs", mask)[start:],
            reference=self._numbers("reference_logprobs", mask)[start:],
            entropy=self._numbers("entropies", mask)[start:],
            advantages=self._numbers("advantages", mask)[start:],
            mask=[int(by and no is not True) for by, no in zip(mask, out, strict=True)][start:],
            spans=self._spans(),
        )

    def _numbers(self, field: str, mask: Sequence[bool]) -> list[float]:
        """A number for each token, 0 for those of the environment; none if one is not known."""
        values = [finite(value) for value in self._stream(field, mask)]
        known = all(value is not None for value, by in zip(values, mask, strict=False) if by)
        return [value or 0.0 for value in values] if known else []

    def _stream(self, field: str, mask: Sequence[bool]) -> list[Any]:
        """A value for each token of the branch, of the nodes or the newest note that has it."""
        values: list[Any] = []
        for node in self.nodes[1]:
            of_node = iter(_list(node.get(field)))
            values += [next(of_node, None) if by else None for by in _list(node.get("mask"))]
        for note in self.notes:
            for branch in _dicts(note.get("branches")):
                stream = _list(branch.get(field))
                if branch.get("index") == self.nodes[0] and len(stream) >= len(mask):
                    values = stream[: len(mask)]
        return values if any(value is not None for value in values) else []

    def _spans(self) -> list[Span]:
        """The turns of the model, and between them the messages and the template's tokens."""
        parts: list[tuple[bool, int, int]] = []  # by the model, tokens, characters
        for node in self._split()[1]:
            mask = [bool(value) for value in _list(node.get("mask"))]
            before = mask.index(True) if True in mask else len(mask)
            chars = len(text_of(mapping(node.get("message"))))
            by_model = bool(node.get("sampled"))
            parts.append((False, before, 0 if by_model else chars))
            parts.append((True, len(mask) - before, chars if by_model else 0))
        parts = [part for part in parts[1:] if part[1]]  # the first tokens are the prompt's
        joined = []
        for by_model, items in groupby(parts, key=lambda part: part[0]):
            lengths, chars = zip(*(part[1:] for part in items), strict=True)
            joined.append((by_model, sum(lengths), sum(chars), ""))
        return record.spans_of(joined) if len(joined) > 1 else []


def traces_of(episodes: Iterable[Row]) -> Iterator[Trace]:
    """The traces of agents that are trained."""
    for row in episodes:
        for trace in _dicts(row.values.get("traces")):
            if mapping(trace.get("agent")).get("trainable", True):
                yield Trace(episode=row.values, values=trace)


def groups_of(
    traces: Sequence[Trace], origin: Origin, sampling: Mapping[str, float] | None = None
) -> list[record.Group]:
    groups = by_prompt(traces, attrgetter("group"))
    return [_group(items, origin, sampling) for items in groups]


def _group(
    items: Sequence[Trace], origin: Origin, sampling: Mapping[str, float] | None
) -> record.Group:
    task = mapping(items[0].values.get("task"))
    return record.group(
        items[0].prompt(),
        [item.rollout() for item in items],
        target=as_text(mapping(task.get("data")).get("answer")),
        key=str(task.get("key") or task.get("hash") or ""),
        origin=origin,
        prompt_ids=items[0].prompt_ids(),
        sampling=sampling,
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict)]


def _open(folder: Folder) -> list[PrimeReader]:
    streams = (f"{TRACES}/stream{end}" for end in ENDS)
    for pattern in (*streams, OLD_FILES):
        for path in folder.files(pattern):
            if path.suffix == SEALED or "traces" in first_row(path):
                return [PrimeReader(folder)]
    return []


PRIME_RL: Final = Format(
    name="prime-rl", files="a run's folder with monitors/file or rollouts/step_{step}", open=_open
)
