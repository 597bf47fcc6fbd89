"""A reward model behind the user's HTTP endpoint, as a reward function.

It gets `{"prompts": […], "completions": […], "completion_ids": […], "columns": {…}}` by POST and
responds with `{"rewards": [0.5, null, …]}` or the bare list.
"""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from grpo_engine.errors import RewardError
from grpo_engine.rewards.http_client import HttpClient

# A call that hangs is ended by the worker's time limit.
TIME_LIMIT = 3600.0


class Endpoint:
    """Calls the address for every batch."""

    def __init__(self, url: str) -> None:
        self._client = HttpClient(url)
        parts = urlsplit(url)
        self.__name__ = parts.path.strip("/").rpartition("/")[2] or str(parts.hostname)

    async def __call__(
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
        text = await self._client.post(json.dumps(body).encode(), TIME_LIMIT)
        try:
            answer = json.loads(text)
            return answer["rewards"] if isinstance(answer, dict) else answer
        except (ValueError, KeyError):
            raise RewardError(
                f'{self._client.name} answered {text[:80]!r}; it should answer {{"rewards": […]}}'
            ) from None
