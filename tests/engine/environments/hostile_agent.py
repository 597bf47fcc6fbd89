"""A program that does what its row says: it behaves, or it harms its rollout or its machine."""

import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

row: Any = json.load(sys.stdin)
URL, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
REWARD, HOME = Path(os.environ["GRPO_TUI_REWARD"]), Path.home()
USER = {"role": "user", "content": "hello"}


def post(messages: list[Any], key: str = KEY, **more: Any) -> tuple[int, Any]:
    request = Request(
        URL + "/chat/completions",
        json.dumps({"messages": messages, **more}).encode(),
        {"Authorization": f"Bearer {key}"},
    )
    try:
        with urlopen(request) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


def score(value: Any) -> None:
    REWARD.write_text(json.dumps(value))


def talk(turns: int, **more: Any) -> list[Any]:
    messages = [USER]
    for _ in range(turns):
        _, body = post(messages, **more)
        messages += [body["choices"][0]["message"], {"role": "user", "content": "and?"}]
    return messages


ODD_REQUESTS: dict[str, Any] = {
    "half a character": {"messages": [{"role": "user", "content": "\ud800"}]},
    "many tokens": {"messages": [USER], "max_tokens": 10**4000},
    "deep arguments": {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": "[" * 900 + "]" * 900}}],
            },
            USER,
        ]
    },
    "odd tools": {"messages": [USER], "tools": [{"function": {"name": "\ud800", "x": [[]] * 99}}]},
    "odd calls": {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": {"a": []}, "arguments": "{}"}}],
            },
            USER,
        ]
    },
}
kind = row["kind"]
if kind == "behaves":
    score(len(talk(3)))
elif kind == "asks nothing":
    print("the board is missing", file=sys.stderr)
    sys.exit(7)
elif kind == "never asks":
    time.sleep(1000)
elif kind == "never ends":
    talk(1)
    time.sleep(1000)
elif kind == "ends as failed":
    talk(1)
    sys.exit(1)
elif kind == "raises":
    talk(1)
    raise ValueError("bang")
elif kind == "notes an error":
    talk(1)
    try:
        json.loads("handled")
    except ValueError:
        traceback.print_exc()
    sys.exit("a wrong answer")
elif kind == "is refused":
    talk(1)
    post([USER], n=2)
    sys.exit(3)
elif kind == "begins refused":
    post([USER], temperature=0.2)
elif kind == "goes on until it fails":
    talk(9)
elif kind == "ends well":
    talk(1)
elif kind == "breaks":
    talk(1)
    os.kill(os.getpid(), 11)
elif kind == "a reward in words":
    talk(1)
    score("much")
elif kind == "several numbers":
    talk(1)
    score({"reward": 0.5, "moves": 3, "note": "x"})
elif kind == "floods":
    codes: Counter[int] = Counter()

    def flood() -> None:
        codes.update([post([USER])[0]])
        if codes[429] == row["refused"]:
            Path(row["mark"]).touch()

    asking = [threading.Thread(target=flood) for _ in range(60)]
    print("x" * 3_000_000, file=sys.stderr)
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    score({"reward": 1, "answered": codes[200], "refused": codes[429], "over": codes[400]})
elif kind == "forgets":
    for number in range(3):
        post([{"role": "user", "content": f"question {number}"}], max_tokens=5, stop=["x"])
elif kind == "goes on":
    messages = talk(2)
    while (answer := post(messages))[0] == 200:
        messages += [answer[1]["choices"][0]["message"], USER]
    score({"reward": 0.25, "refused": answer[0]})
elif kind == "guesses a key":
    talk(1)
    codes = Counter([post([USER], "guess")[0], post([USER], KEY[:-1])[0], post([USER], "")[0]])
    score({"reward": 1, "refused": codes[401]})
elif kind == "leaves a child":
    os.system(f"(sleep 4321; : {__file__}) &")
    talk(1)
elif kind == "reports usage":
    _, body = post([USER])
    score({"reward": 1, **body["usage"], "cut": body["choices"][0]["finish_reason"]})
else:
    post(**ODD_REQUESTS.get(kind, {"messages": [USER]}))
if kind == "a fifo":
    os.mkfifo(REWARD)
elif kind == "zeros":
    REWARD.symlink_to("/dev/zero")
elif kind == "a hole":
    with REWARD.open("wb") as file:
        file.truncate(40 << 30)
elif kind == "a folder":
    REWARD.mkdir()
elif kind == "a loop":
    REWARD.symlink_to(REWARD)
elif kind == "unreadable":
    REWARD.symlink_to("/proc/self/mem")
elif kind == "many numbers":
    REWARD.write_text(json.dumps({"reward": 1, **{f"k{n}\x1b]0;x\x07": n for n in range(5000)}}))
elif kind == "digits":
    REWARD.write_text("9" * 5000)
elif kind == "deep":
    os.chdir(HOME)
    for _ in range(3000):
        Path("d").mkdir()
        os.chdir("d")
elif kind == "a link as home":
    shutil.rmtree(HOME)
    HOME.symlink_to(row["precious"])
elif kind == "no home":
    shutil.rmtree(HOME)
elif kind == "a file as home":
    shutil.rmtree(HOME)
    HOME.touch()
elif kind == "ends its parent":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)
elif kind == "ends its group":
    os.kill(0, signal.SIGKILL)
