"""A reward model behind the user's HTTP endpoint, as a reward function.

It gets `{"prompts": […], "completions": […], "completion_ids": […], "columns": {…}}` by POST and
responds with `{"rewards": [0.5, null, …]}` or the bare list.
"""

import json
from collections.abc import Sequence
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from grpo_engine.errors import RewardError

LARGEST_ANSWER = 64 << 20
# A call that hangs is ended by the worker's time limit.
SOCKET_TIMEOUT = 3600.0


class Endpoint:
    """Calls the address for every batch; proxies of the environment are not used."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if not parts.hostname:
            raise RewardError(f"reward {url}: no host in the address; give http://host:port/path")
        self.url = url
        self.__name__ = parts.path.strip("/").rpartition("/")[2] or parts.hostname
        self._open = build_opener(ProxyHandler({})).open

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        trainer_state: Any = None,
        log_extra: Any = None,  # noqa: ARG002 - named to keep it out of the columns
        log_metric: Any = None,  # noqa: ARG002 - TRL passes it
        **columns: Any,
    ) -> Any:
        """Send the batch and return the scores unchecked."""
        body = {
            "prompts": prompts,
            "completions": completions,
            "completion_ids": completion_ids,
            "columns": columns,
            "step": getattr(trainer_state, "global_step", 0),
        }
        request = Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with self._open(request, timeout=SOCKET_TIMEOUT) as reply:
                data = reply.read(LARGEST_ANSWER)
        except HTTPError as error:
            with error:
                text = error.read(500).decode("utf-8", "replace").strip()
            raise RewardError(f"{self.url} answered {error.code} {error.reason}: {text}") from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise RewardError(f"{self.url} cannot be reached ({reason}); is it running?") from None
        return self._scores(data)

    def _scores(self, data: bytes) -> Any:
        try:
            answer = json.loads(data)
            return answer["rewards"] if isinstance(answer, dict) else answer
        except (ValueError, KeyError):
            text = data[:80].decode("utf-8", "replace")
            raise RewardError(
                f'{self.url} answered {text!r}; it should answer {{"rewards": […]}}'
            ) from None
