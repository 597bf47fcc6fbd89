"""Reads YAML and JSON of any origin: bounded in size, depth and work, and a name is given once.

Numbers are decimal, as in YAML 1.2: `010` is ten, `1:30` and a date are texts. A number that a
float cannot hold is refused.
"""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from grpo_engine.errors import ConfigError, quoted

MOST_BYTES, MOST_DEPTH, MOST_NODES = 1_000_000, 30, 100_000
MOST_DIGITS = 400  # of a whole number
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_NUMBER = re.compile(
    r"[-+]?(?:(?P<whole>\d[\d_]*)|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?)$", re.ASCII
)


class RefusedError(yaml.YAMLError, ValueError):
    """It is YAML or JSON, but has two meanings or is beyond the bounds."""


def read_text(path: Path) -> str:
    """Read a file of settings; ConfigError if it is none, or larger than any is."""
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is not a file")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path") from error
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{path} is larger than {MOST_BYTES / 1e6:.0f} MB: no settings are")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}") from error


def read_number(text: str) -> int | float | None:
    """The number that a text is, None if it is none; RefusedError if no float can hold it."""
    text = text.strip()
    match = _NUMBER.match(text)
    if match is None:
        return None
    if match["whole"]:
        if len(text) > MOST_DIGITS:
            raise RefusedError(f"{quoted(text)} is too long for a number")
        return int(text)
    value = float(text)
    if math.isinf(value):
        raise RefusedError(f"{quoted(text)} is too large: numbers end at 1.8e308")
    if value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        raise RefusedError(f"{quoted(text)} is too small: write 0, or at least 5e-324")
    return value


class _Loader(yaml.SafeLoader):
    """Values as JSON has them; numbers by `read_number`."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Stop at the first value that is nested too deep: its scanner is slow with open lists."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise RefusedError(f"it is nested more than {MOST_DEPTH} levels deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _construct_number(_loader: _Loader, node: yaml.ScalarNode) -> int | float:
    try:
        value = read_number(node.value)
    except RefusedError as error:
        raise RefusedError(f"{error}{_at(node)}") from None
    if value is None:
        raise RefusedError(f"{quoted(node.value)} is no number{_at(node)}")
    return value


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as lines, and quotes what any YAML would read as no text."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, form) for tag, form in forms if not tag.endswith((":int", ":float", ":timestamp"))
    ]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(_FLOAT, _NUMBER, list("-+.0123456789"))
for _tag in (_INT, _FLOAT):
    _Loader.add_constructor(_tag, _construct_number)
_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def dump_yaml(value: Any, **options: Any) -> str:
    """Write plain values as YAML that `parse_yaml` reads back."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, **options))


def parse_yaml(text: str) -> Any:
    """Parse YAML as plain values; yaml.YAMLError if it is not, or beyond the bounds."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check(node, 1, {})
        return loader.construct_document(node)
    except ValueError as error:  # such as a broken `!!int`
        raise RefusedError(str(error)) from None
    finally:
        loader.dispose()


def parse_json(text: str) -> Any:
    """Parse JSON; ValueError if it is none, gives a name twice, or a number does not fit."""
    try:
        return json.loads(
            text, object_pairs_hook=once, parse_float=read_number, parse_int=read_number,
            parse_constant=_no_number,
        )  # fmt: skip
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object that gives each name once."""
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{quoted(twice)} is given twice")
    return result


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")


def _check(node: yaml.Node, depth: int, sizes: dict[int, int]) -> int:
    """Count the values of a node with every alias written out; refuse what is beyond the bounds."""
    if depth > MOST_DEPTH:
        raise RefusedError(f"it is nested more than {MOST_DEPTH} levels deep{_at(node)}")
    if id(node) in sizes:
        return sizes[id(node)]
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        names = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in names:
                    raise RefusedError(f"{quoted(key.value)} is given twice{_at(key)}")
                names.add(key.value)
            children += [key, value]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    size = 1
    for child in children:
        size += _check(child, depth + 1, sizes)
        if size > MOST_NODES:
            raise RefusedError(f"it has more than {MOST_NODES} values{_at(node)}")
    sizes[id(node)] = size
    return size


def _at(node: yaml.Node) -> str:
    return f", line {node.start_mark.line + 1}, column {node.start_mark.column + 1}"
