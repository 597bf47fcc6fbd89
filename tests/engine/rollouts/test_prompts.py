from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.rollouts.prompts import (
    PromptRenderer,
    reward_completion,
    reward_prompt,
)
from grpo_engine.rollouts.row import token_ends
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.tasks.base import Example, Task, user_message
from tests.engine.byte_tokenizer import CHATML, byte_tokenizer

TRIMMING = CHATML.replace("m.content }}", "m.content | trim }}")
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + CHATML
)


def task(**fields: Any) -> Task:
    given = {"train": (), "held_out": (), "name": "t", "description": "", "fingerprint": ""}
    return Task(**{**given, **fields})


def example(prompt: Any = None, where: str = "") -> Example:
    return Example(key="k1", prompt=prompt or user_message("2+2?"), where=where)


def renderer(
    template: str | None = CHATML, settings: dict[str, Any] | None = None, **fields: Any
) -> PromptRenderer:
    own = {k: fields.pop(k) for k in ("context", "max_new_tokens", "vocabulary") if k in fields}
    config = TaskConfig(**(settings or {}))
    return PromptRenderer(byte_tokenizer(template), task(**fields), config, "tiny", **own)


def test_messages_go_through_the_chat_template_and_ids_are_those_of_the_text() -> None:
    made = renderer(system_prompt="Be brief.")
    shown = made(example())
    assert shown.text == "<|system|>Be brief.<|end|><|user|>2+2?<|end|><|assistant|>"
    assert list(shown.ids) == made.tokenizer.encode(shown.text, add_special_tokens=False)
    assert shown.prompt == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
    )


PLAIN = {"chat_template": "plain"}
THINK = {"chat_template_kwargs": {"think": True}}
MINE = ({"role": "system", "content": "Mine."}, *user_message("hi"))
BEGUN = (*user_message("hi"), {"role": "assistant", "content": "I say"})
BRIEF = renderer(system_prompt="Be brief.")
PLAIN_BRIEF = renderer(None, PLAIN, system_prompt="Be brief.", prefill="It is")


@pytest.mark.parametrize(
    ("render", "prompt", "expected"),
    [
        (BRIEF, MINE, "<|system|>Mine.<|end|><|user|>hi<|end|><|assistant|>"),
        (renderer(settings=THINK), "", "<|user|>2+2?<|end|><|assistant|><think>"),
        (renderer(), BEGUN, "<|user|>hi<|end|><|assistant|>I say"),
        (renderer(), "2+2=", "2+2="),
        (renderer(prefill=" 4"), "2+2=", "2+2= 4"),
        (BRIEF, "2+2=", "<|system|>Be brief.<|end|><|user|>2+2=<|end|><|assistant|>"),
        (renderer(None, PLAIN), "", "2+2?\n"),
        (PLAIN_BRIEF, "", "Be brief.\n\n2+2?\nIt is"),
    ],
)
def test_a_prompt_reaches_the_model_in_its_form(
    render: PromptRenderer, prompt: Any, expected: str
) -> None:
    assert render(example(prompt)).text == expected


