"""A program that does harm beyond its requests, as its row says."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

row: Any = json.load(sys.stdin)
REWARD, HOME = Path(os.environ["GRPO_TUI_REWARD"]), Path.home()
USER = {"role": "user", "content": "hello"}


def post(**body: Any) -> int:
    request = Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    try:
        with urlopen(request) as response:
            return int(response.status)
    except HTTPError as error:
        return error.code


kind = row["kind"]
requests: dict[str, Any] = {
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
post(**requests.get(kind, {"messages": [USER]}))
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
