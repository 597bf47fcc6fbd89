"""Evaluations as verifiers writes them, by its own code: of 0.4 or of 0.1.

python -m venv ENV && ENV/bin/pip install verifiers==0.4.0  # or 0.1.14
ENV/bin/python -m tests.tools.verifiers_files tests/foreign/verifiers
"""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

PROBLEMS = (("6 * 7", "42"), ("8 + 5", "13"))
# What the model answered to each problem, and whether that is right.
ANSWERS = ((0, "It is 42.", True), (0, "It is 7.", False), (1, "It is 13.", True))


def episodes(folder: Path) -> None:
    from verifiers.v1.cli.output import save_config
    from verifiers.v1.configs.cli.eval import EvalConfig
    from verifiers.v1.episode import EvalRunInfo, WireEpisode
    from verifiers.v1.utils.trace_store import write_episode

    config = EvalConfig.model_validate(
        {"model": "org/model", "num_rollouts": 2, "sampling": {"temperature": 0.7}, "push": False}
    )
    save_config(config, folder)
    for number, (problem, text, right) in enumerate(ANSWERS):
        question, answer = PROBLEMS[problem]
        task = {
            "type": "Sums",
            "key": question,
            "data": {"idx": problem, "prompt": f"What is {question}?", "answer": answer},
        }
        call = {"id": "c", "name": "calculate", "arguments": json.dumps({"text": question})}
        nodes: list[dict[str, Any]] = [
            {"message": {"role": "user", "content": f"What is {question}?"}},
            {
                "message": {"role": "assistant", "content": "", "tool_calls": [call]},
                "sampled": True,
            },
            {"message": {"role": "tool", "tool_call_id": "c", "content": answer}},
            {"message": {"role": "assistant", "content": text}, "sampled": True},
        ]
        nodes = [{**node, "parent": at - 1 if at else None} for at, node in enumerate(nodes)]
        trace = {
            "id": f"t{number}",
            "verifiers": {"version": "0.4.0"},
            "task": task,
            "agent": {"config": {}, "name": "agent"},
            "nodes": nodes if right else [nodes[0], {**nodes[3], "parent": 0}],
            "calls": [{"finish_reason": "stop" if right else "length"}],
            "rewards": {"right": {"score": float(right)}, "short": {"score": 0.5, "weight": 0.2}},
            "metrics": {"num_turns": 1.0 + right},
            "is_completed": True,
            "ok": True,
            "timing": {"start": 0.0},
        }
        episode = WireEpisode.model_validate({"id": f"e{number}", "task": task, "traces": [trace]})
        episode.record_run(EvalRunInfo(id="r", name="sums"))
        write_episode(folder, episode)


def rows(folder: Path) -> None:
    from verifiers.types import RolloutTiming, State
    from verifiers.utils.save_utils import save_metadata, save_outputs, state_to_output

    outputs = []
    for problem, text, right in ANSWERS:
        question, answer = PROBLEMS[problem]
        calls = [{"id": "c", "name": "calculate", "arguments": json.dumps({"text": question})}]
        completion: list[dict[str, Any]] = [
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": answer, "tool_call_id": "c"},
            {"role": "assistant", "content": text},
        ]
        state = State(
            example_id=problem,
            prompt=[
                {"role": "system", "content": "Answer with a number."},
                {"role": "user", "content": f"What is {question}?"},
            ],
            completion=completion if right else completion[2:],
            answer=answer,
            reward=float(right) + 0.1,
            metrics={"right": float(right), "short": 0.5},
            is_completed=True,
            is_truncated=not right,
            stop_condition="has_final_answer",
            usage={"input_tokens": 20.0, "output_tokens": 6.0},
            token_usage={"input_tokens": 20.0, "output_tokens": 6.0},
            timing=RolloutTiming(),
        )
        outputs.append(state_to_output(state))
    save_outputs(outputs, folder)
    metadata: Any = {
        "env_id": "sums",
        "env_args": {},
        "model": "org/model",
        "num_examples": 2,
        "rollouts_per_example": 2,
        "sampling_args": {"temperature": 0.0, "max_tokens": 64},
        "avg_reward": 0.77,
        "date": "",
        "path_to_save": folder,
    }
    save_metadata(metadata, folder)


if __name__ == "__main__":
    is_old = importlib.util.find_spec("verifiers.types") is not None
    made = Path(sys.argv[1]) / ("0.1" if is_old else "0.4")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    (rows if is_old else episodes)(made)
