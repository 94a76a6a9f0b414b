"""Which toolchain name stands behind each name in a script's source, scope by scope."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from qtune.compat.roots import LEFT_OUT, TOPS, TOPS_LEFT_OUT, TORCH_NAMES, TORCH_ROOTS

StarNames = Callable[[str], tuple[str, ...]]
_Scope = dict[str, str | None]


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
    walker.read(tree)
    return sorted(walker.found, key=lambda place: place.line)


def is_served(dotted: str) -> bool:
    """Whether a dotted name lies under a root of the toolchain."""
    if dotted.partition(".")[0] in (*TOPS, *TOPS_LEFT_OUT):
        return True
    return any(dotted == f"{root}.{name}" for root in TORCH_ROOTS for name in TORCH_NAMES)


def _left_out_of(module: str) -> list[str]:
    """Names that qtune lacks and that a module of the toolchain may have."""
    inside = [name.removeprefix(f"{module}.") for name in LEFT_OUT if name not in TOPS_LEFT_OUT]
    return [name for name in inside if name.isidentifier()]


class _Walker(ast.NodeVisitor):
    """Binds names as the statements come; a scope maps a name to a dotted one, or to ``None``.

    A function's body is read when the scopes around it are complete, since it runs later.
    """

    def __init__(self, star_names: StarNames) -> None:
        self.found: list[Place] = []
        self._scopes: list[_Scope] = [{}]
        self._later: deque[tuple[list[_Scope], Sequence[ast.AST]]] = deque()
        self._star_names = star_names

    def read(self, tree: ast.Module) -> None:
        """The whole script."""
        self.visit(tree)
        while self._later:
            self._scopes, body = self._later.popleft()
            self._visit_all(body)

    def _visit_all(self, nodes: Sequence[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

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
            self._scopes[-1].update((a.asname or a.name, None) for a in node.names)
            return
        for alias in node.names:
            if alias.name == "*":
                self._use(node.module, node, is_import=True)
                self._star(node.module)
                continue
            dotted = f"{node.module}.{alias.name}"
            self._use(dotted, node, is_import=True)
            self._scopes[-1][alias.asname or alias.name] = dotted

    def _star(self, module: str) -> None:
        """What a star brings, and what only the toolchain's brings: its use is a missing name.

        Another module's star may bring anything, so such a name may be its own.
        """
        scope = self._scopes[-1]
        if not is_served(module):
            scope.update(dict.fromkeys(_left_out_of(""), None))
            return
        scope.update({name: f"{module}.{name}" for name in self._star_names(module)})
        for name in _left_out_of(module):
            scope.setdefault(name, f"{module}.{name}")

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
        self._visit_all([node.value, *node.targets])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_all([node.annotation, node.value, node.target])

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._visit_all([node.value, node.target])

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._visit_all([node.iter, node.target, *node.body, *node.orelse])

    visit_AsyncFor = visit_For  # noqa: N815

    def visit_Try(self, node: ast.Try) -> None:
        """What an ``except`` assigns in place of a failed import does not hide the import."""
        self._visit_all([*node.body, *node.orelse])
        imported = {name: dotted for name, dotted in self._scopes[-1].items() if dotted}
        self._visit_all(node.handlers)
        self._scopes[-1].update(imported)
        self._visit_all(node.finalbody)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        self._comprehension(node.generators, node.elt)

    visit_SetComp = visit_GeneratorExp = visit_ListComp  # noqa: N815

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node.generators, node.key, node.value)

    def _comprehension(self, loops: Sequence[ast.comprehension], *results: ast.expr) -> None:
        """A scope of its own, bound by its loops before its results are read."""
        self._scopes.append({})
        for loop in loops:
            self._visit_all([loop.iter, loop.target, *loop.ifs])
        self._visit_all(results)
        self._scopes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._visit_all([*node.decorator_list, *_outside(node.args), node.returns])
        self._scopes[-1][node.name] = None
        self._function(node.args, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all(list(_outside(node.args)))
        self._function(node.args, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        words = [word.value for word in node.keywords]
        self._visit_all([*node.decorator_list, *node.bases, *words])
        self._scopes[-1][node.name] = None
        self._scopes.append({_IS_CLASS: _IS_CLASS})
        self._visit_all(node.body)
        self._scopes.pop()

    def _function(self, arguments: ast.arguments, body: Sequence[ast.AST]) -> None:
        own: _Scope = dict.fromkeys(argument.arg for argument in _arguments(arguments))
        self._later.append(([*self._scopes, own], body))


_IS_CLASS = "<class>"
"""No name of Python: marks the scope of a class body, which functions in it don't see."""


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    rest = [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest]


def _outside(arguments: ast.arguments) -> Iterator[ast.expr]:
    """Defaults and annotations, which the scope around a function evaluates."""
    yield from arguments.defaults
    yield from (value for value in arguments.kw_defaults if value is not None)
    yield from (a.annotation for a in _arguments(arguments) if a.annotation is not None)
