"""The arguments of the assertions, read from their source, so that a gate file loads no torch."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

STAGES = ("float", "calib", "pre_export", "qat_bc", "quantized_bc", "hbm")
_STAGES_OF = {
    "Model": STAGES[:-1],
    "nn.Module": STAGES[:3],
    "PreparedModel": STAGES[1:3],
    "HbirModule": STAGES[3:5],
    "Program": STAGES[5:],
}
"""What an annotation says about the stages that fit it."""
ONNX_STAGES = ("float", "optimized", "calibrated", "qat_bc", "quantized_bc", "hbm")
_ONNX_STAGES_OF = {
    "Onnx": ONNX_STAGES[:3],
    "OnnxGraph": ONNX_STAGES[1:3],
    "OnnxCalibrated": ONNX_STAGES[2:3],
    "Model": ONNX_STAGES[3:5],
    "HbirModule": ONNX_STAGES[3:5],
    "Program": ONNX_STAGES[5:],
}
"""The same of a model that comes from an ONNX file."""
_SCALARS = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}
_LISTS = frozenset({"Sequence", "Iterable", "Collection", "list", "tuple", "set", "frozenset"})
_TABLES = frozenset({"Mapping", "dict"})
_ANYTHING = frozenset({"Any", "object"})
Form = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of an assertion. ``annotation``: as written; ``default``: its text, if any."""

    name: str
    annotation: str
    default: str | None = None

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is None

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages it can be, if it is a model."""
        return self._named(STAGES, _STAGES_OF)

    @property
    def onnx_stages(self) -> tuple[str, ...]:
        """The same of a model that comes from an ONNX file."""
        return self._named(ONNX_STAGES, _ONNX_STAGES_OF)

    def stages_of(self, *, onnx: bool) -> tuple[str, ...]:
        """The stages it can be, by where the model comes from."""
        return self.onnx_stages if onnx else self.stages

    def _named(self, order: Sequence[str], known: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
        named = [known.get(ast.unparse(leaf), ()) for leaf in _leaves(self.annotation)]
        return tuple(stage for stage in order if any(stage in names for names in named))

    @property
    def is_callable(self) -> bool:
        """Whether it is a function, which a file names as ``module:name``."""
        return any(_head(leaf) == "Callable" for leaf in _leaves(self.annotation))

    @property
    def expected(self) -> str:
        """What a file gives for it, in words; empty where a file can't give it."""
        if self.is_callable:
            return "a function, module:name"
        return " or ".join(dict.fromkeys(filter(None, map(_words, _leaves(self.annotation)))))

    def accepts(self, value: object) -> bool:
        """Whether a value of a TOML file has the form of the annotation."""
        if self.is_callable:
            return isinstance(value, str) and ":" in value
        return any(_fits(leaf, value) for leaf in _leaves(self.annotation))


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of one assertion, in order, and the first line of its docstring."""

    parameters: Sequence[Parameter]
    summary: str

    def __getitem__(self, name: str) -> Parameter:
        return next(p for p in self.parameters if p.name == name)


@lru_cache
def signature(module: str, function: str) -> Signature:
    """The signature of a function of a module that need not be imported."""
    tree = ast.parse(_source(module))
    found = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
    aliases = {
        target.id: ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    summary = (ast.get_docstring(found) or "").partition("\n")[0]
    return Signature(tuple(_parameters(found.args, aliases)), summary)


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    path = None if spec is None or spec.origin is None else Path(spec.origin)
    if path is None or path.suffix != ".py" or not path.is_file():
        raise ImportError(f"{module} is installed without its source, which gate files read")
    return path.read_text(encoding="utf-8")


def _parameters(args: ast.arguments, aliases: Mapping[str, str]) -> Iterator[Parameter]:
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + [*args.defaults]
    pairs = [*zip(plain, defaults, strict=True)]
    pairs += zip(args.kwonlyargs, args.kw_defaults, strict=True)
    for arg, default in pairs:
        annotation = "Any" if arg.annotation is None else ast.unparse(arg.annotation)
        annotation = aliases.get(annotation, annotation)
        yield Parameter(arg.arg, annotation, None if default is None else ast.unparse(default))


@lru_cache
def _leaves(annotation: str) -> tuple[ast.expr, ...]:
    """The members of a union."""
    return tuple(_members(ast.parse(annotation, mode="eval").body))


def _members(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        yield from _members(node.left)
        yield from _members(node.right)
    else:
        yield node


def _head(leaf: ast.expr) -> str:
    return ast.unparse(leaf.value if isinstance(leaf, ast.Subscript) else leaf)


def _inner(leaf: ast.expr) -> list[ast.expr]:
    """What stands in the brackets of a subscript."""
    if not isinstance(leaf, ast.Subscript):
        return []
    inside = leaf.slice
    return list(inside.elts) if isinstance(inside, ast.Tuple) else [inside]


def _fits(leaf: ast.expr, value: object) -> bool:
    head = _head(leaf)
    if head in _ANYTHING:
        return True
    if head == "Literal":
        return value in [ast.literal_eval(item) for item in _inner(leaf)]
    if head in _LISTS:
        items = _inner(leaf)
        return isinstance(value, list) and all(_is_any(items[:1], item) for item in value)
    if head in _TABLES:
        items = _inner(leaf)
        return isinstance(value, dict) and all(_is_any(items[1:], v) for v in value.values())
    if isinstance(value, bool):
        return head == "bool"
    kinds: Mapping[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str}
    return isinstance(value, kinds.get(head, ()))


def _is_any(annotations: list[ast.expr], value: object) -> bool:
    return not annotations or any(_fits(leaf, value) for leaf in _members(annotations[0]))


def _words(leaf: ast.expr) -> str:
    head = _head(leaf)
    if head in _ANYTHING:
        return "any value"
    if head == "Literal":
        return "one of " + ", ".join(str(ast.literal_eval(item)) for item in _inner(leaf))
    if head in _LISTS:
        return "a list" + _of(_inner(leaf)[:1])
    if head in _TABLES:
        return "a table" + _of(_inner(leaf)[1:])
    return _SCALARS.get(head, "")


def _of(annotations: list[ast.expr]) -> str:
    words = [_words(leaf) for node in annotations for leaf in _members(node)]
    known = [word.partition(" ")[2] for word in words if word.startswith(("a ", "an "))]
    return f" of {' or '.join(known)}s" if known and len(known) == len(words) else ""
