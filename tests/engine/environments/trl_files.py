"""Tools, environments and rewards as TRL documents them, a tiny Qwen2 model, and its template."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from tests.engine.tiny import write_model

TOOLS = '''
import asyncio, signal
from contextlib import contextmanager


def multiply(a: int, b: int) -> int:
    """
    Multiply two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product.
    """
    return a * b


async def later(a: int, b: int) -> int:
    """
    Add two integers, asynchronously.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The sum.
    """
    await asyncio.sleep(0.001)
    return a + b


@contextmanager
def at_most(seconds):
    def ring(signum, frame):
        raise TimeoutError(f"more than {seconds} seconds")

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def query(sql: str) -> list[tuple]:
    """
    Ask a database, with a time limit of its own.

    Args:
        sql: The command.

    Returns:
        The rows.
    """
    with at_most(5):
        return [(len(sql), "row")]


class Counter:
    def __init__(self):
        self.reward = 0.0

    def reset(self, **kwargs) -> str | None:
        self.counter, self.reward, self.done = 0, 0.0, False
        assert sorted(kwargs) == ["answer", "prompt"]
        return "\\nCount up."

    def increment(self, step: int) -> int:
        """
        Increment the counter.

        Args:
            step: How much to add.

        Returns:
            The counter.
        """
        if self.done:
            raise ValueError("Game over.")
        self.counter += step
        self.reward, self.done = float(self.counter), self.counter > 2
        return self.counter


class Echo:
    def reset(self, **kwargs) -> str | None:
        self.said = ""

    def echo(self, message: str) -> str:
        """
        Say it again.

        Args:
            message: What to say.

        Returns:
            The same.
        """
        self.said = message
        return message

    def get_reward(self) -> float:
        return float(len(self.said))


def reward_func(environments, **kwargs) -> list[float]:
    return [getattr(env, "reward", 0.0) for env in environments]


def called(completions, **kwargs):
    """As in TRL's agent example: what was called, with which arguments, and what came back."""
    return [
        float(sum(len(call["function"]["arguments"]) for turn in completion
                  for call in turn.get("tool_calls") or ()))
        + sum(10.0 for turn in completion if turn["role"] == "tool")
        for completion in completions
    ]
'''
MARKS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
END = 262  # <|im_end|>
# What Qwen2.5's template writes: `data/trl_tools.npz` has its own texts
QWEN = """\
{%- macro said(role, text) %}<|im_start|>{{ role }}\n{{ text }}<|im_end|>\n{% endmacro %}
{%- set own = namespace(text='You are Qwen, created by Alibaba Cloud. You are a helpful \
assistant.') %}
{%- if messages[0].role == 'system' %}{% set own.text = messages[0].content %}{% endif %}
{%- if tools %}
{%- set own.text = own.text + '\\n\\n# Tools\\n\\nYou may call one or more functions to assist \
with the user query.\\n\\nYou are provided with function signatures within <tools></tools> XML \
tags:\\n<tools>' %}
{%- for tool in tools %}{% set own.text = own.text + '\\n' + (tool | tojson) %}{% endfor %}
{%- set own.text = own.text + '\\n</tools>\\n\\nFor each function call, return a json object with \
function name and arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{"name": \
<function-name>, "arguments": <args-json-object>}\\n</tool_call>' %}
{%- endif %}
{{- said('system', own.text) }}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.previtem is undefined or loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.nextitem is undefined or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- elif message.role != 'system' or not loop.first %}{{ said(message.role, message.content) }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def write_qwen(folder: Path, **changes: Any) -> Path:
    """A random Qwen2 model of one small layer, with a tokenizer of bytes and Qwen's marks."""
    write_model(
        folder,
        model_type="qwen2",
        architectures=["Qwen2ForCausalLM"],
        hidden_size=16,
        num_hidden_layers=1,
        intermediate_size=24,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=END + 3,
        max_position_embeddings=4096,
        **{"eos_token_id": [END], **changes},
    )
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS[:2])})
    tokenizer.add_tokens(list(MARKS[2:]))
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == END
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template = QWEN
    tokenizer.save_pretrained(folder)
    return folder
