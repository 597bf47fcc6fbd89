"""A headless Chromium, driven through a pipe by the DevTools protocol."""

import json
import os
import shutil
import subprocess
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import F_DUPFD, fcntl
from pathlib import Path
from typing import IO, Any, Self

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome") or ""
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
         "--no-first-run", "--hide-scrollbars", "--force-device-scale-factor=1")  # fmt: skip


class Browser:
    """One tab; `errors` are what the console and the policy complained of, `requests` the URLs."""

    def __init__(self, send: int, receive: IO[bytes]) -> None:
        self._send, self._receive = send, receive
        self._buffer, self._last = b"", 0
        self.session = ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Call a method and return its result; events that come meanwhile are kept."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while (reply := self._read()).get("id") != self._last:
            self._keep(reply)
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']}")
        return reply["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = self._receive.read(1 << 16)
            if not part:
                raise RuntimeError("the browser ended")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _keep(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(params["exceptionDetails"])[:500])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
                self.errors.append(str(params["args"])[:500])
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def open(self, path: Path, width: int = 1280, height: int = 900, *, dark: bool = False) -> Self:
        """Open a file and wait until it has drawn itself."""
        self.errors.clear()
        self.requests.clear()
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("document.readyState === 'complete'")
        return self

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, which may be a promise."""
        result = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"])[:1000])
        return result["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait at most ten seconds until an expression is true."""
        poll = f"""new Promise((done) => {{
          const end = Date.now() + 10000;
          const look = () => {{
            let ok = false;
            try {{ ok = {condition}; }} catch (_) {{}}
            if (ok || Date.now() > end) done(!!ok); else setTimeout(look, 20);
          }};
          look();
        }})"""
        assert self.run(poll), condition

    def press(self, *keys: str) -> None:
        """Press keys one after another."""
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39,
                 "ArrowDown": 40, "Home": 36, "End": 35, "Escape": 27}  # fmt: skip
        for key in keys:
            code = codes.get(key, 0)
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            both = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **both)
            self.call("Input.dispatchKeyEvent", type="keyUp", **both)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Move the mouse, or press or release its button."""
        button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Save what is shown, or the whole page, as PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(b64decode(data))


@contextmanager
def browser() -> Iterator[Browser]:
    """Start the browser with an empty profile, and end it."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    ends = [fcntl(fd, F_DUPFD, 10) for fd in (to_read, from_write)]  # 3 and 4 may be taken

    def connect() -> None:
        os.dup2(ends[0], 3)
        os.dup2(ends[1], 4)

    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [PROGRAM, *FLAGS, f"--user-data-dir={profile}"],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": profile},  # the path of a socket must be short
        )
        for fd in ends:
            os.close(fd)
        os.close(to_read)
        os.close(from_write)
        pipe = os.fdopen(from_read, "rb", buffering=0)
        try:
            yield Browser(to_write, pipe)
        finally:
            os.close(to_write)
            pipe.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
