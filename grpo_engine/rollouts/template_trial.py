"""Tries a chat template in the sandbox, with limits of time and memory.

Jinja's sandbox bounds neither: a template of a line can loop for years or fill the memory. What
passes is rendered in this process from then on.
"""

import json
import signal
import time
from collections.abc import Mapping
from typing import Any, Final

from grpo_engine.sandbox.client import ServiceCall, call_once

SERVICE: Final = "grpo_engine.rollouts.template_trial:Templates"
CPU_S: Final = 2.0
WALL_S: Final = 30.0  # for a process that has to wait for a processor
MEMORY: Final = 512 << 20
OUTPUT: Final = 1 << 20

_problems: dict[tuple[Any, ...], str] = {}


class TemplateLimitError(Exception):
    """A template is beyond a limit; the message says which."""


def try_template(template: str, values: Mapping[str, Any]) -> None:
    """Raise TemplateLimitError if the template is beyond a limit.

    One that fails in another way passes: rendering it tells the error. A template is tried once
    for the same roles and options.
    """
    roles = tuple(message.get("role") for message in values.get("messages", ()))
    options = {name: str(value) for name, value in values.items() if name != "messages"}
    key = template, frozenset(roles), tuple(sorted(options.items()))
    if key not in _problems:
        _problems[key] = _problem(template, values)
    if _problems[key]:
        raise TemplateLimitError(_problems[key])


def _problem(template: str, values: Mapping[str, Any]) -> str:
    """The limit that a template exceeds; empty if it keeps to all."""
    plain = json.loads(json.dumps(dict(values), default=str))
    call = ServiceCall("render", {"template": template, "values": plain}, WALL_S)
    failure = call_once(SERVICE, "template", call, memory=MEMORY, foreign=True).failure
    if failure is None:
        return f"makes {call.value / 1e6:.1f} MB of text" if call.value > OUTPUT else ""
    cause, message = failure.cause, failure.message
    if cause == "timeout" or "SIGVTALRM" in message:
        return f"needs more than {CPU_S:g} s"
    return "" if cause == "exception" else message


class Templates:
    """Renders templates in the sandbox."""

    def __init__(self, _server: object) -> None:
        """Needs nothing of the process."""

    def render(self, template: str, values: Mapping[str, Any]) -> int:
        """The length of the text; the process ends if it takes too long."""
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
        try:
            return len(_render(template, values))
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _render(template: str, values: Mapping[str, Any]) -> str:
    """Render as transformers does, whose import would take longer than everything else here."""
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`: marks the model's own text; only its body matters here."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's declaration

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = time.strftime
    return environment.from_string(template).render({"add_generation_prompt": False, **values})
