"""Example inputs with NaN or infinite values, which ``prepare`` runs the model on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from qtune.capture.inputs import Inputs
from qtune.capture.interface import bind, signature_of
from qtune.capture.structure import flatten_named


def non_finite_inputs(examples: Sequence[Inputs], model: nn.Module) -> list[str]:
    """One text, which names the inputs, if any of the examples has NaN or infinite values.

    Minus infinity alone is no fault: it is how masks are written.
    """
    names: dict[str, None] = {}
    for example in examples:
        try:
            arguments = bind(signature_of(model), example.args, example.kwargs)
        except TypeError:  # the recording says which argument is wrong
            continue
        names.update((name, None) for name, leaf in flatten_named(arguments) if _is_odd(leaf))
    if not names:
        return []
    return [
        f"example inputs with NaN or infinite values: {', '.join(names)}. What the model decides "
        "on data may come out otherwise than on real data, and calibration refuses NaN: pass a "
        "real example"
    ]


def _is_odd(leaf: object) -> bool:
    if not isinstance(leaf, torch.Tensor) or leaf.is_meta or not leaf.is_floating_point():
        return False
    return bool((leaf.isnan() | leaf.isposinf()).any())
