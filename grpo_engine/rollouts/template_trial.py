"""Tries a chat template in another process, with limits of time and memory.

The sandbox that templates run in bounds neither: a template of a line can loop for years or fill
the memory. Whoever passes is rendered in this process from then on.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

CPU_S: Final = 2.0
WALL_S: Final = 30.0  # for a process that has to wait for a processor
MEMORY: Final = 512 << 20
OUTPUT: Final = 1 << 20
TICK_S: Final = 0.01

_tried: dict[tuple[Any, ...], str] = {}


class TemplateLimitError(Exception):
    """A template needs more than it may; the message says of what."""


def try_template(template: str, values: Mapping[str, Any]) -> None:
    """Raise TemplateLimitError if the template is beyond a limit.

    One that fails in another way passes: rendering it tells the error. A template is tried once
    for the same roles and options.
    """
    roles = tuple(message.get("role") for message in values.get("messages", ()))
    options = {name: str(value) for name, value in values.items() if name != "messages"}
    key = template, frozenset(roles), tuple(sorted(options.items()))
    if key not in _tried:
        _tried[key] = _problem(template, values)
    if _tried[key]:
        raise TemplateLimitError(_tried[key])


def _problem(template: str, values: Mapping[str, Any]) -> str:
    """What the template needs too much of; empty if it keeps to the limits."""
    question = json.dumps({"template": template, "values": dict(values)}, default=str).encode()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:  # fmt: skip
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(question)
            child.stdin.close()
            if problem := _watched(child):
                return problem
            size = int(child.stdout.read() or 0)
        finally:
            child.kill()
    return f"makes {size / 1e6:.1f} MB of text" if size > OUTPUT else ""


def _watched(child: "subprocess.Popen[bytes]") -> str:
    """Wait for the process while it stays within its limits; say which it does not."""
    import psutil

    begun = time.monotonic()
    while child.poll() is None:
        try:
            process = psutil.Process(child.pid)
            spent, memory = process.cpu_times().user, process.memory_info().rss
        except psutil.Error:
            continue  # it has just ended
        if memory > MEMORY:
            return f"needs more than {MEMORY >> 20} MB of memory"
        if spent > CPU_S or time.monotonic() - begun > WALL_S:
            return f"needs more than {CPU_S:g} s"
        time.sleep(TICK_S)
    return ""


def main() -> None:
    """Render the template of the question on stdin, and print how long the text is."""
    question = json.load(sys.stdin)
    print(len(_render(question["template"], question["values"])))


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

    place = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    place.filters["tojson"] = to_json
    place.globals["raise_exception"] = refuse
    place.globals["strftime_now"] = time.strftime
    return place.from_string(template).render({"add_generation_prompt": False, **values})


if __name__ == "__main__":
    main()
