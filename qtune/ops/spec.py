"""What the registry knows about one operator, and nothing else.

An operator is one file ``qtune/ops/<family>/<op>.py`` that calls :func:`register` with an
:class:`OpSpec`. Every stage (capture, prepare, export, convert, run, docs, fuzzing) asks the
registry; no stage names an operator.

Words: a *target* is a torch spelling; a *role* is the name of a tensor operand; *attrs* are all
other arguments in canonical form; *kernels* are the HBIR operators that this operator owns.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from qtune.arith.table import RealFunction
from qtune.dtype import QuantDType, float16
from qtune.march import March
from qtune.ops.kernel import HbirKernel

TableFactory = Callable[[Mapping[str, Any]], RealFunction]
"""``table(attrs)``: the function of a ``TABLE`` operator with these attrs."""


class Rule(enum.Enum):
    """How the result of an operator gets its scale (numerics.md sections 2 and 3)."""

    OWN_SCALE = "own scale"
    """The result has an observer of its own."""
    INPUT_SCALE = "input's scale"
    """The result keeps the scale of the first quantized operand; no observer."""
    TABLE = "table"
    """Own scale; element-wise function of one operand, a look-up table after pre_export."""
    DECOMPOSED = "decomposed"
    """Replaced in ``prepare`` by other operators of the registry."""
    NO_SCALE = "no scale"
    """The result is no quantized number (bool, int, float): comparisons, argmax, DeQuantStub."""


class FuseRole(enum.Enum):
    """The part an operator plays in the fusible patterns (toolchain_facts 7.3)."""

    GEMM = "gemm"
    BN = "bn"
    ADD = "add"
    RELU = "relu"


@dataclass(frozen=True, slots=True)
class Bound:
    """One call in canonical form.

    ``tensors`` follow the order of ``OpSpec.roles`` (``None`` for an absent optional one) and hold
    whatever the caller passed: tensors, fx nodes, Python scalars (an ``add`` of ``2``).
    ``attrs`` holds every other argument; a value may be an fx node (a symbolic size).
    """

    tensors: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModuleTarget:
    """A torch module class. ``bind(module, *args, **kwargs)`` gives the canonical call.

    ``params`` maps a role to the name of the module's parameter or buffer that fills it, for
    example ``{"weight": "weight", "bias": "bias"}``; these roles are ``None`` in ``Bound.tensors``.
    A name may be that of a child's parameter (``out_proj.weight``). ``many(module)``: the names
    that fill the role ``*name``, one after the other, where their number depends on the module.
    """

    cls: type
    bind: Callable[..., Bound]
    params: Mapping[str, str] = field(default_factory=dict)
    many: Callable[[Any], Sequence[str]] | None = None

    def filled(self, module: Any, roles: Sequence[str]) -> dict[str, str]:
        """Role to parameter for one module; ``*name`` becomes ``*name.0``, ``*name.1``, ..."""
        names = () if self.many is None else self.many(module)
        return {**self.params, **{f"{roles[-1]}.{i}": name for i, name in enumerate(names)}}


@dataclass(frozen=True, slots=True)
class FunctionTarget:
    """A function. ``bind(*args, **kwargs)`` has the function's own signature."""

    function: Callable[..., Any]
    bind: Callable[..., Bound]


@dataclass(frozen=True, slots=True)
class MethodTarget:
    """A method of ``torch.Tensor`` by name. ``bind(self, *args, **kwargs)``.

    ``inplace`` methods (``relu_``, ``__iadd__``) become the same functional operator.
    """

    name: str
    bind: Callable[..., Bound]


Target = ModuleTarget | FunctionTarget | MethodTarget


@dataclass(frozen=True, slots=True)
class ForeignTarget:
    """A module class or an operator (``torch.ops``) of a package that need not be installed.

    ``name``: the class's qualified name, or ``<namespace>.<operator>``. Nothing imports the
    package: it matches what the user's model brings. The rest as in :class:`ModuleTarget` and
    :class:`FunctionTarget`.
    """

    name: str
    bind: Callable[..., Bound]
    params: Mapping[str, str] = field(default_factory=dict)


class Float16(enum.Enum):
    """Where an operator takes float16 on the marches that compute in it (toolchain_facts 1.2)."""

    VECTOR = "inputs and result"
    """The vector unit computes it: inputs and result, as far as the rule has qint16 there."""
    RESULT = "result"
    """A GEMM: its exact sum leaves in float16, its operands are integers."""
    NONE = "no"


