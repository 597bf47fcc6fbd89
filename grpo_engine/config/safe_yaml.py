"""Reads untrusted YAML: bounded in depth and work, without repeated names.

Numbers are decimal, as in YAML 1.2: `010` is ten, `1:30` and a date are texts. A number that a
float cannot hold is refused.
"""

from typing import Any

import yaml

from grpo_engine.config.safe_json import NUMBER, UnsafeJsonError, read_number
from grpo_engine.errors import quoted

MOST_DEPTH, MOST_NODES = 30, 100_000
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class RefusedYamlError(yaml.YAMLError, UnsafeJsonError):
    """The text is YAML, but ambiguous or beyond a bound."""


class _Loader(yaml.SafeLoader):
    """Values as JSON has them; numbers by `read_number`."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Stop at the first value that is nested too deep: the scanner is slow with open lists."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise RefusedYamlError(f"it is nested more than {MOST_DEPTH} levels deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _construct_number(_loader: _Loader, node: yaml.ScalarNode) -> int | float:
    try:
        value = read_number(node.value)
    except UnsafeJsonError as error:
        raise RefusedYamlError(f"{error}{_at(node)}") from None
    if value is None:
        raise RefusedYamlError(f"{quoted(node.value)} is no number{_at(node)}")
    return value


class _Dumper(yaml.SafeDumper):
    """Writes multi-line texts as blocks, and quotes texts that some YAML reads as another type."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, form) for tag, form in forms if not tag.endswith((":int", ":float", ":timestamp"))
    ]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(_FLOAT, NUMBER, list("-+.0123456789"))
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
    """Parse YAML as plain values; yaml.YAMLError if it is invalid or beyond a bound."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check(node, 1, {})
        return loader.construct_document(node)
    except ValueError as error:  # such as a broken `!!int`
        raise RefusedYamlError(str(error)) from None
    finally:
        loader.dispose()


def _check(node: yaml.Node, depth: int, sizes: dict[int, int]) -> int:
    """Count the values of a node with every alias expanded; refuse what is beyond a bound."""
    if depth > MOST_DEPTH:
        raise RefusedYamlError(f"it is nested more than {MOST_DEPTH} levels deep{_at(node)}")
    if id(node) in sizes:
        return sizes[id(node)]
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        names = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in names:
                    raise RefusedYamlError(f"{quoted(key.value)} is given twice{_at(key)}")
                names.add(key.value)
            children += [key, value]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    size = 1
    for child in children:
        size += _check(child, depth + 1, sizes)
        if size > MOST_NODES:
            raise RefusedYamlError(f"it has more than {MOST_NODES} values{_at(node)}")
    sizes[id(node)] = size
    return size


def _at(node: yaml.Node) -> str:
    return f", line {node.start_mark.line + 1}, column {node.start_mark.column + 1}"
