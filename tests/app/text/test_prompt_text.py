"""The question is found in the prompts of common chat templates."""

import pytest

from grpo_tui.app.text.prompt_text import last_question, question

CHATML = "<|im_start|>user\nWhat is 42 - 17?<|im_end|>\n<|im_start|>assistant\n"
LLAMA = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nWhat is 42 - 17?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
GEMMA = (
    "<bos><start_of_turn>user\nWhat is 42 - 17?<end_of_turn>\n<start_of_turn>model\nLet me see: "
)
DEEPSEEK = "<｜begin▁of▁sentence｜>Be brief.<｜User｜>What is 42 - 17?<｜Assistant｜><think>\n"


@pytest.mark.parametrize(
    "prompt",
    [
        CHATML,
        LLAMA,
        GEMMA,
        DEEPSEEK,
        "<s>[INST] What is 42 - 17? [/INST]",
        "<|user|>\nWhat is 42 - 17?\n<|assistant|>\n",
        "<|im_start|>user\nWhat is 1 + 1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n" + CHATML,
    ],
)
def test_the_last_question_is_found(prompt: str) -> None:
    assert question(prompt) == "What is 42 - 17?"
    assert last_question(prompt) == "What is 42 - 17?"


def test_a_long_question_keeps_its_lines_and_is_one_line_in_a_list() -> None:
    prompt = CHATML.replace("42", "\n  40 and 2")
    assert question(prompt) == "What is \n  40 and 2 - 17?"
    assert last_question(prompt) == "What is 40 and 2 - 17?"


def test_roles_on_lines_of_their_own_are_turns_where_the_last_asks_the_model() -> None:
    """As verl writes a prompt: decoded without special tokens."""
    prompt = "system\nBe brief.\nuser\nWhat is 42 - 17?\nassistant\n"
    assert last_question(prompt) == "What is 42 - 17?"
    assert last_question(f"{prompt}<think>\n") == "What is 42 - 17?"
    assert last_question("user\nassistant of whom?") == "assistant of whom?"


def test_a_prompt_without_turns_is_its_own_question() -> None:
    assert question("Q: 1+1?\nA: 2\nQ: 2+2?\nA:") == "Q: 1+1?\nA: 2\nQ: 2+2?\nA:"
    assert last_question("A story.\n\nWhat is 42 - 17?\n") == "What is 42 - 17?"
    assert last_question("") == ""


def test_text_that_only_looks_like_a_turn_is_kept() -> None:
    assert last_question("user") == "user"
    assert last_question("if a <b and c> d, what is d?") == "if a <b and c> d, what is d?"
