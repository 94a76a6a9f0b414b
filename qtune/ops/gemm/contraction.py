"""Sums of products over named indices (einsum and its special cases) as matmul, sum and mul.

A pair of operands is one matmul: indices in both and in the result are batch dimensions, those in
both and not in the result are summed, of the others the last of each side is a matrix side and the
rest broadcasts. Nothing but the summed indices is folded, so that batches stay open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qtune.ops.spec import DecomposeBuilder

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """An operand and the label of each of its dimensions."""

    value: Any
    labels: Labels


def contract(builder: DecomposeBuilder, terms: Sequence[Term], output: Labels) -> Any:
    """The sum over all labels that ``output`` lacks, taken from left to right."""
    result = terms[0]
    for index, term in enumerate(terms[1:]):
        later = {label for other in terms[index + 2 :] for label in other.labels} | set(output)
        prefix = f"{index}_" if len(terms) > 2 else ""
        result = _Pair(builder, prefix, later).join(result, term)
    tail = _Pair(builder, "", set(output))
    return tail.ordered(tail.summed(result, set(), "result"), output, "result").value


@dataclass(frozen=True, slots=True)
class _Pair:
    """Joins two terms; ``kept`` are the labels that are still needed."""

    builder: DecomposeBuilder
    prefix: str
    kept: set[str]

    def join(self, left: Term, right: Term) -> Term:
        """Their product, summed over the common labels that nothing needs."""
        left = self.summed(left, set(right.labels), "left")
        right = self.summed(right, set(left.labels), "right")
        common = [label for label in left.labels if label in right.labels]
        batch = tuple(label for label in common if label in self.kept)
        inner = tuple(label for label in common if label not in self.kept)
        rows = tuple(label for label in left.labels if label not in common)
        columns = tuple(label for label in right.labels if label not in common)
        if not inner:
            return self._product(left, right, (*batch, *rows, *columns))
        self._check_sizes(left, right, inner)
        order = (*batch, *rows[:-1], *columns[:-1])
        a = self._matrix(left, order, (rows[-1:], inner), "left", first=True)
        b = self._matrix(right, order, (inner, columns[-1:]), "right", first=False)
        value = self._call("matmul", (a, b), None, "matmul")
        ends = (*rows[-1:], *columns[-1:])
        return self._without_ones(value, order, rows[-1:], columns[-1:], ends)

    def summed(self, term: Term, other: set[str], side: str) -> Term:
        """``term`` without the labels that neither the other operand nor the result has."""
        gone = tuple(i for i, x in enumerate(term.labels) if x not in other | self.kept)
        if not gone:
            return term
        attrs = {"dim": gone, "keepdim": False}
        value = self._call("sum", (term.value,), attrs, f"{side}_sum")
        return Term(value, tuple(x for i, x in enumerate(term.labels) if i not in gone))

    def ordered(self, term: Term, labels: Labels, side: str) -> Term:
        """``term`` with its dimensions in this order."""
        if term.labels == labels:
            return term
        dims = tuple(term.labels.index(label) for label in labels)
        return Term(self._call("permute", (term.value,), {"dims": dims}, f"{side}_order"), labels)

    def _product(self, left: Term, right: Term, labels: Labels) -> Term:
        a, b = self._spread(left, labels, "left"), self._spread(right, labels, "right")
        return Term(self._call("mul", (a, b), None, "mul"), labels)

    def _spread(self, term: Term, labels: Labels, side: str) -> Any:
        """The operand with a dimension of 1 for each label behind its first that it lacks."""
        present = tuple(label for label in labels if label in term.labels)
        return self._ones(self.ordered(term, present, side).value, term, labels, side)

    def _matrix(
        self, term: Term, order: Labels, ends: tuple[Labels, Labels], side: str, *, first: bool
    ) -> Any:
        """The operand as matrices: ``order`` in front, then two ends, each one dimension."""
        lead = tuple(label for label in order if label in term.labels)
        inner, outer = ends[::-1] if first else ends
        value = self.ordered(term, (*lead, *ends[0], *ends[1]), side).value
        if len(inner) > 1:
            start = len(lead) + (len(outer) if first else 0)
            attrs = {"start_dim": start, "end_dim": start + len(inner) - 1}
            value = self._call("flatten", (value,), attrs, f"{side}_flat")
        if not outer:
            dim = {"dim": -2 if first else -1}
            value = self._call("unsqueeze", (value,), dim, f"{side}_side")
        return self._ones(value, term, order, side)

    def _ones(self, value: Any, term: Term, labels: Labels, side: str) -> Any:
        """``value`` with a dimension of 1 wherever ``term`` lacks a label behind its first."""
        start = next((i for i, label in enumerate(labels) if label in term.labels), len(labels))
        for place, label in enumerate(labels[start:]):
            if label not in term.labels:
                value = self._call("unsqueeze", (value,), {"dim": place}, f"{side}_one_{place}")
        return value

    def _without_ones(
        self, value: Any, order: Labels, rows: Labels, columns: Labels, ends: Labels
    ) -> Term:
        """The result without the matrix sides that were added."""
        if not columns:
            value = self._call("squeeze", (value,), {"dim": -1}, "no_columns")
        if not rows:
            value = self._call("squeeze", (value,), {"dim": -2 if columns else -1}, "no_rows")
        return Term(value, (*order, *ends))

    def _check_sizes(self, left: Term, right: Term, inner: Labels) -> None:
        sizes = [
            [self.builder.shape(t.value)[t.labels.index(label)] for label in inner]
            for t in (left, right)
        ]
        if sizes[0] != sizes[1]:
            raise NotImplementedError(
                f"a sum over dimensions of the sizes {sizes[0]} and {sizes[1]}, of which one "
                "broadcasts, has no matrix product; expand the smaller operand, or sum it first"
            )

    def _call(
        self, op: str, tensors: Sequence[Any], attrs: Mapping[str, Any] | None, part: str
    ) -> Any:
        return self.builder.call(op, tensors, attrs, part=f"{self.prefix}{part}")


def count_products(sizes: Mapping[str, int]) -> int:
    """Multiply-adds of a sum over all combinations of the labels."""
    return math.prod(sizes.values())
