"""Posts to an endpoint that scores: bounded in time and size, without redirects or proxies.

The key goes to the address that the user named and nowhere else, and is cut out of messages.
"""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from itertools import count
from socket import SHUT_RDWR, socket
from threading import Timer
from urllib.parse import urlsplit

from grpo_engine.errors import RewardError

LARGEST_REPLY = 16 << 20
LONGEST_QUOTE = 500  # characters of a reply in a message
SHORTEST_KEY = 8  # a shorter one is a placeholder, and occurs in texts by chance
FIRST_PAUSE = 0.5  # seconds before the second try, doubled before each further one
MAY_PASS = (408, 425, 429)  # and all from 500


class HttpError(RewardError):
    """There is no usable reply; `pause` is the wait that the server asks for, if it may pass."""

    def __init__(self, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


class HttpClient:
    """Requests to one address; several threads may use it."""

    def __init__(self, url: str, key: str = "") -> None:
        parts = urlsplit(url)
        if not parts.hostname:
            raise RewardError(f"reward {url}: no host in the address; give http://host:port/path")
        self.name, self._key = parts.netloc.rpartition("@")[2], key
        self._class = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname, parts.port
        self._target = (parts.path or "/") + f"?{parts.query}" * bool(parts.query)
        self._headers = {"Content-Type": "application/json", "User-Agent": "grpo-tui"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if len(self._key) >= SHORTEST_KEY else text

    def post_with_retries(
        self, body: bytes, limit: float, deadline: float, retries: int, begin: Callable[[], None]
    ) -> str:
        """Post until there is a reply; `begin` is called before each try."""
        for tries in count():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            begin()
            try:
                return self.post(body, min(limit, left))
            except HttpError as error:
                if error.pause is None or tries == retries:
                    raise
                pause = max(error.pause, FIRST_PAUSE * 2**tries * random.uniform(1, 1.5))
                if time.monotonic() + pause >= deadline:
                    raise HttpError(f"{error}; no time is left for another try") from None
            time.sleep(pause)
        raise HttpError("there was no time left for a request")

    def post(self, body: bytes, limit: float) -> str:
        """Post once, and return the text of the reply."""
        deadline = time.monotonic() + limit
        connection = self._class(self._host, self._port, timeout=limit)
        try:
            connection.connect()
            # the socket's own limit is for one read
            timer = Timer(deadline - time.monotonic(), _shut, [connection.sock])
            timer.daemon = True
            timer.start()
            try:
                connection.request("POST", self._target, body, self._headers)
                with connection.getresponse() as response:
                    data = response.read(LARGEST_REPLY + 1)
                    left = response.length
            finally:
                timer.cancel()
        except (OSError, HTTPException, ValueError) as error:
            verb = "cannot be reached" if isinstance(error, OSError) else "gave no HTTP reply"
            reason = self.without_key(str(error)[:LONGEST_QUOTE])
            problem = f"{verb} ({reason}); start it, or correct the address"
        else:
            problem = "closed the connection before the end of its reply" if left else ""
            if len(data) > LARGEST_REPLY:
                problem = f"sent more than {LARGEST_REPLY >> 20} MB"
        finally:
            connection.close()
        if time.monotonic() >= deadline:
            problem = f"gave no reply within {limit:.3g} s"
        if problem:
            raise HttpError(f"{self.name} {problem}", 0)
        return self._checked(response, data)

    def _checked(self, response: HTTPResponse, data: bytes) -> str:
        """The text of a reply that is none of an error."""
        text, status = data.decode("utf-8", "replace"), response.status
        if 200 <= status < 300:
            return text
        quote = self.without_key(text)[:LONGEST_QUOTE].strip()
        if 300 <= status < 400:
            quote = "redirects are not followed; give the final address"
        message = f"{self.name} answered {status} {self.without_key(response.reason)}: {quote}"
        may_pass = status in MAY_PASS or status >= 500
        raise HttpError(message, _pause(response.headers.get("Retry-After")) if may_pass else None)


def _shut(connected: socket) -> None:
    """End what waits for this socket in another thread."""
    with suppress(OSError):
        connected.shutdown(SHUT_RDWR)


def _pause(retry_after: str | None) -> float:
    """Seconds that a server asks to wait, as a number or a date; 0 without."""
    try:
        return max(0.0, float(retry_after or 0))
    except ValueError:
        with suppress(ValueError, TypeError):
            return (parsedate_to_datetime(str(retry_after)) - datetime.now(UTC)).total_seconds()
        return 0.0
