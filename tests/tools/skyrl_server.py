"""SkyRL's server on this machine's processor, in the environment of `skyrl_environment`.

    python -m tests.tools.skyrl_server start MODEL FOLDER [PORT]   # prints its address
    python -m tests.tools.skyrl_server stop FOLDER

MODEL is a folder in transformers' format, and also the server's name of the model. FOLDER gets the
server's database, checkpoints, log and process id; a server that is started there again goes on
with them.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from tests.tools.skyrl_environment import HOME, make

# Batches of one size, since JAX compiles for each new number of rows.
BACKEND = {
    "max_lora_adapters": 8,
    "max_lora_rank": 32,
    "train_micro_batch_size": 16,
    "sample_max_num_sequences": 64,
}
PATIENCE = 300  # seconds for the imports, and for loading the model


def start(model: Path, folder: Path, port: int = 8123) -> str:
    """Start the server and wait until it answers; returns its address."""
    python, folder, model = make(HOME), folder.resolve(), model.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(python.parent / "uv", "run", "--no-project", "--python", python),
        *("-m", "skyrl.tinker.api", "--base-model", model, "--backend", "jax"),
        *("--backend-config", json.dumps(BACKEND), "--host", "127.0.0.1", "--port", port),
        *("--database-url", f"sqlite:///{folder}/server.db"),
        *("--checkpoints-base", folder / "checkpoints"),
    ]
    env = os.environ | {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "UV_NO_CONFIG": "1",
    }
    with (folder / "log").open("ab") as log:
        server = subprocess.Popen(
            [str(word) for word in command],
            env=env,
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (folder / "pid").write_text(str(server.pid))
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(f"{url}/api/v1/healthz", timeout=5):
            return url
        time.sleep(1)
    raise SystemExit(f"The server did not start; see {folder / 'log'}.")


def stop(folder: Path, number: int = signal.SIGTERM) -> None:
    """End the server's two processes."""
    with suppress(ProcessLookupError):
        os.killpg(int((folder / "pid").read_text()), number)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["start", model, folder]:
            print(start(Path(model), Path(folder)))
        case ["start", model, folder, port]:
            print(start(Path(model), Path(folder), int(port)))
        case ["stop", folder]:
            stop(Path(folder))
        case _:
            raise SystemExit(__doc__)
