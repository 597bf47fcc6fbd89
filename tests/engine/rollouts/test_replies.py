"""The tokens between two turns: cut after the answer's end, with replies as plain text."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.rollouts.prompts import CHATML, PromptRenderer
from grpo_engine.rollouts.replies import ReplyTokens, reply_tokens, with_calls
from grpo_engine.tasks.base import Example, Task
from tests.engine.tiny import write_tokenizer

MARKS = ("<|im_start|>", "<|im_end|>", "<tool_call>")
TOOL = {
    "type": "function",
    "function": {
        "name": "add", "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}  # fmt: skip
# as templates of models that think: the thoughts of an answer are dropped when a message follows
REWRITES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_TOOLS = REWRITES.replace("<think></think>", "")
NO_END = NO_TOOLS.replace("<|im_end|>", "")
USER = [{"role": "user", "content": "higher"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    made = PreTrainedTokenizerFast.from_pretrained(folder)
    made.add_special_tokens({"additional_special_tokens": list(MARKS)})
    return made


def renderer(tokenizer: Any, template: str = "", *, tools: Any = ()) -> PromptRenderer:
    tokenizer.chat_template = template or None
    task = Task(name="t", description="", train=(), held_out=(), fingerprint="")
    plain = PromptRenderer(tokenizer, task, TaskConfig(), model="some model")
    return plain.with_tools(tools)


def replies(render: PromptRenderer, *, is_plain: bool = False) -> ReplyTokens:
    ends = frozenset({render.tokenizer.convert_tokens_to_ids("<|im_end|>")})
    return reply_tokens(render, ends, is_plain=is_plain, uses_tools=bool(render.tools))


def text(tokenizer: Any, ids: Any) -> str:
    shown: str = tokenizer.decode(list(ids), skip_special_tokens=False)
    return shown


def test_a_reply_is_what_the_template_writes_after_the_answers_end_token(tokenizer: Any) -> None:
    made = replies(renderer(tokenizer, NO_TOOLS))
    assert made.end_token == tokenizer.convert_tokens_to_ids("<|im_end|>")
    expected = "\n<|im_start|>user\nhigher<|im_end|>\n<|im_start|>assistant\n"
    assert text(tokenizer, made(USER)) == expected
    # the same ids as in the rendered whole
    whole = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, *USER]
    rendered = tokenizer.apply_chat_template(whole, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(rendered, add_special_tokens=False)
    assert tuple(ids[-len(made(USER)) :]) == made(USER)


def test_an_end_token_that_comes_only_before_a_message_is_not_written_twice(tokenizer: Any) -> None:
    """As the embedded models' template, which leaves a last answer open for a prefill."""
    left_open = NO_TOOLS.replace(
        "<|im_end|>", "{% if not loop.last or m.role != 'assistant' %}<|im_end|>{% endif %}"
    )
    made = replies(renderer(tokenizer, left_open))
    assert made.end_token == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert made.end_token != made(USER)[0]


def test_a_template_without_an_end_token_inserts_none(tokenizer: Any) -> None:
    made = replies(renderer(tokenizer, NO_END))
    assert made.end_token is None
    assert text(tokenizer, made(USER)).startswith("\n<|im_start|>user")


def test_bare_text_has_the_reply_on_its_own_line(tokenizer: Any) -> None:
    made = replies(renderer(tokenizer), is_plain=True)
    assert text(tokenizer, made(USER)) == "\nhigher\n"
    assert made.end_token is None


def test_a_template_that_rewrites_answers_is_refused_with_a_remedy(tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"template of some model rewrites .* `chatml`"):
        replies(renderer(tokenizer, REWRITES))
    replies(renderer(tokenizer, CHATML))


