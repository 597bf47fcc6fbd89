"""Generate `data/trl_tools.npz`: what TRL writes of a prompt with a tool, and after its results.

    python tests/engine/environments/make_trl_tools.py FOLDER    # with torch and trl==1.16.0

FOLDER is one that `trl_files.write_qwen` wrote with this project's interpreter.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from transformers import AutoTokenizer

OUT = Path(__file__).parent / "data" / "trl_tools.npz"


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


if __name__ == "__main__":
    from trl import GRPOTrainer
    from trl.chat_template_utils import qwen2_5_chat_template

    tokenizer: Any = AutoTokenizer.from_pretrained(sys.argv[1])
    tokenizer.chat_template = qwen2_5_chat_template
    np.savez_compressed(OUT, **rendered(tokenizer, GRPOTrainer))
