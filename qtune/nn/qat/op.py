"""``QATOp``: one operator of a prepared model, with the fake-quantizes around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn

from qtune.errors import PrepareError
from qtune.nn.qat.call_form import CallForm
from qtune.nn.qat.grids import BIAS, bias_on_grid, looked_up, on_exact_form
from qtune.nn.qat.kept_norm import KeptNorm
from qtune.ops.gemm.channels import channel_unview, channel_view
from qtune.ops.registry import spec as registry_spec
from qtune.ops.spec import OpSpec, Rule
from qtune.quantizers.fake_cast import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.state import FakeQuantState
from qtune.quantizers.uncompiled import runs_eagerly

TRAINING = "training"
"""Attribute of operators that behave otherwise in training (batch norm, dropout); ``None`` means
the mode of the module."""

_INPUTS = "input_fake_quants"


class QATOp(nn.Module):
    """One operator: quantize the inputs that ask for it, run torch's function, quantize the result.

    ``op``: name in the registry. ``name``: path in the model. ``attrs``: static arguments in
    canonical form; dynamic ones (sizes) come with the call. ``float_type``: qualified name of the
    float class or function. ``params`` maps a role to the attribute that fills it. The float
    module's parameters and buffers live here under their own names, so that its ``state_dict``
    stays valid.

    ``activation_post_process`` quantizes the result or casts it to float16; ``None`` for members of
    a fused group before the last, for operators that keep their input's scale and for results
    without one.
    ``input_fake_quants``: fake-quantizes of operands, by the operand's index as text.
    ``consistency_level``: that of the model; ``grid_sources``: from level 1 on, the fake-quantize
    that the first operand comes from, for each call.
    ``kept``: for a GEMM and the batch norm behind it in the QAT modes that keep it, what ties them.
    ``call_form``: in eager mode, how the user's forward calls the layer that was here; ``group``:
    the name of the last layer that this one was fused with, ``""`` for none.
    """

    activation_post_process: FakeQuantize | FakeCast | None
    weight_fake_quant: FakeQuantize | None
    input_fake_quants: Mapping[str, FakeQuantize | FakeCast]
    consistency_level: int | None = None
    grid_sources: tuple[FakeQuantize | None, ...] = ()
    level_table: tuple[list[float], torch.Tensor] | None = None
    kept: KeptNorm | None = None
    call_form: CallForm | None = None
    group: str = ""

    def __init__(
        self, op: str, name: str, attrs: Mapping[str, Any] | None = None, *, float_type: str = ""
    ) -> None:
        super().__init__()
        self.op = op
        self.name = name
        self.attrs = dict(attrs or {})
        self.float_type = float_type
        self.params: dict[str, str] = {}
        self.qconfig: Any = None
        self.float_repr: str | None = None
        self.weight_fake_quant = None
        if self.spec.rule is Rule.OWN_SCALE:
            self.register_module("activation_post_process", None)  # printed, as the documents do
        else:
            self.activation_post_process = None

    @property
    def spec(self) -> OpSpec:
        """The operator's entry in the registry."""
        return registry_spec(self.op)

    def quantize_input(self, index: int, quantizer: FakeQuantize | FakeCast) -> None:
        """Give operand ``index`` a fake-quantize (or a cast) of its own."""
        inputs = self._modules.setdefault(_INPUTS, nn.ModuleDict())
        if isinstance(inputs, nn.ModuleDict):
            inputs[str(index)] = quantizer

    def __getattr__(self, name: str) -> Any:
        if name == _INPUTS and _INPUTS not in self._modules:
            return MappingProxyType({})  # most operators have none; don't print an empty dict
        return super().__getattr__(name)

    @property
    def follows_training(self) -> bool:
        """Whether the operator behaves as the mode of this module says (batch norm, dropout)."""
        return self.attrs.get(TRAINING, False) is None

    @property
    def normalizes_batches(self) -> bool:
        """Whether a batch norm now uses the statistics of the batch, not the running ones."""
        return self.training if self.follows_training else bool(self.attrs.get(TRAINING))

    @property
    def fake_quantizes_weight(self) -> bool:
        """Whether the weight's fake-quantize changes it in its present state."""
        return fake_quantizes(self.weight_fake_quant)

    def adopt(self, module: nn.Module, params: Mapping[str, str]) -> None:
        """Take over the parameters, buffers, children and hooks of the float ``module``.

        Tensors are shared, not copied: parameters tied in the float model stay tied.
        """
        self.params = dict(params)
        self.float_repr = module.extra_repr()
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            self.register_parameter(name, parameter)
        persistent = module._non_persistent_buffers_set
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            self.register_buffer(name, buffer, persistent=name not in persistent)
        for name, child in module.named_children():
            self.add_module(name, child)
        for attribute in params.values():
            if "." not in attribute and not hasattr(self, attribute):
                self.register_parameter(attribute, None)
        self._forward_hooks.update(module._forward_hooks)
        self._forward_pre_hooks.update(module._forward_pre_hooks)
        self.train(module.training)

    @runs_eagerly
    def forward(self, *operands: Any, **dynamic: Any) -> Any:
        """Run the operator on ``operands`` (one per role, ``None`` where a parameter fills it).

        In eager mode it also takes the call of the layer that was here.
        """
        if self.call_form is not None:
            operands, dynamic = self.call_form.operands(operands, dynamic)
        attrs = {**self.attrs, **dynamic}
        if self.follows_training:
            attrs[TRAINING] = self.training
        values = self.fill(operands)
        for key, quantizer in self.input_fake_quants.items():
            values[int(key)] = quantizer(values[int(key)])
        if self.weight_fake_quant is not None:
            if self.kept is not None and self.kept.is_folded:
                self.kept.fold(values, attrs)
            index = self.weight_index
            values[index] = self.quantize_weight(values[index], attrs)
            self._settle_bias(values, operands)
        if self.is_table_now():
            return self._table(values, attrs)
        passed = self.kept is not None and self.kept.is_passed_by(self)
        result = values[0] if passed else self.compute(values, attrs)
        if self.grid_sources and self.spec.exact is not None:
            result = on_exact_form(self, values, attrs, result)
        if self.activation_post_process is None:
            return result
        return self.activation_post_process(result)

    def fill(self, operands: tuple[Any, ...]) -> list[Any]:
        """Operands by role, with this module's parameters in their places.

        From consistency level 1 on the bias of a GEMM is the integer one; before a batch norm that
        is kept there is none yet.
        """
        roles = self.roles(len(operands))
        values = [
            self.param(role) if value is None and role in self.params else value
            for role, value in zip(roles, operands, strict=True)
        ]
        if self.grid_sources and BIAS in roles and self.kept is None:
            index = roles.index(BIAS)
            values[index] = bias_on_grid(self, values[index])
        return values

    def _settle_bias(self, values: list[Any], operands: tuple[Any, ...]) -> None:
        """The bias again: training may have moved the scale of the weight since ``fill``."""
        if self.training and self.grid_sources and BIAS in self.spec.roles:
            index = self.spec.roles.index(BIAS)
            values[index] = self.fill(operands)[index]

    def param(self, role: str) -> Any:
        """The parameter or buffer that fills a role; it may be a child's (``out_proj.weight``)."""
        return attrgetter(self.params[role])(self)

    def roles(self, count: int) -> tuple[str, ...]:
        """Names of ``count`` operands; a role ``*name`` at the end stands for any number.

        Where parameters fill it, they are ``*name.0``, ``*name.1``, ...
        """
        roles = self.spec.roles
        if not roles or not roles[-1].startswith("*"):
            return roles[:count]
        if f"{roles[-1]}.0" in self.params:
            return (*roles[:-1], *(f"{roles[-1]}.{i}" for i in range(count)))[:count]
        return (roles[:-1] + roles[-1:] * count)[:count]

    def compute(self, values: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """Run torch's own function on the operands."""
        kernel = self.spec.float_kernel
        if kernel is None:
            raise PrepareError(
                f"{self.name}: {self.op} has no kernel of its own; it must be decomposed first"
            )
        return kernel(*values, **attrs)

    def _table(self, values: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """A look-up table: the function in float64, rounded once (numerics.md section 3)."""
        wide = [value.double() if is_float(value) else value for value in values]
        result = self.activation_post_process(self.compute(wide, attrs))  # type: ignore[misc]
        result = result.to(values[0].dtype)
        return looked_up(self, values[0], result) if self.grid_sources else result

    def quantize_weight(self, weight: torch.Tensor, attrs: Mapping[str, Any]) -> torch.Tensor:
        """Fake-quantize the weight, one scale per real output channel.

        Quantized weights are contiguous, as in the exported file: a float sum over other strides
        has other last bits.
        """
        if self.weight_fake_quant is None:
            return weight
        if self.kept is not None:
            return self.kept.quantize(weight, attrs)
        groups = self.weight_groups(attrs)
        view = self.weight_fake_quant(channel_view(weight, groups))
        quantized: torch.Tensor = channel_unview(view, groups)
        return quantized.contiguous() if fake_quantizes(self.weight_fake_quant) else quantized

    def weight_groups(self, attrs: Mapping[str, Any]) -> int:
        """Groups that the weight's channel axis must be unfolded by (``OpSpec.weight_groups``)."""
        count = self.spec.weight_groups
        return 1 if count is None else count(attrs)

    def weight_view(self, weight: torch.Tensor) -> torch.Tensor:
        """``weight`` with its real output channels on one axis, as its fake-quantize sees it."""
        view: torch.Tensor = channel_view(weight, self.weight_groups(self.attrs))
        return view

    def is_table_now(self) -> bool:
        """Whether the result is now that of a look-up table (numerics.md section 3).

        Not under torch's ONNX exporter: standard operators are written there, in float32.
        """
        if torch.onnx.is_in_onnx_export():
            return False
        return self.spec.rule is Rule.TABLE and fake_quantizes(self.activation_post_process)

    @property
    def weight_index(self) -> int:
        """Position of the weight among the operands. torch.jit asks modules for all properties."""
        role = self.spec.weight_role
        if role is None:
            raise AttributeError(f"{self.name}: {self.op} has no weight to quantize")
        return self.spec.roles.index(role)

    def extra_repr(self) -> str:
        """The float module's own text, or the static arguments of the function."""
        if self.float_repr is not None:
            return self.float_repr
        given = ((key, value) for key, value in self.attrs.items() if value is not None)
        return ", ".join(f"{key}={value}" for key, value in given)


def is_float(value: Any) -> bool:
    """Whether ``value`` is a floating-point tensor."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def fake_quantizes(quantizer: Any) -> bool:
    """Whether a fake-quantize changes values in its present state; a FakeCast is none."""
    return isinstance(quantizer, FakeQuantize) and quantizer.state in (
        FakeQuantState.QAT,
        FakeQuantState.VALIDATION,
    )


def iter_stubs(model: nn.Module) -> Iterator[tuple[str, str, FakeQuantize]]:
    """Every fake-quantize of ``model`` as (operator name, kind, module), in order of execution.

    Kinds: ``output``, ``weight``, ``input-<n>``.
    """
    for name, kind, port in iter_ports(model):
        if isinstance(port, FakeQuantize):
            yield name, kind, port


def iter_ports(model: nn.Module) -> Iterator[tuple[str, str, FakeQuantize | FakeCast]]:
    """As :func:`iter_stubs`, with the casts to float16."""
    for op in iter_ops(model):
        for key, quantizer in op.input_fake_quants.items():
            yield op.name, f"input-{key}", quantizer
        if op.weight_fake_quant is not None:
            yield op.name, "weight", op.weight_fake_quant
        if op.activation_post_process is not None:
            yield op.name, "output", op.activation_post_process


def iter_ops(model: nn.Module) -> Iterator[QATOp]:
    """Every operator of ``model`` once, in order of execution where the model has a graph."""
    graph = getattr(model, "graph", None)
    if not isinstance(graph, fx.Graph):
        yield from (module for module in model.modules() if isinstance(module, QATOp))
        return
    seen: set[str] = set()
    for node in graph.nodes:
        if node.op != "call_module" or node.target in seen:
            continue
        seen.add(node.target)
        module = model.get_submodule(node.target)
        if isinstance(module, QATOp):
            yield module