@given(st.lists(st.sampled_from([*MARKS, "<end>", "<|im_", "\ue000", "0\ue001", "x ", "\n"])))
def test_control_tokens_in_a_reply_arrive_as_plain_text(tokenizer: Any, parts: list[str]) -> None:
    made = replies(renderer(tokenizer, NO_TOOLS))
    said = "".join(parts)
    ids = made([{"role": "user", "content": said}])
    shown = said.replace("\ue000", "\ufffd").replace("\ue001", "\ufffd")
    assert text(tokenizer, ids) == f"\n<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n"
    controls = {tokenizer.convert_tokens_to_ids(mark) for mark in (*MARKS, "<end>")}
    assert sum(token in controls for token in ids) == 3


def test_a_template_that_knows_tools_gets_them_and_their_results(tokenizer: Any) -> None:
    render = renderer(tokenizer, CHATML, tools=[TOOL])
    assert render.template_knows_tools
    prompt = render(Example(key="e", prompt=({"role": "user", "content": "1 + 2?"},)))
    assert prompt.text.startswith("<|im_start|>system\n# Tools")
    assert '"name": "add"' in prompt.text
    result = [{"role": "tool", "name": "add", "content": "3"}]
    assert "<tool_response>\n3\n</tool_response><|im_end|>" in text(
        tokenizer, replies(render)(result)
    )


def test_a_template_that_knows_none_has_them_explained_in_the_system_message(
    tokenizer: Any,
) -> None:
    render = renderer(tokenizer, NO_TOOLS, tools=[TOOL])
    assert not render.template_knows_tools
    prompt = render(Example(key="e", prompt=({"role": "user", "content": "1 + 2?"},)))
    assert prompt.text.startswith("<|im_start|>system\nYou can call the tools below.")
    result = [{"role": "tool", "name": "add", "content": "3"}] * 2
    assert text(tokenizer, replies(render)(result)) == (
        "\n<|im_start|>user\n<tool_response>3</tool_response>\n<tool_response>3</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_models_own_template_is_used_for_prompts_without_tools_as_before(
    tokenizer: Any, tmp_path: Path
) -> None:
    (tmp_path / "own.jinja").write_text(NO_TOOLS)
    tokenizer.chat_template = None
    task = Task(name="t", description="", train=(), held_out=(), fingerprint="")
    config = TaskConfig(chat_template=str(tmp_path / "own.jinja"))
    prompt = PromptRenderer(tokenizer, task, config)(
        Example(key="e", prompt=({"role": "user", "content": "hi"},))
    )
    assert prompt.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


BEFORE = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
# a form of its own: call@add {"a": 1}@end
FORM = {
    "defaults": {"role": "assistant"}, "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>", "content": "text"},
        "tool_calls": {
            "open_pattern": r"call@(?P<name>\w+) ", "close": "@end", "repeats": True,
            "content": "json",
            "transform": {
                "type": "function", "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("prefill", "sampled", "expected"),
    [
        ("", 'so call@add {"a": 1}@end<|im_end|>',
         'so <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'),
        ('call@add {"a"', ": 7}@end",
         '<tool_call>{"name": "add", "arguments": {"a": 7}}</tool_call>'),
        ("", "3<|im_end|>", "3"),
        # what is thought is not called
        ("", "<think><tool_call>{}</tool_call></think>3", "3"),
        ("", "call@add {@end", "<tool_call>call@add {@end</tool_call>"),
    ],
)  # fmt: skip
def test_calls_in_the_tokenizers_own_form_reach_the_environment(
    tokenizer: Any, prefill: str, sampled: str, expected: str
) -> None:
    render = renderer(tokenizer, CHATML, tools=[TOOL])
    assert not replies(render).reads_calls
    tokenizer.response_template = FORM
    try:
        assert replies(render).reads_calls
        assert not replies(renderer(tokenizer, NO_TOOLS, tools=[TOOL])).reads_calls
        before, ids = (tokenizer.encode(text) for text in (BEFORE + prefill, sampled))
        answer = prefill + tokenizer.decode(ids, skip_special_tokens=True)
        found = with_calls(tokenizer, before, ids, answer, [TOOL])
    finally:
        del tokenizer.response_template
    assert found.replace(" <", "<") == expected.replace(" <", "<")
