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
from qtune.dtype import QuantDType
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
    """

    cls: type
    bind: Callable[..., Bound]
    params: Mapping[str, str] = field(default_factory=dict)


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
class MarchRule:
    """Which dtypes and shapes one series of marches takes; data for the march check and the docs.

    ``series``: names of march series. ``inputs`` and ``outputs``: allowed dtype names.
    ``check(attrs, input_shapes, output_shape)`` returns a reason for refusal or ``None``.
    """

    series: tuple[str, ...]
    inputs: tuple[str, ...] = ("qint8", "qint16")
    outputs: tuple[str, ...] = ("qint8", "qint16")
    check: (
        Callable[[Mapping[str, Any], Sequence[tuple[int, ...]], tuple[int, ...]], str | None] | None
    ) = None


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
    ) -> Any:
        """Append one call of the registry's operator ``op_name`` and return its node.

        ``tensors`` and ``attrs`` are canonical (see :class:`Bound`). The operator is named
        ``<name>.<part>``. ``forced_dtype`` is the dtype of its result (qint16 inside a softmax);
        ``None`` takes the dtype configured for the operator that is replaced.
        """

    def is_tensor(self, value: Any) -> bool:
        """Whether ``value`` is the node of a tensor (not a Python number, not a size)."""

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """The example's shape of a node."""

    def dtype(self, tensor: Any) -> Any:
        """The example's ``torch.dtype`` of a node."""


@dataclass(frozen=True, slots=True)
class OpSpec:
    """Everything about one operator.

    ``float_kernel(*tensors, **attrs)`` is torch's own function (bit-equal to the float model).
    ``lower(builder, call)`` emits standard ONNX (or ``qtune``) float nodes and returns the result
    value(s). ``decompose(builder, bound)`` (a :class:`DecomposeBuilder` and a :class:`Bound` whose
    operands are nodes or numbers) replaces the call by other registry operators and returns the
    node of the result, or a tuple of nodes.
    ``table(attrs)`` gives the function of a ``TABLE`` operator, float64 array to float64 array:
    what the look-up table holds and what VALIDATION evaluates (numerics.md section 3).
    ``weight_role``/``weight_axis(attrs)``: the operand quantized per channel, and its axis.
    ``weight_groups(attrs)``: where given and above 1, that axis holds the channels of one group
    only (grouped transposed convolution); ``qtune.ops.gemm.channels`` has the view in which every
    real output channel lies on the axis.
    ``flops(attrs, input_shapes, output_shape)``: one per multiply-add.
    """

    name: str
    family: str
    rule: Rule
    roles: tuple[str, ...]
    targets: tuple[Target, ...]
    float_kernel: Callable[..., Any] | None
    lower: Callable[..., Any] | None = None
    decompose: Callable[[DecomposeBuilder, Bound], Any] | None = None
    table: TableFactory | None = None
    kernels: tuple[HbirKernel, ...] = ()
    weight_role: str | None = None
    weight_axis: Callable[[Mapping[str, Any]], int] | None = None
    weight_groups: Callable[[Mapping[str, Any]], int] | None = None
    fuse: FuseRole | None = None
    march: tuple[MarchRule, ...] = ANY_MARCH
    flops: Callable[..., int] | None = None
    sample: Callable[..., Sample] | None = None
    doc: str = ""