@pytest.mark.parametrize(
    ("render", "prompt", "message"),
    [
        (renderer("{{ '' }}"), None, "problem k1: the prompt is empty"),
        (
            renderer(settings={"max_prompt_tokens": 8}, context=100),
            "x" * 9,
            r"has 9 tokens, more than task\.max_prompt_tokens 8",
        ),
    ],
)
def test_a_prompt_that_cannot_be_used_is_named(
    render: PromptRenderer, prompt: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        render(example(prompt))


def test_a_token_that_the_model_does_not_know_is_refused_with_its_row() -> None:
    ids = renderer()(example()).ids
    assert renderer(vocabulary=max(ids) + 1)(example()).ids == ids
    with pytest.raises(DataError, match=f"row 7: token {max(ids)} .* is beyond the {max(ids)} "):
        renderer(vocabulary=max(ids))(example(where="row 7"))


@pytest.mark.parametrize("template", [CHATML, TRIMMING])
@pytest.mark.parametrize("prefill", ["So", "So ", "<think>\n"])
def test_a_prefill_is_continued_and_not_closed(template: str, prefill: str) -> None:
    shown = renderer(template, prefill=prefill)(example())
    assert shown.text == f"<|user|>2+2?<|end|><|assistant|>{prefill}"
    assert shown.prompt[-1] == {"role": "assistant", "content": prefill}


def test_a_template_without_system_role_gets_the_text_before_the_first_question() -> None:
    made = renderer(NO_SYSTEM, system_prompt="Be brief.", train=(example(),))
    assert made(example()).text == "<|user|>Be brief.\n\n2+2?<|end|><|assistant|>"
    _, (note,) = made.usable()
    assert "tiny takes no system message" in note


def test_text_prompts_beside_a_chat_template_are_said_to_go_without_it() -> None:
    texts, chats = (example("2+2="),), (example(),)
    (note,) = renderer(train=texts).usable()[1]
    assert note.startswith("the prompts are text, and tiny gets them as they are, without its chat")
    assert "task.options.chat true" in note
    (note,) = renderer(train=texts, system_prompt="Be brief.").usable()[1]
    assert "there is a system prompt (task.system_prompt), they reach tiny as a user's" in note
    for settled in (
        renderer(train=chats),
        renderer(None, train=texts),
        renderer(settings={"chat_template": "plain"}, train=texts),
        # a chat endpoint is asked, whose messages go through the template
        renderer(settings={"environment": "agent: python counts.py"}, train=texts),
        renderer(settings={"name": "verifiers:gsm8k"}, train=texts),
    ):
        assert settled.usable()[1] == ()
    # a template that is set and not used is said as well
    assert renderer(None, {"chat_template": "t.jinja"}, train=texts).usable()[1]


def test_without_a_chat_template_messages_are_an_error_with_three_remedies() -> None:
    with pytest.raises(DataError) as caught:
        renderer(None)(example())
    message = str(caught.value)
    assert "tiny has no chat template" in message
    assert "set task.chat_template to `plain` or to a Jinja file" in message
    assert renderer(None)(example("text")).text == "text"


def test_a_template_file_is_used_and_a_missing_one_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert renderer(None, {"chat_template": str(path)})(example()).text == "[2+2?]"
    with pytest.raises(DataError, match=r"nowhere\.jinja' cannot be read"):
        renderer(None, {"chat_template": "nowhere.jinja"})(example())


def test_a_template_that_refuses_says_where_and_why() -> None:
    with pytest.raises(DataError, match=r"d\.jsonl:3: the chat template of tiny refuses") as caught:
        renderer("{{ raise_exception('odd roles') }}")(example(where="d.jsonl:3"))
    assert "odd roles" in str(caught.value)


def test_a_prompt_that_leaves_no_room_in_the_context_is_named_before_training() -> None:
    # 20 bytes and a context of 24 leave 4 tokens for the answer
    rows = (example("x" * 20, where="d.jsonl:1"), example("y" * 21, where="d.jsonl:2"))
    made = renderer(context=24, max_new_tokens=4, train=rows)
    with pytest.raises(DataError) as caught:
        made.usable()
    message = str(caught.value)
    assert "d.jsonl:2: the prompt has 21 tokens" in message
    assert "a context of 24 less rollout.max_new_tokens 4" in message
    assert "lower rollout.max_new_tokens" in message


def test_rewards_see_the_forms_that_trl_gives_them() -> None:
    assert reward_prompt("p") == "p"
    assert reward_completion("p", "c") == "c"
    messages = user_message("p")
    assert reward_prompt(messages) == [{"role": "user", "content": "p"}]
    assert reward_completion(messages, "c") == [{"role": "assistant", "content": "c"}]


def answer_of(ids: list[int]) -> Trajectory:
    def decode(ids: Sequence[int]) -> str:
        return str(TOKENIZER.decode(list(ids), skip_special_tokens=True))

    text = decode(ids)
    return Trajectory(
        key="",
        group=0,
        index=0,
        attempt=0,
        prompt_ids=(),
        ids=tuple(ids),
        logprobs=(),
        raw_logprobs=(),
        finish="stop",
        text=text,
        ends=token_ends(ids, text, decode),
    )


def test_an_end_inside_a_character_of_several_bytes_waits_for_all_of_them() -> None:
    answer = answer_of(TOKENIZER.encode("a€b<|end|>"))  # 1 + 3 + 1 bytes, then the end token
    assert len(answer.ids) == 6
    assert [answer.token_at(end) for end in (1, 2)] == [0, 3]
    # the end of the text includes the end token, which has no text
    assert [answer.token_at(end) for end in (3, 99)] == [5, 5]


@settings(max_examples=40)
@given(
    st.text(
        st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=20
    )
)
def test_each_character_end_is_at_the_token_that_completes_it(text: str) -> None:
    answer = answer_of(TOKENIZER.encode(text, add_special_tokens=False))
    ends = range(1, len(answer.text))
    expected = [len(answer.text[:end].encode()) - 1 for end in ends]
    assert list(map(answer.token_at, ends)) == expected


TOKENIZER = byte_tokenizer()
