"""Reads YAML of any origin: bounded in size, depth and work, and a name is given once."""

from pathlib import Path
from typing import Any

import yaml

from grpo_engine.errors import ConfigError

MOST_BYTES, MOST_DEPTH, MOST_NODES = 1_000_000, 30, 100_000


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


def parse_yaml(text: str) -> Any:
    """Parse YAML as plain values; yaml.YAMLError if it is not, or beyond the bounds."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check(node, 1, {})
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError(f"it is nested more than {MOST_DEPTH} levels deep") from None
    finally:
        loader.dispose()


def _check(node: yaml.Node, depth: int, sizes: dict[int, int]) -> int:
    """Count the values of a node with every alias written out; refuse what is beyond the bounds."""
    if depth > MOST_DEPTH:
        raise yaml.YAMLError(f"it is nested more than {MOST_DEPTH} levels deep{_at(node)}")
    if id(node) in sizes:
        return sizes[id(node)]
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        names = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in names:
                    raise yaml.YAMLError(f"{key.value!r} is given twice{_at(key)}")
                names.add(key.value)
            children += [key, value]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    size = 1
    for child in children:
        size += _check(child, depth + 1, sizes)
        if size > MOST_NODES:
            raise yaml.YAMLError(f"it has more than {MOST_NODES} values{_at(node)}")
    sizes[id(node)] = size
    return size


def _at(node: yaml.Node) -> str:
    return f", line {node.start_mark.line + 1}, column {node.start_mark.column + 1}"
