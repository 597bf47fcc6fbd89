"""Mutants of a Python source: one small change each, made in its syntax tree."""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
}
NAMES = {
    "minimum": "maximum",
    "maximum": "minimum",
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "sum": "mean",
    "exp": "expm1",
    "expm1": "exp",
    "floor": "ceil",
    "abs": "stop_gradient",
    "ones": "zeros",
    "zeros": "ones",
}
Body = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


@dataclass(frozen=True, slots=True)
class Mutant:
    """A source with one change: its kind, its line, and the changed text."""

    kind: str
    line: int
    before: str
    after: str
    source: str


class Sites(ast.NodeVisitor):
    """Collect every possible change to a tree as (kind, node, edit)."""

    def __init__(self) -> None:
        self.found: list[tuple[str, ast.AST, Callable[[ast.AST], object]]] = []

    def add(self, kind: str, node: ast.AST, field: str, value: object) -> None:
        """Record one change: a field of the node with a new value."""
        self.found.append((kind, node, lambda target: setattr(target, field, value)))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return  # messages for people, and imported names
        if isinstance(node, ast.keyword) and node.arg == "strict":
            return  # a check, as an assertion is
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal":
            return  # read by type checkers alone
        if isinstance(node, ast.AnnAssign | ast.arg):
            value = getattr(node, "value", None)
            if value is not None:
                self.visit(value)
            return
        if isinstance(node, Body):
            self.visit_body(node)
            return
        self.look_at(node)
        self.generic_visit(node)

    def visit_body(self, node: Body) -> None:
        """Visit statements and defaults, but no docstring, decorator or annotation."""
        for child in node.body:
            docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if not docstring:
                self.visit(child)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                self.visit(default)

    def look_at(self, node: ast.AST) -> None:
        """Collect the changes of this node alone."""
        if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
            self.add("operator", node, "op", OPERATORS[type(node.op)]())
        elif isinstance(node, ast.Compare):
            for other in COMPARISONS.get(type(node.ops[0]), ()):
                self.add("comparison", node, "ops", [other(), *node.ops[1:]])
        elif isinstance(node, ast.BoolOp):
            swapped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            self.add("operator", node, "op", swapped)
        elif isinstance(node, ast.UnaryOp):
            self.add("operator", node, "op", ast.UAdd())
            if not isinstance(node.op, ast.USub):
                self.found[-1] = ("operator", node, lambda n: setattr(n, "op", None))
        elif isinstance(node, ast.Constant):
            self.constant(node)
        elif isinstance(node, ast.Attribute | ast.Name):
            field = "attr" if isinstance(node, ast.Attribute) else "id"
            name = getattr(node, field)
            if name in NAMES and (field == "attr" or name in ("min", "max")):
                self.add("min/max and functions", node, field, NAMES[name])
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "stop_gradient":
            self.found.append(("stop_gradient", node, lambda n: setattr(n, "func", None)))
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") == "where"
            and len(node.args) == 3  # the function of arrays, not that of SQL
        ):
            self.add("branch", node, "args", [node.args[0], node.args[2], node.args[1]])

    def constant(self, node: ast.Constant) -> None:
        """Change numbers, flip switches, replace words."""
        if isinstance(node.value, bool):
            self.add("constant", node, "value", not node.value)
        elif isinstance(node.value, int):
            self.add("constant", node, "value", node.value - 1 if node.value else 1)
        elif isinstance(node.value, float):
            self.add("constant", node, "value", node.value + 1)
            if node.value not in (0, 1):
                self.add("constant", node, "value", node.value / 2)
        elif isinstance(node.value, str):
            self.add("constant", node, "value", node.value + "_")


class Unwrap(ast.NodeTransformer):
    """Remove nodes whose edit left them empty: `not x` -> x, `stop_gradient(x)` -> x."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return node.operand if node.op is None else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[0] if node.func is None else node


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a source, in line order."""
    tree = ast.parse(source)
    sites = Sites()
    sites.visit(tree)
    plain = ast.unparse(tree).splitlines()
    for kind, node, edit in sorted(sites.found, key=lambda site: getattr(site[1], "lineno", 0)):
        kept = dict(vars(node))
        edit(node)
        emptied = None in (getattr(node, "op", 0), getattr(node, "func", 0))
        text = ast.unparse(Unwrap().visit(copy.deepcopy(tree)) if emptied else tree)
        vars(node).clear()
        vars(node).update(kept)
        lines = text.splitlines()
        pair = next(((a, b) for a, b in zip(plain, lines, strict=False) if a != b), None)
        if pair is not None:
            yield Mutant(kind, getattr(node, "lineno", 0), *around(*pair), text)


def around(before: str, after: str, room: int = 36) -> tuple[str, str]:
    """The part of two lines that differs, with a little context on both sides."""
    before, after = before.strip(), after.strip()
    start = next((k for k, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    tail = 0
    while tail < min(len(before), len(after)) - start and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    first = max(0, start - room)
    return tuple(  # type: ignore[return-value]
        ("…" if first else "")
        + line[first : len(line) - tail + room if tail > room else len(line)]
        + ("…" if tail > room else "")
        for line in (before, after)
    )
