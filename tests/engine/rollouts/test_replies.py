"""The tokens between two turns: cut after the answer's end, with replies as plain text."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.rollouts.prompts import CHATML, PromptRenderer
from grpo_engine.rollouts.replies import ReplyTokens, reply_tokens
from grpo_engine.tasks.base import Example, Task
from tests.engine.tiny import write_tokenizer

MARKS = ("<|im_start|>", "<|im_end|>", "<tool_call>")
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
# as templates of models that think: the thoughts of an answer are dropped when a message follows
REWRITES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_TOOLS = REWRITES.replace("<think></think>", "")
# Of the kind of Qwen3's: thoughts stay after the last question only, and an answer without one gets
# an empty one there; results of tools are no questions.
DROPS = """\
{%- set last = namespace(question=0) %}
{%- for m in messages if m.role == 'user' %}{% set last.question = messages.index(m) %}{% endfor %}
{%- if tools %}<|im_start|>system
You have {{ tools | tojson }}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set parts = m.content.split('</think>') %}
{%- set thought = parts[0].replace('<think>', '').strip() if parts | length > 1 else '' %}
{%- set open = loop.index0 > last.question and (loop.last or thought) %}
{{- '<|im_start|>assistant\\n' }}
{{- '<think>\\n' + thought + '\\n</think>\\n\\n' if open }}{{ parts[-1].strip() }}<|im_end|>
{% elif m.role == 'tool' %}<|im_start|>user
<tool_response>{{ m.content }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# its form for training: the condition that drops thoughts is gone
KEEPS = DROPS.replace("loop.index0 > last.question and (loop.last or thought)", "true")
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "turn", "tools"),
    [
        # lists tools before the last question, so the first prompt changes when another follows
        (
            "{% for m in messages %}{% if loop.last and tools %}{{ tools | tojson }}{% endif %}"
            "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}",
            1,
            [TOOL],
        ),
        (
            REWRITES.replace(
                "{{ m.content }}", "{{ m.content if loop.last else m.content|upper }}"
            ),
            1,
            (),
        ),
        (
            NO_TOOLS.replace(
                "<|im_end|>",
                "{{ '<end>' if m.role == 'assistant' and not loop.last else '<|im_end|>' }}",
            ),
            1,
            (),
        ),
        # the replies after the second turn would be numbered like those after the first
        (NO_TOOLS.replace("{{ m.role }}", "{{ m.role }} {{ loop.index // 2 }}"), 2, ()),
    ],
    ids=["prompt", "answer", "end token", "numbered"],
)
def test_a_template_that_rewrites_dialogues_is_refused_with_the_turn_and_a_remedy(
    tokenizer: Any, template: str, turn: int, tools: Any
) -> None:
    expected = rf"template of some model rewrites turn {turn} .* the role user .* `chatml`"
    with pytest.raises(DataError, match=expected):
        replies(renderer(tokenizer, template, tools=tools))
    replies(renderer(tokenizer, CHATML, tools=tools))


@pytest.mark.parametrize(
    ("roles", "tools"),
    [
        (("user", "user"), ()),
        (("user", "user"), (TOOL,)),
        (("tool", "tool"), (TOOL,)),
        (("tool", "user"), (TOOL,)),
    ],
)
def test_a_template_that_drops_thinking_trains_what_was_sampled(
    tokenizer: Any, roles: tuple[str, ...], tools: Any
) -> None:
    """The tokens of three turns are those of the template's training form."""
    render = renderer(tokenizer, DROPS, tools=tools)
    made = replies(render)
    question = {"role": "user", "content": "How much?"}
    answers = [f"<think>\nperhaps {n}\n</think>\n\nIt is {n}." for n in range(3)]
    said = [{"role": role, "name": "add", "content": f"no, {role}"} for role in roles]
    ids = list(render(Example(key="e", prompt=(question,))).ids)
    for answer, reply in zip(answers, [*said, None], strict=True):
        ids += tokenizer.encode(f"{answer}<|im_end|>", add_special_tokens=False)
        ids += made([reply]) if reply else ()
    turns = [{"role": "assistant", "content": answer} for answer in answers]
    dialogue = [question, turns[0], said[0], turns[1], said[1], turns[2]]
    rendered = {
        template: tokenizer.encode(
            tokenizer.apply_chat_template(
                dialogue, tokenize=False, chat_template=template, tools=list(tools) or None
            ),
            add_special_tokens=False,
        )
        for template in (DROPS, KEEPS)
    }
    assert ids == rendered[KEEPS][:-1]  # the template ends with a newline
    if "user" in roles:
        assert ids != rendered[DROPS][:-1]
    assert "some model drops the thinking of earlier turns" in made.note
    assert not replies(renderer(tokenizer, KEEPS, tools=tools)).note


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


@pytest.mark.parametrize(
    ("parser", "text", "expected"),
    [
        (
            "pythonic",
            "so [add(a=1)]",
            'so <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
        ),
        (
            "qwen3_coder",
            "<function=add>\n<parameter=a>\n1\n</parameter>\n</function>",
            '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
        ),
        ("pythonic", "no call at all", None),
        ("pythonic", "so add(", "so <tool_call>add(</tool_call>"),
    ],
)
def test_calls_in_a_form_that_mlx_lm_reads_reach_the_environment(
    parser: str, text: str, expected: str | None
) -> None:
    module = importlib.import_module(f"mlx_lm.tool_parsers.{parser}")
    start, end = module.tool_call_start, module.tool_call_end
    content, _, call = text.rpartition(" ") if text.startswith("so ") else ("", "", text)
    written = text if expected is None else f"{content}{' ' * bool(content)}{start}{call}{end}"
    tokenizer = SimpleNamespace(
        tool_call_start=start,
        tool_call_end=end,
        tool_parser=module.parse_tool_call,
        decode=lambda ids: bytes(ids).decode(),
    )
    render: Any = SimpleNamespace(
        tokenizer=tokenizer, template_knows_tools=True, config=TaskConfig()
    )
    read = ReplyTokens(render=render, is_plain=False, controls=None).with_calls
    result = read(list(written.encode()), "the answer", [TOOL])
    assert result == (expected or "the answer")
