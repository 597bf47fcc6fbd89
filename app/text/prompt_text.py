"""Extract the last question of a prompt from the chat template around it."""

import re
from functools import lru_cache

# Turn marks of chat templates: <|im_start|>, <|eot_id|>, <start_of_turn>, [INST], <｜User｜>, <s>.
MARK = re.compile(r"(<[|｜][^<>\n]{1,40}[|｜]>|<(?:start|end)_of_turn>|\[/?INST\]|</?s>|<bos>)")
USER_ROLES = frozenset({"user", "human"})
MODEL_ROLES = frozenset({"assistant", "model"})
OTHER_ROLES = frozenset({"system", "developer", "tool"})
# A template that was decoded without its marks keeps the roles as lines.
ROLE_LINE = re.compile(
    rf"^(?=(?:{'|'.join(sorted(USER_ROLES | MODEL_ROLES | OTHER_ROLES))})$)", re.MULTILINE
)
OPENERS = {
    "[INST]": "user",
    "[/INST]": "assistant",
    "<｜User｜>": "user",
    "<｜Assistant｜>": "assistant",
    "<|user|>": "user",
    "<|assistant|>": "assistant",
    "<|system|>": "system",
}


@lru_cache(maxsize=4096)
def question(prompt: str) -> str:
    """Return the user's last message of a chat prompt; any other prompt unchanged."""
    parts = turns(prompt)
    questions = [text for role, text in parts if role in USER_ROLES]
    if questions:
        return questions[-1]
    texts = [text for role, text in parts if role not in MODEL_ROLES]
    return texts[-1] if MARK.search(prompt) and texts else prompt.strip()


def _asks_in_lines(prompt: str) -> bool:
    """Whether the last line of a prompt without marks asks the model to answer."""
    last = prompt.rstrip().removesuffix("<think>").rstrip().rsplit("\n", 1)
    return len(last) > 1 and last[1].lower() in MODEL_ROLES and not MARK.search(prompt)


def last_question(prompt: str) -> str:
    """Return the question on one line; of a prompt without turns the last line, as a good guess."""
    line = question(prompt)
    if line == prompt.strip():
        line = line.rsplit("\n", 1)[-1]
    return " ".join(line.split())


def turns(prompt: str) -> list[tuple[str, str]]:
    """Return (role, text) of each turn that is not empty."""
    turns, role = list[tuple[str, str]](), ""
    for part in (ROLE_LINE if _asks_in_lines(prompt) else MARK).split(prompt):
        if MARK.fullmatch(part):
            role = OPENERS.get(part, role)
            continue
        first, _, body = part.strip().partition("\n")
        if first.strip().lower() in USER_ROLES | MODEL_ROLES | OTHER_ROLES:
            role, part = first.strip().lower(), body
        if part.strip():
            turns.append((role, part.strip()))
    return turns
