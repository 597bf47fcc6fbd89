"""The messages of stored prompts are those that were rendered, in the words of many templates."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from jinja2 import Environment

from grpo_engine.rollouts.prompts import CHATML, Opening, conversation
from grpo_engine.tasks.base import Example, Message, Task
from grpo_tui.app.datasets.prompts import ChatPrompt, LeftOutError, as_shown, from_text

# As the templates of Llama 3, Gemma (which has no system message), Mistral and DeepSeek-R1.
LLAMA = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n"
)
GEMMA = (
    "<bos>{% set first = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}"
    "{% for m in messages if m.role != 'system' %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ first if loop.first else '' }}"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
)
MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'system' %}[INST] {{ m.content }}\n\n"
    "{% elif m.role == 'user' %}{{ '' if loop.previtem and loop.previtem.role == 'system' "
    "else '[INST] ' }}{{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
DEEPSEEK = (
    "<｜begin▁of▁sentence｜>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'user' %}<｜User｜>{{ m.content }}{% else %}<｜Assistant｜>{{ m.content }}"
    "<｜end▁of▁sentence｜>{% endif %}{% endfor %}<｜Assistant｜><think>\n"
)
VICUNA = "{% for m in messages %}{{ m.role | upper }}: {{ m.content }}\n{% endfor %}ASSISTANT: "
TEMPLATES = {
    "chatml": CHATML,
    "llama": LLAMA,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "deepseek": DEEPSEEK,
    "vicuna": VICUNA,
}
MARKED = ("chatml", "llama", "gemma", "deepseek")
SYSTEM: Message = {"role": "system", "content": "Answer in one word."}
ASKED: Message = {"role": "user", "content": "  What is 2 + 2?\n\nAnd 3?"}
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds {a}.", "parameters": {"type": "object"}},
}


def rendered(template: str, messages: Sequence[Message], **values: Any) -> str:
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    values = {"messages": messages, "add_generation_prompt": True, **values}
    return environment.from_string(template).render(**values)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", [(ASKED,), (SYSTEM, ASKED)])
def test_the_messages_of_a_problem_are_found_in_what_a_template_made(
    name: str, messages: tuple[Message, ...]
) -> None:
    chat = as_shown(messages, rendered(TEMPLATES[name], messages), "", replies=False)
    assert chat is not None
    assert chat.messages == messages
    assert chat.prefill == ("<think>\n" if name == "deepseek" else "")


@pytest.mark.parametrize("name", TEMPLATES)
def test_another_problem_is_not_taken_for_the_one_that_was_asked(name: str) -> None:
    text = rendered(TEMPLATES[name], (SYSTEM, ASKED))
    other = {"role": "user", "content": "What is 2 + 3?"}
    assert as_shown((SYSTEM, other), text, "", replies=False) is None
    assert as_shown((ASKED, SYSTEM), text, "", replies=False) is None


@pytest.mark.parametrize("name", MARKED)
def test_what_an_environment_added_to_a_prompt_is_part_of_it(name: str) -> None:
    further = {"role": "user", "content": "The board is empty."}
    opening = Opening(text=" Begin.", messages=(further,) if name != "gemma" else ())
    whole = opening.after((SYSTEM, ASKED))
    assert not isinstance(whole, str)
    text = rendered(TEMPLATES[name], whole)
    chat = as_shown((SYSTEM, ASKED), text, "", replies=True)
    assert chat is not None
    assert chat.messages == whole


def test_an_addition_that_no_mark_tells_apart_is_refused() -> None:
    text = rendered(VICUNA, Opening(text=" Begin.").after((ASKED,)))  # type: ignore[arg-type]
    assert as_shown((ASKED,), text, "", replies=True) is None
    repeated = rendered(CHATML, (ASKED, ASKED))
    assert as_shown((ASKED,), repeated, "", replies=True) is None


@pytest.mark.parametrize("prefill", ["Let me see: ", "<answer>"])
def test_the_beginning_of_an_answer_is_no_message_of_the_prompt(prefill: str) -> None:
    prompt = conversation(
        Task(name="t", train=(), prefill=prefill), Example(key="", prompt=(ASKED,))
    )
    text = rendered(CHATML, (ASKED,)) + prefill
    assert as_shown(prompt, text, prefill, replies=False) == ChatPrompt(
        messages=(ASKED,), prefill=prefill
    )
    assert as_shown(prompt, rendered(CHATML, (ASKED,)), prefill, replies=False) is None


def test_a_text_prompt_is_one_message_of_the_user_without_its_prefill() -> None:
    chat = as_shown("2 + 2 = ?\nA: ", "2 + 2 = ?\nA: ", "A: ", replies=False)
    assert chat == ChatPrompt(
        messages=({"role": "user", "content": "2 + 2 = ?\n"},), prefill="A: ", is_text=True
    )


@pytest.mark.parametrize("indent", [None, 4])
def test_tools_are_taken_from_the_prompt_that_lists_them(indent: int | None) -> None:
    whole = {"role": "system", "content": f"{SYSTEM['content']}\n{json.dumps(TOOL, indent=indent)}"}
    text = rendered(CHATML, (whole, ASKED))
    chat = as_shown((SYSTEM, ASKED), text, "", replies=True)
    assert chat == ChatPrompt(messages=(SYSTEM, ASKED), tools=(TOOL,))
    with pytest.raises(LeftOutError, match="lists tools"):
        from_text(text)


@pytest.mark.parametrize("name", MARKED)
def test_a_prompt_whose_problem_is_unknown_is_taken_apart_by_the_marks(name: str) -> None:
    messages = (ASKED,) if name in ("gemma", "deepseek") else (SYSTEM, ASKED)
    chat = from_text(rendered(TEMPLATES[name], messages))
    assert [m["role"] for m in chat.messages] == [m["role"] for m in messages]
    assert chat.messages[-1]["content"] == "What is 2 + 2?\n\nAnd 3?"
    assert chat.prefill == ("<think>\n" if name == "deepseek" else "")


def test_text_of_a_template_is_in_no_message() -> None:
    for text in (rendered(DEEPSEEK, (SYSTEM, ASKED)), "<|im_start|>", "<s>once upon a time"):
        with pytest.raises(LeftOutError, match="cannot be taken out of its chat template"):
            from_text(text)


def test_roles_that_another_trainer_recorded_are_roles() -> None:
    chat = from_text("system: Be brief.\nuser: What is\nuser or root?")
    assert chat.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is\nuser or root?"},
    )
    assert from_text("What is 2 + 2?") == ChatPrompt(
        messages=({"role": "user", "content": "What is 2 + 2?"},), is_text=True
    )
