"""What an operator's sampler asks for: the operands of a sampled call, one slot each."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qtune.ops.spec import ModuleTarget, OpSpec, Sample

MASK_ROLES = ("condition", "mask")
VARIANCE = "running_var"
DOMAINS = {
    "acos": (-0.95, 0.95),
    "asin": (-0.95, 0.95),
    "atanh": (-0.95, 0.95),
    "acosh": (1.05, 4.0),
    "logit": (0.0, 1.0),
    "tan": (-1.2, 1.2),
}
"""Where functions are defined (and not near a pole) that neither normal nor positive data suit."""

LEFT_OUT = {
    "segment_lut": "a call of it is recorded as the function that it stands for; "
    "fuzz a table of yours with the decorator qtune.testing.fuzz",
}
"""Operators that are not fuzzed by name, and why."""

_OURS = ("qtune", "torch", "numpy", "builtins", "functools", "operator")


@dataclass(frozen=True, slots=True)
class Slot:
    """One operand. ``shape`` None: it is ``number``. ``rows``: it holds indices below that.

    ``is_owned``: a parameter or buffer of a torch module fills it, no input.
    """

    role: str
    shape: tuple[int, ...] | None
    number: float | None = None
    rows: int | None = None
    is_mask: bool = False
    domain: tuple[float, float] | None = None
    is_owned: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self.shape or ()

    @property
    def is_input(self) -> bool:
        """Whether the model gets it in each call."""
        return self.shape is not None and not self.is_owned

    @property
    def is_real(self) -> bool:
        """Whether it is a tensor of real numbers."""
        return self.shape is not None and self.rows is None and not self.is_mask

    def draw(self, rng: np.random.Generator, *, positive: bool = False) -> Any:
        """A tensor of normal (or only positive) numbers, indices or bools, or the number."""
        if self.shape is None:
            return self.number
        if self.rows is not None:
            return torch.from_numpy(np.asarray(rng.integers(0, self.rows, self.shape)))
        if self.domain is not None:
            data = rng.uniform(*self.domain, self.shape)
            return torch.from_numpy(np.asarray(data, dtype=np.float32))
        x = torch.from_numpy(np.asarray(rng.standard_normal(self.shape), dtype=np.float32))
        if self.is_mask:
            return x > 0
        return x.abs() + 0.1 if positive or self.role == VARIANCE else x


def slots(entry: OpSpec, sample: Sample) -> list[Slot]:
    """The operands of a sampled call; a role ``*name`` at the end stands for the rest."""
    roles = (entry.roles + entry.roles[-1:] * len(sample.shapes))[: len(sample.shapes)]
    owned = owned_roles(entry)
    return [
        Slot(
            role,
            shape,
            sample.numbers.get(index),
            sample.indices.get(index),
            role in MASK_ROLES or entry.name.startswith("logical_"),
            DOMAINS.get(entry.name),
            role in owned,
        )
        for index, (role, shape) in enumerate(zip(roles, sample.shapes, strict=True))
    ]


def owned_roles(entry: OpSpec) -> frozenset[str]:
    """Roles that parameters and buffers of a torch module fill."""
    modules = [target for target in entry.targets if isinstance(target, ModuleTarget)]
    named = {role for target in modules for role in target.params}
    starred = {role for role in entry.roles if role.startswith("*")}
    return frozenset(named | (starred if any(target.many for target in modules) else set()))


def modules_of(entry: OpSpec) -> list[str]:
    """The modules outside of qtune that register an operator."""
    kernels = [f for k in entry.kernels for f in (k.run_float, k.convert, k.reference, k.fast)]
    parts = (entry.float_kernel, entry.lower, entry.decompose, entry.table, entry.sample, *kernels)
    names = {getattr(part, "__module__", None) or "" for part in parts}
    return sorted(n for n in names if n and n.partition(".")[0] not in _OURS and n in sys.modules)
