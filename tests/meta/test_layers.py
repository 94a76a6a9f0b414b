"""Who may import whom (ARCHITECTURE.md, "Layers")."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from .conftest import ROOT

LAYERS = (
    ("version", "dtype", "march", "modes", "errors", "lazy"),
    ("report",),
    ("arith",),
    ("arith_fast",),
    ("quantizers",),
    ("ops",),
    ("capture", "qconfig", "nn", "hbir", "bpu"),
    ("check",),
    ("prepare",),
    ("quantization",),
    ("profiler",),
    ("analysis", "onnx_debug"),
    ("testing",),
    ("compat", "cli", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FACADES = {"utils", "jit", "fx", "qat_mode", "__init__"}
NO_TORCH = ("arith", "report")


def part_of(path: Path) -> str:
    inside = path.relative_to(ROOT / "qtune").parts
    return inside[0].removesuffix(".py")


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            if node.module == "qtune":
                yield from ((node.lineno, f"qtune.{alias.name}") for alias in node.names)


def qtune_trees(trees: dict[Path, ast.Module]) -> Iterator[tuple[Path, ast.Module]]:
    return ((p, t) for p, t in trees.items() if (ROOT / "qtune") in p.parents)


def test_no_layer_imports_a_higher_one(trees: dict[Path, ast.Module]) -> None:
    wrong = []
    for path, tree in qtune_trees(trees):
        own = part_of(path)
        if own in FACADES:
            continue
        assert own in LEVEL, f"{path}: {own} has no layer; add it to LAYERS and ARCHITECTURE.md"
        for line, name in imports(tree):
            parts = name.split(".")
            if parts[0] == "qtune" and len(parts) > 1 and LEVEL.get(parts[1], 0) > LEVEL[own]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, wrong


def test_nothing_in_qtune_imports_the_plugin(trees: dict[Path, ast.Module]) -> None:
    wrong = [
        f"{path}:{line}"
        for path, tree in qtune_trees(trees)
        for line, name in imports(tree)
        if name.split(".")[0] == "pytest_qtune"
    ]
    assert not wrong


def test_arith_and_report_never_import_torch(trees: dict[Path, ast.Module]) -> None:
    wrong = [
        f"{path}:{line}"
        for path, tree in qtune_trees(trees)
        if part_of(path) in NO_TORCH
        for line, name in imports(tree)
        if name.split(".")[0] == "torch"
    ]
    assert not wrong


def test_plugin_imports_only_the_standard_library_and_pytest_at_load(
    trees: dict[Path, ast.Module],
) -> None:
    heavy = {"torch", "numpy", "pandas", "onnx", "onnx_ir", "jinja2", "qtune", "filelock", "xdist"}
    wrong = []
    for path, tree in trees.items():
        if (ROOT / "pytest_qtune") not in path.parents:
            continue
        for node in tree.body:  # module level only; imports inside functions are lazy
            found = (
                [name for _, name in imports(ast.Module([node], []))]
                if isinstance(node, ast.Import | ast.ImportFrom)
                else []
            )
            wrong += [f"{path.name}: {n}" for n in found if n.split(".")[0] in heavy]
    assert not wrong, wrong
