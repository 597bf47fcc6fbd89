"""Files as prime-rl's monitor writes them, with the episodes by verifiers' own code.

    python -m venv ENV && ENV/bin/pip install verifiers==0.4.0
    ENV/bin/python -m tests.tools.prime_rl_files tests/foreign/prime_rl

After `monitors/file/monitor.py`, `traces/chunks.py` and `orchestrator/annotations.py` of prime-rl,
commits 048a6e23 (file monitor), 551bfc39 (chunks), 65a18584 (annotations).
"""

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

from verifiers.v1 import episode as ep
from verifiers.v1 import trace as tr
from verifiers.v1.graph import MessageNode
from verifiers.v1.types import AssistantMessage, SystemMessage, ToolCall, ToolMessage, UserMessage

PROBLEMS = (("6 * 7", "42"), ("8 + 5", "13"))
random.seed(4)


def numbers(count: int, low: float = -2.0, high: float = -0.01) -> list[float]:
    return [random.uniform(low, high) for _ in range(count)]


def node(message: Any, ids: list[int], sampled: int = 0, **more: Any) -> MessageNode:
    """A message with its tokens, of which the last ones are sampled."""
    return MessageNode(
        message=message,
        token_ids=ids,
        mask=[index >= len(ids) - sampled for index in range(len(ids))],
        sampled=bool(sampled),
        logprobs=numbers(sampled),
        timestamp=0.0,
        **more,
    )


def trace_of(uid: str, question: str, answer: str, right: bool, tools: bool) -> Any:
    said = answer if right else "7"
    nodes = [
        node(SystemMessage(content="Answer with a number."), [1, 2, 3, 4]),
        node(UserMessage(content=f"What is {question}?"), [5, 6, 7, 8, 9], parent=0),
    ]
    if tools:
        call = ToolCall(id="c1", name="calculate", arguments=json.dumps({"text": question}))
        nodes += [
            node(
                AssistantMessage(content="", tool_calls=[call]), [90, 91, 10, 11, 12], 3, parent=1
            ),
            node(ToolMessage(tool_call_id="c1", content=answer), [13, 14], parent=2),
        ]
    last = len(nodes) - 1
    nodes.append(
        node(AssistantMessage(content=f"It is {said}."), [90, 91, 20, 21, 22, 23], 4, parent=last)
    )
    return tr.WireTrace.model_validate(
        {
            "id": uid,
            "verifiers": {"version": "0.4.0"},
            "task": {
                "type": "Sums",
                "key": question,
                "data": {"prompt": f"What is {question}?", "answer": answer},
            },
            "agent": {"config": {}, "name": "agent"},
            "nodes": [item.model_dump() for item in nodes],
            "calls": [{"node": len(nodes) - 1, "finish_reason": "stop"}],
            "rewards": {"right": {"score": float(right)}, "short": {"score": 0.5, "weight": 0.2}},
            "metrics": {"turns": 1.0 + tools},
            "is_completed": True,
            "ok": True,
            "timing": {"start": 0.0},
        }
    )


def episode_of(kind: str, step: int, problem: int, index: int) -> Any:
    question, answer = PROBLEMS[problem]
    right = random.random() < 0.3 + 0.2 * step
    trace = trace_of(f"{kind}{step}{problem}{index}", question, answer, right, tools=index == 1)
    trace.info = {"kind": kind, "arrival": {"step": step, "time": 0.0}}
    return ep.WireEpisode.model_validate(
        {
            "id": f"e-{trace.id}",
            "env": {"id": "sums", "name": "sums"},
            "task": trace.task.model_dump(),
            "group": {"id": f"{kind}-{step}-{problem}"},
            "run": {"type": "train", "id": "r", "work": {"type": kind, "step": step}},
            "ok": True,
            "traces": [trace.model_dump()],
        }
    )


def update(uid: str, info: dict[str, Any], **streams: Any) -> dict[str, Any]:
    branches = [{"index": 0, **streams}] if streams else []
    return {"version": 1, "trace_id": uid, "info": info, "branches": branches}


def ship_and_train(step: int, episodes: list[Any]) -> tuple[list[Any], list[Any]]:
    """What the orchestrator notes of a cohort, and the trainer."""
    shipped, trained = [], []
    for start in (0, 2):
        traces = [episode.traces[0] for episode in episodes[start : start + 2]]
        mean = sum(trace.reward for trace in traces) / 2
        for trace in traces:
            branch = trace.branches[0]
            advantage = trace.reward - mean
            mask, size = branch.sampled_mask, len(branch.token_ids)
            info = {"effective": True, "ship": {"step": step, "time": 0.0}, "advantage": advantage}
            shipped.append(update(trace.id, info, advantages=[advantage * by for by in mask]))

            def of_sampled(values: list[float], mask: list[bool] = mask) -> list[float | None]:
                return [round(v, 4) if by else None for v, by in zip(values, mask, strict=True)]

            near = [value + random.uniform(-0.05, 0.05) for value in branch.logprobs]
            trained.append(
                update(
                    trace.id,
                    {},
                    trainer_logprobs=of_sampled(near),
                    entropies=of_sampled(numbers(size, 0.1, 1.0)),
                    is_masked=[
                        by and index == size - 1 and step == 2 for index, by in enumerate(mask)
                    ],
                )
            )
    return shipped, trained


def written(path: Path, items: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item, separators=(",", ":")) + "\n" for item in items))


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    monitor = folder / "monitors" / "file"
    stream, orchestrator, trainer, metrics = [], [], [], []
    for step in (1, 2, 3):
        episodes = [episode_of("train", step, i // 2, i % 2) for i in range(4)]
        held_out = [episode_of("eval", step, i // 2, i % 2) for i in range(4)] if step > 1 else []
        dropped = [episode_of("train", step, 0, 5)]  # arrived, and was never shipped
        stream += [item.to_record() for item in (*held_out, *episodes, *dropped)]
        shipped, trained = ship_and_train(step, episodes)
        orchestrator += shipped
        trainer += trained if step < 3 else []  # it has not come to step 3
        metrics += [
            {"step": step, "time": 0.0, "progress/tokens": 60 * step, "producer": "orchestrator"},
            {"step": None, "time": 0.0, "queue": 1, "producer": "inference"},
            {
                "step": step,
                "time": 0.0,
                "optim/lr": 1e-5,
                "optim/grad_norm": 0.5 / step,
                "producer": "trainer",
            },
            {
                "step": step,
                "time": 0.0,
                "time/step": 2.5,
                "loss/mean": 0.01 * step,
                "producer": "trainer",
            },
        ]
    written(monitor / "traces" / "stream" / "00000.jsonl", stream[:6])
    written(monitor / "traces" / "stream" / "00001.jsonl", stream[6:])
    written(monitor / "traces" / "annotations" / "orchestrator" / "00000.jsonl", orchestrator)
    written(monitor / "traces" / "annotations" / "trainer" / "00000.jsonl", trainer)
    written(monitor / "metrics.jsonl", metrics)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
