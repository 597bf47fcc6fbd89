"""Generate `data/trl_tools.npz`: dialogues with tools, and what TRL makes of them.

It takes two interpreters, because MLX and torch need not be in one:

    python tests/engine/environments/make_trl_tools.py sample FOLDER    # with this project
    python tests/engine/environments/make_trl_tools.py solve FOLDER     # with torch and trl==1.16.0

The first samples dialogues with a tiny Qwen2 model; the second renders and solves them with TRL's
template of Qwen2.5, `GRPOTrainer._get_tool_suffix_ids` and `GRPOTrainer._compute_loss`.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
OUT = Path(__file__).parent / "data" / "trl_tools.npz"
# as CASES of test_trl.py, in the words of make_trl_cases.py
CASES: tuple[dict[str, Any], ...] = (
    {"loss_type": "dapo"},
    {"loss_type": "grpo", "beta": 0.04},
    {"loss_type": "dr_grpo", "high": 0.28},
)


def sample(folder: Path) -> None:
    """Run a step with tools; write the model, and the ids and masks of eight dialogues."""
    from grpo_engine.events import GroupScored
    from tests.engine.environments.test_trl import THREE, run
    from tests.engine.environments.trl_files import TOOLS, write_qwen
    from tests.engine.runs import write_world

    write_world(folder)
    (folder / "trl_tools.py").write_text(TOOLS)
    write_qwen(folder / "qwen", scale=1.0)
    rows = [
        {"prompt": [{"role": "user", "content": f"say {n}"}], "answer": str(n)} for n in range(40)
    ]
    (folder / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    events = run(folder, folder / "run", THREE, rollout={"prompts": 3, "group_size": 2})
    found = [
        (event.group.prompt_ids, one)
        for event in events
        if isinstance(event, GroupScored) and event.group.origin == "train"
        for one in event.group.rollouts
    ]
    (folder / "batch.json").write_text(
        json.dumps(
            [
                {
                    "prompt": prompt,
                    "ids": one.ids,
                    "masked": [
                        at
                        for span in one.spans
                        if span.kind == "environment"
                        for at in range(span.start, span.start + span.length)
                    ],
                }
                for prompt, one in found
            ]
        )
    )


def solve(folder: Path) -> None:
    """Compute what the tests expect, and write all."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOTrainer
    from trl.chat_template_utils import qwen2_5_chat_template

    from tests.engine.maths.make_trl_cases import trainer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder / "qwen")
    tokenizer.chat_template = qwen2_5_chat_template
    out = rendered(tokenizer, GRPOTrainer)
    batch = json.loads((folder / "batch.json").read_text())
    out |= arrays(batch)
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "qwen", dtype=torch.float32)
    out |= {f"weight:{name}": value.detach().numpy() for name, value in model.named_parameters()}
    width = out["ids"].shape[1]

    def logps() -> torch.Tensor:
        rows = []
        for one in batch:
            whole = torch.tensor([one["prompt"] + one["ids"]])
            logits = model(whole[:, :-1]).logits[0, len(one["prompt"]) - 1 :]
            scores = torch.log_softmax(logits, -1)
            own = scores[torch.arange(len(one["ids"])), torch.tensor(one["ids"])]
            rows.append(torch.nn.functional.pad(own, (0, width - len(own))))
        return torch.stack(rows)

    new = logps().detach().numpy()
    wave = np.sin(np.arange(new.size).reshape(new.shape) * 1.7)
    inside = np.arange(width)[None] < out["lengths"][:, None]
    out["old"] = ((new + 0.3 * wave) * inside).astype(np.float32)
    out["ref"] = ((new + 0.4 * np.cos(wave * 3)) * inside).astype(np.float32)
    out["advantages"] = np.array([1.2, -0.7, 0.4, -1.1, 0.9, -0.3], np.float32)
    for number, case in enumerate(CASES):
        model.zero_grad()
        stand_in = trainer(case, logps(), torch.zeros(new.shape))
        mask = torch.tensor(inside).float()
        tools = torch.tensor(out["tool_mask"])
        loss = GRPOTrainer._compute_loss(
            stand_in,
            None,
            {
                "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long),
                "prompt_mask": torch.ones(len(mask), 1),
                "completion_mask": mask,
                "completion_ids": torch.tensor(out["ids"]),
                "tool_mask": tools,
                "advantages": torch.tensor(out["advantages"]),
                "old_per_token_logps": torch.tensor(out["old"]),
                "ref_per_token_logps": torch.tensor(out["ref"]),
                "num_items_in_batch": (mask * tools).sum(),
            },
        )
        loss.backward()
        out[f"loss:{number}"] = loss.detach().numpy()
        for name, value in model.named_parameters():
            out[f"gradient:{number}:{name}"] = value.grad.numpy()
    OUT.parent.mkdir(exist_ok=True)
    np.savez_compressed(OUT, **out)


def rendered(tokenizer: Any, trainer: Any) -> dict[str, Any]:
    """A prompt with a tool, and the tokens after one and after two calls."""
    from transformers.utils.chat_template_utils import get_json_schema

    def multiply(a: int, b: int) -> int:
        """
        Multiply two integers.

        Args:
            a: The first integer.
            b: The second integer.
        """
        return a * b

    tools = [get_json_schema(multiply)]
    stand_in = SimpleNamespace(
        processing_class=tokenizer,
        _tokenizer=tokenizer,
        _is_vlm=False,
        tools=tools,
        chat_template=None,
        chat_template_kwargs={},
    )
    out: dict[str, Any] = {
        "tools": json.dumps(tools),
        "prompt": tokenizer.apply_chat_template(
            [{"role": "user", "content": "6 * 7?"}],
            tools=tools,
            tokenize=False,
            add_generation_prompt=True,
        ),
    }
    for texts in (["42"], ["42", "13"]):
        told = [{"role": "tool", "name": "multiply", "content": text} for text in texts]
        out[f"suffix:{len(texts)}"] = np.array(trainer._get_tool_suffix_ids(stand_in, told))
    return out


def arrays(batch: list[dict[str, Any]]) -> dict[str, Any]:
    """The batch padded: ids, prompts with -1, lengths, and 0 on the tokens of tools and padding."""
    width = max(len(one["ids"]) for one in batch)
    ids, mask = np.zeros((len(batch), width), np.int64), np.zeros((len(batch), width), np.float32)
    prompts = np.full((len(batch), max(len(one["prompt"]) for one in batch)), -1, np.int64)
    for row, one in enumerate(batch):
        ids[row, : len(one["ids"])] = one["ids"]
        mask[row, : len(one["ids"])] = 1
        mask[row, one["masked"]] = 0
        prompts[row, : len(one["prompt"])] = one["prompt"]
    lengths = np.array([len(one["ids"]) for one in batch])
    return {"ids": ids, "tool_mask": mask, "prompts": prompts, "lengths": lengths}


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    {"sample": sample, "solve": solve}[sys.argv[1]](Path(sys.argv[2]))
