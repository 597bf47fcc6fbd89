"""Templates that would loop, fill the memory or write endlessly are refused before training."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError, ModelError
from grpo_engine.rollouts.prompts import PromptRenderer
from grpo_engine.tasks.base import Example, Prompt, Task, user_message
from tests.engine.byte_tokenizer import CHATML, byte_tokenizer

LONG = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = (
    "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}"
    "{{ n.x }}"
)
WIDE = "{{ 'x' * 3000000 }}"
ASKED = user_message("2+2?")
DEEP = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"


def render(template: str, prompt: Prompt = ASKED, **settings: Any) -> str:
    problem = Example(key="k", prompt=prompt, where="d.jsonl:3")
    task = Task(name="t", description="", train=(problem,), held_out=(), fingerprint="")
    return PromptRenderer(byte_tokenizer(template), task, TaskConfig(**settings), "m")(problem).text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "said"),
    [
        (LONG, "needs more than 2 s for one prompt"),
        (DOUBLED, "needs more than"),  # memory, or time where pages are slow to get
        (WIDE, "makes 3.0 MB of text for one prompt"),
        (DEEP, "refuses these messages (maximum recursion depth"),
        ("{% if not add_generation_prompt %}{{ 'x' * 3000000 }}{% endif %}", ""),
    ],
)
def test_a_template_without_end_is_refused_with_the_remedy(template: str, said: str) -> None:
    if not said:  # what is never asked for is never tried
        with pytest.raises(DataError, match="the prompt is empty"):
            render(template)
        return
    with pytest.raises((DataError, ModelError)) as caught:
        render(template)
    assert said in str(caught.value)
    assert "the chat template of m" in str(caught.value)
    assert "set task.chat_template to `plain` or a file" in str(caught.value)


def test_how_a_prefill_is_continued_is_tried_as_well() -> None:
    begun = ({"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "So"})
    with pytest.raises(ModelError, match=r"makes 3\.0 MB of text"):
        render("{% if not add_generation_prompt %}{{ 'x' * 3000000 }}{% endif %}", begun)


def test_the_file_that_holds_the_template_is_named(tmp_path: Path) -> None:
    file = tmp_path / "loops.jinja"
    file.write_text(WIDE)
    with pytest.raises(ModelError, match=rf"the chat template {file} makes 3\.0 MB"):
        render(CHATML, chat_template=str(file))
    byte_tokenizer(WIDE).save_pretrained(tmp_path / "model")
    from transformers import AutoTokenizer

    kind: Any = AutoTokenizer
    tokenizer = kind.from_pretrained(tmp_path / "model")
    problem = Example(key="k", prompt=user_message("2+2?"))
    task = Task(name="t", description="", train=(problem,), held_out=(), fingerprint="")
    with pytest.raises(ModelError, match=r"model/(chat_template\.jinja|tokenizer_config\.json)\)"):
        PromptRenderer(tokenizer, task, TaskConfig(), "m")(problem)


def test_a_template_is_tried_once_for_equal_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    render(CHATML)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert render(CHATML, user_message("3+3?")).startswith("<|user|>3+3?")
    with pytest.raises(DataError, match="not callable"):
        render(CHATML, ({"role": "tool", "content": "4"}, *ASKED))


def test_what_transformers_offers_to_templates_can_be_used() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'none' %}{% break %}{% endif %}"
        "{{ m | tojson }}{% generation %}{{ strftime_now('%Y') | length }}{% endgeneration %}"
        "{% endfor %}"
    )
    text = render(template)
    assert json.loads(text[:-1]) == {"role": "user", "content": "2+2?"}
