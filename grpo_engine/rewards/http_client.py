"""Posts to a judge's endpoint: bounded in time and size, without redirects or proxies.

The key goes to the address that the user named and nowhere else, and is cut out of messages.
"""

import asyncio
import random
import re
import ssl
import time
from functools import partial
from itertools import count

import httpx2

from grpo_engine.errors import RewardError

LARGEST_REPLY = 16 << 20
LONGEST_QUOTE = 500  # characters of a reply in a message
SHORTEST_KEY = 8  # A shorter one is a placeholder, and occurs in texts by chance.
FIRST_PAUSE = 0.5  # seconds, doubled before each further try
TEMPORARY = (408, 425, 429)  # besides all statuses from 500


class HttpError(RewardError):
    """There is no usable reply; `pause` is the wait that the server asks for, if it may pass."""

    def __init__(self, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


class HttpClient:
    """Requests to one address; `calls` counts them."""

    def __init__(self, url: str, key: str = "") -> None:
        address = httpx2.URL(url)
        self.name, self._url, self.calls = address.netloc.decode(), address, 0
        # JSON may spell any character by its number, also within a text that is JSON itself.
        spelled = (rf"\\{{0,4}}(?:{re.escape(letter)}|u(?i:{ord(letter):04x}))" for letter in key)
        self._key = re.compile("".join(spelled)) if len(key) >= SHORTEST_KEY else None
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "grpo-tui",
            "Accept-Encoding": "identity",
        }
        if key:
            headers["Authorization"] = f"Bearer {key}"
        self._open = partial(
            httpx2.AsyncClient,
            headers=headers,
            trust_env=False,
            timeout=None,
            verify=ssl.create_default_context(),
        )

    def without_key(self, text: str) -> str:
        return self._key.sub("[key]", text) if self._key else text

    async def post_with_retries(
        self, body: bytes, limit: float, deadline: float, retries: int
    ) -> str:
        """Post until there is a reply."""
        for tries in count():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                return await self.post(body, min(limit, left))
            except HttpError as error:
                if error.pause is None or tries == retries:
                    raise
                pause = max(error.pause, FIRST_PAUSE * 2**tries * random.uniform(1, 1.5))
                if time.monotonic() + pause >= deadline:
                    raise HttpError(f"{error}; no time is left for another try") from None
            await asyncio.sleep(pause)
        raise HttpError("there was no time left for a request")

    async def post(self, body: bytes, limit: float) -> str:
        """Post once, and return the text of the reply."""
        self.calls += 1
        data = bytearray()
        try:
            async with (
                asyncio.timeout(limit),
                self._open() as client,
                client.stream("POST", self._url, content=body) as response,
            ):
                async for part in response.aiter_raw():
                    data += part
                    if len(data) > LARGEST_REPLY:
                        raise self._error(f"sent more than {LARGEST_REPLY >> 20} MB", 0)
        except TimeoutError:
            raise self._error(f"gave no reply within {limit:.3g} s", 0) from None
        except httpx2.TransportError as error:
            problem = f"gave no HTTP reply ({error}); start it, or correct the address"
            raise self._error(problem, 0) from None
        text, status = data.decode("utf-8", "replace"), response.status_code
        if response.is_success:
            return text
        if response.is_redirect:
            text = "redirects are not followed; give the final address"
        may_pass = status in TEMPORARY or status >= 500
        seconds = response.headers.get("Retry-After", "")
        pause = (float(seconds) if seconds.isdecimal() else 0.0) if may_pass else None
        raise self._error(f"answered {status} {response.reason_phrase}: {text.strip()}", pause)

    def _error(self, problem: str, pause: float | None) -> HttpError:
        return HttpError(self.without_key(f"{self.name} {problem}")[:LONGEST_QUOTE], pause)
