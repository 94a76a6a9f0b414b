"""The house rules that no linter checks: sizes, forbidden statements, nesting."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
MAX_NESTING = 3
BRANCHING = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def nesting(node: ast.AST, depth: int = 0) -> int:
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            continue
        inner = depth + isinstance(child, BRANCHING)
        if isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse:
            inner = depth  # elif is no deeper than its if
        deepest = max(deepest, nesting(child, inner))
    return deepest


def test_no_file_is_longer_than_the_limit(trees: dict[Path, ast.Module]) -> None:
    long = {p.name: n for p in trees if (n := len(p.read_text().splitlines())) > MAX_FILE_LINES}
    assert not long, f"files over {MAX_FILE_LINES} lines: {long}"


def test_no_function_is_longer_than_the_limit(trees: dict[Path, ast.Module]) -> None:
    long = [
        f"{path.name}:{f.lineno} {f.name} {size} lines"
        for path, tree in trees.items()
        for f in functions(tree)
        if (size := (f.end_lineno or f.lineno) - f.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert not long, long


def test_nine_of_ten_functions_are_at_most_thirty_lines(trees: dict[Path, ast.Module]) -> None:
    sizes = sorted(
        (f.end_lineno or f.lineno) - f.lineno + 1
        for tree in trees.values()
        for f in functions(tree)
    )
    assert sizes[int(0.9 * len(sizes))] <= 30


def test_nesting_is_at_most_three(trees: dict[Path, ast.Module]) -> None:
    deep = [
        f"{path.name}:{f.lineno} {f.name}"
        for path, tree in trees.items()
        for f in functions(tree)
        if nesting(f) > MAX_NESTING
    ]
    assert not deep, f"nested deeper than {MAX_NESTING}: {deep}"


def test_packages_hold_no_assert_no_print_no_star_import(trees: dict[Path, ast.Module]) -> None:
    found = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert):
                found.append(f"{path.name}:{node.lineno} assert")
            if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names):
                found.append(f"{path.name}:{node.lineno} star import")
            is_print = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
            if is_print and path.name != "cli.py":
                found.append(f"{path.name}:{node.lineno} print")
    assert not found, found


def test_no_module_is_a_drawer_for_everything(trees: dict[Path, ast.Module]) -> None:
    assert not [p for p in trees if p.name in ("utils.py", "helpers.py", "misc.py", "common.py")]
