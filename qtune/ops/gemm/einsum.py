"""einsum: matrix products, element-wise products, sums and transposes by named indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from qtune.ops.composed import lower_by_parts
from qtune.ops.elementwise import limits
from qtune.ops.gemm.contraction import Labels, Term, contract, count_products
from qtune.ops.registry import register
from qtune.ops.spec import Bound, DecomposeBuilder, FunctionTarget, OpSpec, Rule, Sample

_DOTS = "..."


def _bind(equation: Any, *operands: Any) -> Bound:
    if not isinstance(equation, str):
        raise NotImplementedError(
            "einsum with index lists between its operands is not done; write the equation as text, "
            'for example torch.einsum("ij,jk->ik", a, b)'
        )
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    refuse_diagonals(equation)
    return Bound(operands, {"equation": equation})


def _float_kernel(*operands: torch.Tensor, equation: str) -> torch.Tensor:
    return torch.einsum(equation, *operands)


def parse(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of each operand and of the result; ``...`` becomes labels of its own.

    >>> parse("...ij,jk", [3, 2])
    ([('.1', 'i', 'j'), ('j', 'k')], ('.1', 'i', 'k'))
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    operands = [
        _labels(text, rank - _letters(text))
        for text, rank in zip(inputs.split(","), ranks, strict=True)
    ]
    every = [label for labels in operands for label in labels]
    dots = max((rank - _letters(text) for text, rank in zip(inputs.split(","), ranks, strict=True)
                if _DOTS in text), default=0)  # fmt: skip
    if arrow:
        return operands, _labels(output, dots if _DOTS in output else 0)
    once = sorted(label for label in set(every) if every.count(label) == 1 and label[0] != ".")
    return operands, (*_labels(_DOTS, dots), *once)


def _letters(text: str) -> int:
    return len(text.replace(_DOTS, ""))


def _labels(text: str, dots: int) -> Labels:
    before, _, after = text.partition(_DOTS)
    middle = tuple(f".{i}" for i in range(dots, 0, -1)) if _DOTS in text else ()
    return (*before, *middle, *after)


def refuse_diagonals(equation: str) -> None:
    """Raise ``NotImplementedError`` for an index that stands twice in one operand."""
    for text in equation.replace(" ", "").partition("->")[0].split(","):
        letters = text.replace(_DOTS, "")
        twice = sorted({letter for letter in letters if letters.count(letter) > 1})
        if twice:
            raise NotImplementedError(
                f"einsum {equation!r}: the index {twice[0]!r} stands twice in one operand, which "
                "takes a diagonal; that has no form on the BPU. Take torch.diagonal before"
            )


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    equation = bound.attrs["equation"]
    ranks = [len(builder.shape(tensor)) for tensor in bound.tensors]
    operands, output = parse(equation, ranks)
    terms = [Term(t, labels) for t, labels in zip(bound.tensors, operands, strict=True)]
    result = contract(builder, terms, output)
    if result is bound.tensors[0]:  # "ij->ij"
        return builder.call("identity", (result,), {"kind": "identity", "memory_format": None},
                            part="same")  # fmt: skip
    return result


def _flops(attrs: Mapping[str, Any], inputs: Sequence[Any], output: tuple[int, ...]) -> int:
    operands, _ = parse(attrs["equation"], [len(shape) for shape in inputs])
    sizes: dict[str, int] = {}
    for labels, shape in zip(operands, inputs, strict=True):
        for label, size in zip(labels, shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return count_products(sizes)


def _sample(rng: np.random.Generator) -> Sample:
    equations = ("bij,bjk->bik", "bhqd,bhkd->bhqk", "...c,dc->...d", "bij,bij->b", "i,j", "bnc->cb")
    equation = equations[int(rng.integers(len(equations)))]
    sizes = {label: int(rng.integers(1, 6)) for label in "bcdhijknqk.12"}
    operands, _ = parse(equation, [3 if "..." in t else len(t) for t in
                                   equation.partition("->")[0].split(",")])  # fmt: skip
    shapes = tuple(tuple(sizes[label[-1]] for label in labels) for labels in operands)
    return Sample(shapes, {"equation": equation})


register(
    OpSpec(
        name="einsum",
        family="gemm",
        rule=Rule.DECOMPOSED,
        roles=("*operands",),
        targets=(FunctionTarget(torch.einsum, _bind),),
        float_kernel=_float_kernel,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=_flops,
        sample=_sample,
        doc="sums of products by named indices: permute, matmul (or mul), sum",
    )
)
