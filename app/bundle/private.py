"""Takes out of a record what says where and by whom it was made: home folders, host and user.

Prompts, answers and targets stay as the run has them: tokens are found in them by position.
"""

import getpass
import re
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from grpo_engine import events as ev

HOMES = re.compile(r"(?:/home|/Users|[A-Za-z]:\\Users)[/\\][^/\\\s\"'<>|:,;)]+")
SHORTEST = 4  # letters of a host's name that is looked for in sentences
COMMON = ("localhost", "local")


class Private:
    """What a bundle's values are passed through; `with_code` leaves the text of functions."""

    def __init__(self, hosts: Collection[str], *, with_code: bool) -> None:
        self._with_code = with_code
        names = {part for host in hosts for part in (host, host.partition(".")[0])}
        patterns = [re.escape(n) for n in names if len(n) >= SHORTEST and n not in COMMON]
        longest = "|".join(sorted(patterns, key=len, reverse=True))
        self._hosts = re.compile(rf"(?<![\w-])(?:{longest})(?![\w-])") if patterns else None
        folder = Path.cwd()
        self._folder = f"{folder}/" if len(folder.parts) > 2 else ""  # paths become relative
        home = Path.home()
        self._home = re.compile(re.escape(str(home)) + r"(?![\w.-])") if home.name else None
        self._user = re.compile(rf"(?<=/){re.escape(_user())}(?=/|$)") if _user() else None

    def text(self, text: str) -> str:
        """A sentence or a path."""
        text = text.replace(self._folder, "") if self._folder else text
        text = HOMES.sub("~", self._home.sub("~", text) if self._home else text)
        text = self._user.sub("user", text) if self._user else text
        return self._hosts.sub("host", text) if self._hosts else text

    def __call__(self, value: Any) -> Any:
        """A value with its texts changed; of a group only reasons and errors."""
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self(key): self(item) for key, item in value.items()}
            case list():
                return [self(item) for item in value]
            case tuple():
                return tuple(map(self, value))
            case ev.GroupScored():
                return replace(value, group=self._group(value.group))
            case ev.TokensScored() | ev.EvaluationFinished() | ev.StepFinished():
                return value
            case ev.FunctionsLoaded() if not self._with_code:
                sources = {choice: self._source(of) for choice, of in value.sources.items()}
                return self._fields(replace(value, sources=sources))
            case ev.RunFailed() if not self._with_code:  # a traceback quotes lines of code
                return self._fields(replace(value, traceback=""))
        if is_dataclass(value) and not isinstance(value, type):
            return self._fields(value)
        return value

    def _fields(self, value: Any) -> Any:
        return replace(value, **{f.name: self(getattr(value, f.name)) for f in fields(value)})

    def _group(self, group: ev.Group) -> ev.Group:
        rollouts = (
            replace(
                rollout,
                rewards=tuple(replace(r, reason=self.text(r.reason)) for r in rollout.rewards),
                spans=tuple(replace(s, error=self(s.error)) for s in rollout.spans),
            )
            for rollout in group.rollouts
        )
        return replace(group, rollouts=tuple(rollouts))

    @staticmethod
    def _source(source: Mapping[str, Any]) -> dict[str, Any]:
        """A function without its text, by the last part of its file."""
        file = Path(str(source.get("file", ""))).name
        return {**source, "file": file, "code": "", "text": ""}


def _user() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        return ""
    return name if len(name) > 1 else ""
