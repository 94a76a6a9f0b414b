"""What ``resolve`` takes and gives: plain values, no graph and no module.

``prepare`` describes each operator by an :class:`OpView`; ``resolve`` answers with a
:class:`Resolution`, from which ``prepare`` builds the fake-quantizes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qtune.arith.quantize import scale_from_threshold
from qtune.dtype import FloatDType, QuantDType
from qtune.errors import MarchError, QconfigError
from qtune.march import March
from qtune.ops.spec import FuseRole, MarchRule, OpSpec, Rule
from qtune.quantizers.fake_cast import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.fixed import FixedScaleObserver

if TYPE_CHECKING:
    from qtune.qconfig.qconfig import QConfig
    from qtune.qconfig.rules import Rules


class Unset(enum.Enum):
    """The value of ``module_qconfig`` where the user set none (``None`` means: keep float)."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class OpView:
    """One operator as ``resolve`` sees it. Views come in execution order.

    ``name``: its name in the prepared model. ``scope``: path of the module whose forward called
    it; a rule for a prefix of either applies. ``roles``: names of its operands. ``producers``: per
    operand the name of the operator that makes it, ``None`` for a graph input, a scalar, an integer
    tensor, an absent operand and the weight. ``later_producers``: the same of the further calls of
    a shared operator; they may come after it among the views. ``constants``: operands that are
    float parameters, buffers or constants other than the weight; they get a scale of their own.
    ``weight``: it has a weight that is quantized per channel. ``group``: name of the last member of
    its fused group (``""`` or its own name outside a group). ``is_model_output``: its result leaves
    the model as it is. ``several_results``: it gives a tuple. ``dequantizes``: it is a DeQuantStub.
    ``takes_float``: its operands come in float (QuantStub). ``fixed_scale``: the scale that the
    operator itself fixes for its result (``QuantStub(scale=...)``), on whatever dtype that gets.
    ``module_qconfig``: the nearest ``module.qconfig``, ``module_qconfig_path`` the module that has
    it (``find_qconfig`` gives both). ``modules``: path and class of its own module, if it is one,
    and of those around it, the nearest first (``modules_around``). ``float_reason``: why it can't
    be quantized whatever the configuration says (it lies outside the stubs, nothing in the registry
    fits).
    ``forced_dtype``: dtype inside a decomposed operator, which only a rule for its exact name
    changes. ``is_part``: it is a part of a decomposed operator. ``bounds``: see
    ``DecomposeBuilder.call``. ``rule`` is NO_SCALE too where the
    result is not floating.
    """

    name: str
    op: str
    rule: Rule
    scope: str = ""
    is_gemm: bool = False
    fuse: FuseRole | None = None
    weight: bool = False
    group: str = ""
    roles: tuple[str, ...] = ()
    producers: tuple[str | None, ...] = ()
    later_producers: tuple[tuple[str | None, ...], ...] = ()
    constants: frozenset[int] = frozenset()
    consumers: tuple[str, ...] = ()
    is_model_output: bool = False
    several_results: bool = False
    dequantizes: bool = False
    takes_float: bool = False
    fixed_scale: float | None = None
    module_qconfig: QConfig | None | Unset = UNSET
    module_qconfig_path: str = ""
    modules: tuple[tuple[str, type], ...] = ()
    float_reason: str | None = None
    forced_dtype: QuantDType | None = None
    forced_by: str = ""
    is_part: bool = False
    bounds: tuple[float, float] | None = None
    wants: Mapping[str, QuantDType] = field(default_factory=dict)
    march: tuple[MarchRule, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    input_shapes: tuple[tuple[int, ...] | None, ...] = ()
    output_shape: tuple[int, ...] = ()

    def role(self, index: int) -> str:
        """The role of operand ``index``, ``""`` where it is not known."""
        if not self.roles or index < 0:
            return ""
        return self.roles[min(index, len(self.roles) - 1)]

    @classmethod
    def from_spec(cls, spec: OpSpec, **fields: Any) -> OpView:
        """A view whose ``op``, ``rule``, ``fuse``, ``is_gemm``, ``weight``, ``march`` and those
        of stubs come from the registry; ``fields`` gives the others and may replace these.
        """
        quantizes = spec.family == "quant" and spec.rule is Rule.OWN_SCALE
        known: dict[str, Any] = {
            "op": spec.name,
            "rule": spec.rule,
            "roles": spec.roles,
            "wants": spec.wants,
            "fuse": spec.fuse,
            "is_gemm": spec.fuse is FuseRole.GEMM or spec.family == "gemm",
            "weight": spec.weight_role is not None,
            "march": spec.march,
            "dequantizes": spec.family == "quant" and spec.rule is Rule.NO_SCALE,
            "takes_float": quantizes,
            "fixed_scale": fields.get("attrs", {}).get("scale") if quantizes else None,
        }
        return cls(**(known | fields))


@dataclass(frozen=True, slots=True)
class PortPlan:
    """A fake-quantize to build, or a FakeCast where ``dtype`` is float16.

    ``rule`` says which rule decided its dtype. Its scale is fixed at ``scale``, or at the one that
    ``threshold`` gives on its grid, or observed where both are ``None``. ``bounds``: see
    ``FakeQuantize``.
    """

    dtype: QuantDType | FloatDType
    constructor: Callable[..., FakeQuantize]
    rule: str
    threshold: float | None = None
    scale: float | None = None
    bounds: tuple[float, float] | None = None

    def make(
        self, channel_len: int = 1, ch_axis: int = -1, name: str = ""
    ) -> FakeQuantize | FakeCast:
        """Build the fake-quantize; ``ch_axis`` -1 is one scale for the tensor."""
        if isinstance(self.dtype, FloatDType):
            return FakeCast(self.dtype, name=name)
        where: dict[str, Any] = {"name": name}
        if ch_axis != -1:
            where |= {"ch_axis": ch_axis, "channel_len": channel_len}
        scale = self.scale
        if scale is None and self.threshold is not None:
            scale = float(scale_from_threshold(self.threshold, self.dtype))
        if scale is not None:
            return FakeQuantize(FixedScaleObserver, scale=scale, dtype=self.dtype, **where)
        fake_quantize = self.constructor(**where)
        if fake_quantize.ch_axis != ch_axis:
            raise QconfigError(
                f"{name}: the qconfig asks for one scale per channel (ch_axis "
                f"{fake_quantize.ch_axis}), but the BPU has one scale for an activation; leave "
                "ch_axis out, and take an observer for the whole tensor"
            )
        if fake_quantize.dtype != self.dtype:
            fake_quantize.set_dtype(self.dtype)
        fake_quantize.bounds = self.bounds
        return fake_quantize


@dataclass(frozen=True, slots=True)
class OpQuantPlan:
    """What one operator gets.

    ``float_reason``: it stays float, for this reason; then there are no ports. ``output`` is
    ``None`` for members of a group before the last, results that keep their input's scale,
    results without a scale, and high-precision GEMMs (``high_precision``). ``dtype``: what the
    result has for its consumers, ``None`` for float and for results without a scale. ``qconfig``:
    what a rule gave as a whole.
    """

    float_reason: str | None = None
    output: PortPlan | None = None
    weight: PortPlan | None = None
    inputs: Mapping[int, PortPlan] = field(default_factory=dict)
    dtype: QuantDType | FloatDType | None = None
    high_precision: bool = False
    qconfig: QConfig | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """One line of the explanation: a port, what was asked, what it got, and why.

    ``port``: ``output``, ``weight``, ``input-0``... ``corrected`` marks the lines where the given
    dtype is not the asked one.
    """

    name: str
    port: str
    asked: str
    given: str
    rule: str
    reason: str = ""
    corrected: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """An operator that the march can't run.

    ``by_configuration``: not the operator but a dtype that was asked for it.
    """

    name: str
    op: str
    reason: str
    by_configuration: bool = False


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """A result that leaves the model quantized, not in high precision, and why.

    ``avoidable``: a qconfig for much more than this output keeps it so.
    """

    name: str
    reason: str
    avoidable: bool = False


@dataclass(frozen=True, slots=True)
class Basis:
    """What a resolution was made from: ``resolve_with`` asks again with more rules.

    It stays in this process: rules and marches hold functions, so a pickled model has none.
    """

    views: tuple[OpView, ...]
    rules: Rules
    march: March

    def __deepcopy__(self, memo: Any) -> Basis:
        return self

    def __reduce__(self) -> Any:
        return _nothing, ()


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Resolution:
    """The answer of ``resolve``; every operator has a plan, every choice a decision.

    ``outputs``: results that leave the model quantized. ``advise_outputs``: whether the setter
    promises high precision wherever possible, so that each of them is worth a line. ``basis``: what
    it was made from.
    """

    plans: Mapping[str, OpQuantPlan]
    explanation: tuple[Decision, ...]
    unmatched_rules: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    outputs: tuple[ModelOutput, ...] = ()
    advise_outputs: bool = False
    basis: Basis | None = field(default=None, compare=False, repr=False)

    @property
    def corrections(self) -> tuple[Decision, ...]:
        """The decisions that gave something else than what was asked."""
        return tuple(decision for decision in self.explanation if decision.corrected)

    def raise_refused(self, march: str) -> None:
        """Raise ``MarchError`` that lists every operator which ``march`` can't run."""
        if not self.refused:
            return
        lines = "; ".join(f"{r.name} ({r.op}): {r.reason}" for r in self.refused)
        raise MarchError(
            f"march {march} can't run: {lines}. Replace these operators, choose another march, or "
            "keep their modules float with module.qconfig = None or hybrid=True."
        )
