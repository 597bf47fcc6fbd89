"""Where the keys of servers go: a whole run of the program beside a server in this process."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("tinker")

from tests.engine.remote.fake_server import MODEL, FakeServer, serving
from tests.engine.tiny import END, write_model

HOSTED = "tml-of-the-hosted-service-5f3a"
SERVER = "tml-of-this-server-81cc"
VARIABLES = {
    "SERVER_KEY": SERVER,
    "TINKER_API_KEY": HOSTED,
    "TINKER_CREDENTIAL_CMD": f"echo {HOSTED}",
    "CLOUDFLARE_ACCESS_CLIENT_ID": HOSTED,
    "CLOUDFLARE_ACCESS_CLIENT_SECRET": HOSTED,
}
# A reward writes what its process was given, and what it sees of all processes.
REWARD = """
import json, os, subprocess
from pathlib import Path

def seen(completions, **_):
    listed = subprocess.run(["ps", "-axo", "command"], capture_output=True, text=True).stdout
    Path(SEEN).write_text(json.dumps({"environment": dict(os.environ), "commands": listed}))
    return [float(len(text)) for text in completions]
"""
COMMANDS = [
    ("report", "keys"),
    ("logs", "keys"),
    ("runs", "--json"),
    ("export", "keys", "--to", "bundle.zip"),
    ("export", "keys", "--what", "rollouts", "--format", "jsonl"),
]


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with serving() as server:
        server.tokens = [65, 66, END]
        yield server


@pytest.mark.slow
def test_keys_go_to_their_server_and_nowhere_else(tmp_path: Path, fake: FakeServer) -> None:
    model, seen = write_model(tmp_path / "model"), tmp_path / "seen.json"
    (tmp_path / "reward.py").write_text(f"SEEN = {str(seen)!r}\n{REWARD}")
    rows = [json.dumps({"prompt": f"say {n}: "}) for n in range(20)]
    (tmp_path / "problems.jsonl").write_text("\n".join(rows))
    changes = {
        "name": "keys",
        "steps": 2,
        "model.path": model,
        "task.name": tmp_path / "problems.jsonl",
        "rewards.functions": json.dumps([f"{tmp_path}/reward.py:seen"]),
        "algorithm.recipe": "reinforce",
        "rollout.prompts": 2,
        "rollout.group_size": 2,
        "rollout.max_new_tokens": 8,
        "evaluation.problems": 2,
        "remote.url": fake.url,
        "remote.model": MODEL,
        "remote.key_env": "SERVER_KEY",
    }
    words = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    env = os.environ | VARIABLES | {"GRPO_TUI_DB": str(tmp_path / "s.db")}
    texts = []
    for command in [("train", *words), *COMMANDS]:
        done = subprocess.run(
            [sys.executable, "-m", "grpo_tui", *command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        texts.append(done.stdout + done.stderr)
    assert len(fake.updates) > 1

    # The server's own key is in one header of its requests, and the hosted one in none.
    sent = {name for headers in fake.headers for name in headers if headers[name] == SERVER}
    assert sent == {"x-api-key"}
    assert HOSTED not in str(fake.headers) + str(fake.bodies)
    assert SERVER not in str(fake.bodies)

    child = json.loads(seen.read_text())
    assert sorted(child["environment"].keys() & VARIABLES.keys()) == []
    assert "grpo_tui" in child["commands"]
    zipfile.ZipFile(tmp_path / "bundle.zip").extractall(tmp_path / "bundle")
    texts += [str(child), *(path.name for path in tmp_path.rglob("*"))]
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"remote" in content for content in contents)
    for key in (HOSTED, SERVER):
        assert not [text for text in texts if key in text]
        assert not [content for content in contents if key.encode() in content]