Shapes = Sequence[tuple[int, ...] | None]
ShapeCheck = Callable[[Mapping[str, Any], Sequence[Any], tuple[int, ...]], str | None]
DTypeCheck = Callable[[Mapping[str, Any], Shapes, frozenset[str], str], str | None]


@dataclass(frozen=True, slots=True)
class MarchRule:
    """Which dtypes and shapes one series of marches takes; data for the march check and the docs.

    ``series``: names of march series. ``inputs`` and ``outputs``: allowed names of quantized
    dtypes; ``operands`` gives the inputs of single roles, of which float16 is none. ``float16``:
    where it is taken on marches that have it. Each check returns a reason for refusal, with what is
    possible instead, or ``None``: ``check(attrs, input_shapes, output_shape)``, and
    ``check_dtypes(attrs, input_shapes, input_dtypes, output_dtype)`` for limits that depend on
    dtypes (names; the output's is ``""`` while it is not decided).
    """

    series: tuple[str, ...]
    inputs: tuple[str, ...] = ("qint8", "qint16")
    outputs: tuple[str, ...] = ("qint8", "qint16")
    check: ShapeCheck | None = None
    check_dtypes: DTypeCheck | None = None
    operands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    float16: Float16 = Float16.VECTOR

    def covers(self, march: March) -> bool:
        """Whether the rule speaks of ``march``."""
        return march.series in self.series

    def takes(self, march: March, role: str = "") -> tuple[str, ...]:
        """Names of the dtypes that operands of ``role`` (any operand: ``""``) may have."""
        if role in self.operands:
            return self.operands[role]
        vector = self.float16 is Float16.VECTOR
        return (*self.inputs, *_float16_beside(self.inputs, march, vector))

    def gives(self, march: March) -> tuple[str, ...]:
        """Names of the dtypes that the result may have."""
        some = self.float16 is not Float16.NONE
        return (*self.outputs, *_float16_beside(self.outputs, march, some))


def _float16_beside(names: tuple[str, ...], march: March, taken: bool) -> tuple[str, ...]:
    """float16 goes wherever a 16-bit number goes; operators of int8 only have no such path."""
    return (float16.name,) if taken and march.limits.float16 and "qint16" in names else ()


ALL_SERIES = ("bernoulli", "bayes", "nash")
ANY_MARCH = (MarchRule(("bernoulli",), ("qint8",), ("qint8",)), MarchRule(("bayes", "nash")))


