"""Which toolchain name stands behind each name in a script's source, scope by scope."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qtune.compat.roots import LEFT_OUT, TOPS, TORCH_NAMES, TORCH_ROOTS

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)
StarNames = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Place:
    """One use of a dotted toolchain name. ``is_import``: an import statement asks for it."""

    name: str
    line: int
    is_import: bool


def uses(tree: ast.Module, star_names: StarNames) -> list[Place]:
    """Every use of a toolchain name in a script, in order of its lines.

    Names are followed from imports through attributes; a name that a scope assigns itself is the
    script's own there. ``star_names``: what ``from module import *`` brings.
    """
    walker = _Walker(star_names)
    walker.visit(tree)
    return sorted(walker.found, key=lambda place: place.line)


def is_served(dotted: str) -> bool:
    """Whether a dotted name lies under a root of the toolchain."""
    if dotted.partition(".")[0] in (*TOPS, *(name for name in LEFT_OUT if "." not in name)):
        return True
    return any(dotted == f"{root}.{name}" for root in TORCH_ROOTS for name in TORCH_NAMES)


class _Walker(ast.NodeVisitor):
    """Binds names as the statements come; a scope maps a name to a dotted one, or to ``None``."""

    def __init__(self, star_names: StarNames) -> None:
        self.found: list[Place] = []
        self._scopes: list[dict[str, str | None]] = [{}]
        self._star_names = star_names

    def _use(self, name: str, node: ast.AST, is_import: bool = False) -> None:
        if is_served(name):
            self.found.append(Place(name, getattr(node, "lineno", 0), is_import))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._use(alias.name, node, is_import=True)
            top = alias.name.partition(".")[0]
            self._scopes[-1][alias.asname or top] = alias.name if alias.asname else top

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or node.module is None:
            return
        for alias in node.names:
            if alias.name == "*":
                self._use(node.module, node, is_import=True)
                brought = self._star_names(node.module)
                self._scopes[-1].update({name: f"{node.module}.{name}" for name in brought})
                continue
            dotted = f"{node.module}.{alias.name}"
            self._use(dotted, node, is_import=True)
            self._scopes[-1][alias.asname or alias.name] = dotted

    def visit_Call(self, node: ast.Call) -> None:
        if ast.unparse(node.func) in ("importlib.import_module", "import_module") and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                self._use(first.value, node, is_import=True)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        dotted = self._dotted(node)
        if dotted is None:
            self.generic_visit(node)
        elif isinstance(node.ctx, ast.Load):
            self._use(dotted, node)

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._scopes[-1][node.id] = None
            return
        dotted = self._bound(node.id)
        if dotted is not None:
            self._use(dotted, node)

    def _dotted(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return self._bound(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._dotted(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        return None

    def _bound(self, name: str) -> str | None:
        inner = self._scopes[-1]
        visible = [inner, *(s for s in reversed(self._scopes[:-1]) if not s.get(_IS_CLASS))]
        return next((scope[name] for scope in visible if name in scope), None)

    def visit_Assign(self, node: ast.Assign) -> None:
        """The value first: ``qconfig = qconfig.default`` reads the outer one."""
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = node.args
        for part in (*node.decorator_list, *_outside(arguments), node.returns):
            if part is not None:
                self.visit(part)
        self._scopes[-1][node.name] = None
        self._inside(_argument_names(arguments), node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for part in _outside(node.args):
            self.visit(part)
        self._inside(_argument_names(node.args), [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases, *(word.value for word in node.keywords)):
            self.visit(part)
        self._scopes[-1][node.name] = None
        self._inside([_IS_CLASS], node.body)

    def _inside(self, own: list[str], body: list[ast.stmt] | list[ast.expr]) -> None:
        scope: dict[str, str | None] = dict.fromkeys(own)
        if _IS_CLASS in scope:
            scope[_IS_CLASS] = _IS_CLASS
        self._scopes.append(scope)
        for statement in body:
            self.visit(statement)
        self._scopes.pop()


_IS_CLASS = "<class>"
"""No name of Python: marks the scope of a class body, which functions in it don't see."""


def _argument_names(arguments: ast.arguments) -> list[str]:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    rest = [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
    return [argument.arg for argument in (*named, *rest)]


def _outside(arguments: ast.arguments) -> Iterator[ast.expr]:
    """Defaults and annotations, which the scope around a function evaluates."""
    yield from arguments.defaults
    yield from (value for value in arguments.kw_defaults if value is not None)
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    yield from (a.annotation for a in named if a.annotation is not None)
