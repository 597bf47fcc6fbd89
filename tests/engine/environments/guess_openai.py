"""Plays `guess` by the package openai."""

import json
import os
import random
import re
import sys
from pathlib import Path

from openai import OpenAI  # type: ignore[import-not-found]

row, client = json.load(sys.stdin), OpenAI()
number = random.Random(int(os.environ["GRPO_TUI_SEED"])).randint(row["low"], row["high"])
messages, guess, guesses = row["prompt"], None, 0
while guess != number:
    stream = client.chat.completions.create(
        model=os.environ["OPENAI_MODEL"], messages=messages, stream=guesses % 2 == 1
    )
    if guesses % 2 == 1:
        answer = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    else:
        answer = stream.choices[0].message.content
    numbers = re.findall(r"-?\d+", answer)
    guess, guesses = int(numbers[-1]) if numbers else None, guesses + 1
    reply = "Guess one number." if guess is None else "higher" if guess < number else "lower"
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": reply}]
Path(os.environ["GRPO_TUI_REWARD"]).write_text(str(max(0.1, 1 - 0.1 * (guesses - 1))))