@dataclass(frozen=True, slots=True)
class Sample:
    """One random call for fuzzing: shapes of the operands by role, and attrs.

    ``None`` as a shape is an absent operand, or the Python number that ``numbers`` holds for it.
    ``indices`` names the operands that are int64 indices: each below the number it holds.
    """

    shapes: tuple[tuple[int, ...] | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[int, float] = field(default_factory=dict)
    indices: Mapping[int, int] = field(default_factory=dict)


class DecomposeBuilder(Protocol):
    """Emits the operators that replace a ``DECOMPOSED`` one. Nodes are opaque to the operator."""

    def call(
        self,
        op_name: str,
        tensors: Sequence[Any],
        attrs: Mapping[str, Any] | None = None,
        *,
        part: str,
        forced_dtype: QuantDType | None = None,
        bounds: tuple[float, float] | None = None,
    ) -> Any:
        """Append one call of the registry's operator ``op_name`` and return its node.

        ``tensors`` and ``attrs`` are canonical (see :class:`Bound`). The operator is named
        ``<name>.<part>``. ``forced_dtype`` is the dtype of its result (qint16 inside a softmax);
        ``None`` takes the dtype configured for the operator that is replaced. ``bounds``: two
        numbers that the (positive) result can't leave whatever the input; within them its
        calibrated range gets headroom.
        """

    def is_tensor(self, value: Any) -> bool:
        """Whether ``value`` is the node of a tensor (not a Python number, not a size)."""

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """The example's shape of a node."""

    def dtype(self, tensor: Any) -> Any:
        """The example's ``torch.dtype`` of a node."""

    def items(self, result: Any) -> tuple[Any, ...]:
        """The single results of a part that gives several (``unbind``, ``chunk``)."""

    def constant(self, value: Any, *, part: str) -> Any:
        """A node that holds the tensor ``value``, which no training changes."""

    def is_constant(self, tensor: Any) -> bool:
        """Whether parameters, buffers and sizes alone decide a node."""

    def known(self, tensor: Any) -> Any:
        """The tensor that a constant node holds for the example, ``None`` if it can't be told."""

    def made_by(self, tensor: Any) -> tuple[str, Bound] | None:
        """The operator of the registry that makes a node, and its call."""

    def float_call(
        self, function: Callable[..., Any], args: Sequence[Any], *, part: str, reason: str
    ) -> Any:
        """Append a call that stays float whatever the configuration says, because of ``reason``."""

    def require_size(self, tensor: Any, dim: int, why: str) -> int:
        """The example's size; another one at run time raises ``GuardError`` with ``why``."""

    def require(self, check: Callable[..., bool], tensor: Any, why: str) -> None:
        """Raise ``GuardError`` with ``why`` in each call where ``check(tensor)`` is false."""


@dataclass(frozen=True, slots=True)
class ExactForm:
    """The integer rule of an operator on floats, for int8 data on the grid of ``scale``.

    From the consistency level ``level`` on, the prepared model computes ``kernel(scale, *tensors,
    **attrs)`` and export emits ``lower(builder, call, scale)`` (numerics.md section 4): both give
    the very values of the integer operator.
    """

    kernel: Callable[..., Any]
    lower: Callable[..., Any]
    level: int = 1


@dataclass(frozen=True, slots=True)
class Steps:
    """How a call that the march refuses as a whole becomes several of the same operator.

    ``applies(attrs, input_shapes)``: whether it can. ``emit(builder, bound)``: as
    ``OpSpec.decompose``.
    """

    applies: Callable[[Mapping[str, Any], Shapes], bool]
    emit: Callable[[DecomposeBuilder, Bound], Any]


@dataclass(frozen=True, slots=True)
class OpSpec:
    """Everything about one operator.

    ``float_kernel(*tensors, **attrs)`` is torch's own function (bit-equal to the float model).
    ``lower(builder, call)`` emits standard ONNX (or ``qtune``) float nodes and returns the result
    value(s). ``decompose(builder, bound)`` (a :class:`DecomposeBuilder` and a :class:`Bound` whose
    operands are nodes or numbers) replaces the call by other registry operators and returns the
    node of the result, or a tuple of nodes (tuples may be nested, ``None`` stands for no result).
    ``table(attrs)`` gives the function of a ``TABLE`` operator, float64 array to float64 array:
    what the look-up table holds and what VALIDATION evaluates (numerics.md section 3).
    ``wants``: role -> the dtype that operand needs for its meaning (int16 coordinates). Everything
    that makes it, back to the nearest GEMM or QuantStub, is set to that dtype.
    ``weight_role``/``weight_axis(attrs)``: the operand quantized per channel, and its axis.
    ``weight_groups(attrs)``: where given and above 1, that axis holds the channels of one group
    only (grouped transposed convolution); ``qtune.ops.gemm.channels`` has the view in which every
    real output channel lies on the axis.
    ``weight_attrs``: attributes that the weight's shape decides (the groups of a convolution); a
    size that a model passes for one is the same for every input.
    ``fills(attrs)``: the number that a movement operator puts beside its input's values (pad,
    tril), ``None`` for none; an int16 table behind it must cover that number too.
    ``flops(attrs, input_shapes, output_shape)``: one per multiply-add. ``exact``: for operators
    whose float kernel strays from the integers by more than a requantize. ``steps``: for calls
    that are too large for a march.
    """

    name: str
    family: str
    rule: Rule
    roles: tuple[str, ...]
    targets: tuple[Target, ...]
    float_kernel: Callable[..., Any] | None
    foreign: tuple[ForeignTarget, ...] = ()
    lower: Callable[..., Any] | None = None
    decompose: Callable[[DecomposeBuilder, Bound], Any] | None = None
    table: TableFactory | None = None
    kernels: tuple[HbirKernel, ...] = ()
    wants: Mapping[str, QuantDType] = field(default_factory=dict)
    weight_role: str | None = None
    weight_axis: Callable[[Mapping[str, Any]], int] | None = None
    weight_groups: Callable[[Mapping[str, Any]], int] | None = None
    weight_attrs: tuple[str, ...] = ()
    fuse: FuseRole | None = None
    march: tuple[MarchRule, ...] = ANY_MARCH
    fills: Callable[[Mapping[str, Any]], float | None] | None = None
    flops: Callable[..., int] | None = None
    exact: ExactForm | None = None
    steps: Steps | None = None
    sample: Callable[..., Sample] | None = None
    doc: str = ""
