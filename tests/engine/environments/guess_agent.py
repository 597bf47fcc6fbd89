"""Plays `guess` by the standard library alone."""

import json
import os
import random
import re
import sys
from pathlib import Path
from urllib.request import Request, urlopen

row = json.load(sys.stdin)
number = random.Random(int(os.environ["GRPO_TUI_SEED"])).randint(row["low"], row["high"])


def ask(messages: list[dict[str, str]]) -> str:
    request = Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"messages": messages, "temperature": 1.0}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urlopen(request) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


messages, guess, guesses = row["prompt"], None, 0
while guess != number:
    answer = ask(messages)
    numbers = re.findall(r"-?\d+", answer)
    guess, guesses = int(numbers[-1]) if numbers else None, guesses + 1
    reply = "Guess one number." if guess is None else "higher" if guess < number else "lower"
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": reply}]
Path(os.environ["GRPO_TUI_REWARD"]).write_text(str(max(0.1, 1 - 0.1 * (guesses - 1))))
