"""Prepared models made by hand: a graph of QATOps, calibrated on random data."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_arg

from qtune.capture.interface import Interface
from qtune.capture.structure import flatten
from qtune.dtype import QuantDType, qint8
from qtune.nn.qat import qat_class
from qtune.ops import registry
from qtune.ops.spec import Rule
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.observer import MovingAveragePerChannelMinMaxObserver
from qtune.quantizers.state import FakeQuantState


class Prepared(nn.Module):
    """Build with :meth:`input`, :meth:`module`, :meth:`function`; end with :meth:`outputs`."""

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.out_spec: Any = None
        self.eval()

    def input(self, name: str = "x") -> fx.Node:
        return self.graph.placeholder(name)

    def quantized_input(self, name: str = "x") -> fx.Node:
        stub = registry.spec("quant_stub").targets[0].cls()
        return self.module(stub, self.input(name), name=f"{name}_quant")

    def dequantized(self, node: fx.Node, name: str) -> fx.Node:
        return self.module(
            registry.spec("dequant_stub").targets[0].cls(), node, name=name, out=None
        )

    def module(
        self,
        module: nn.Module,
        *inputs: Any,
        name: str,
        out: QuantDType | str | None = "default",
        group: str | None = None,
    ) -> fx.Node:
        spec, target = registry.find_module(type(module))
        bound = target.bind(module, *inputs)
        op = qat_class(spec)(spec.name, name, dict(bound.attrs))
        op.adopt(module, target.params)
        if spec.weight_role is not None:
            groups = 1 if spec.weight_groups is None else spec.weight_groups(bound.attrs)
            axis = spec.weight_axis(bound.attrs)
            op.weight_fake_quant = FakeQuantize(
                MovingAveragePerChannelMinMaxObserver,
                ch_axis=axis,
                channel_len=op.weight.shape[axis] * groups,
                name=f"{name}.weight",
            )
        if out == "default":
            out = None if spec.rule is Rule.INPUT_SCALE else qint8
        return self._add(op, bound.tensors, name, out, group)

    def function(
        self,
        op_name: str,
        *inputs: Any,
        name: str,
        out: QuantDType | None = qint8,
        group: str | None = None,
        **attrs: Any,
    ) -> fx.Node:
        op = qat_class(registry.spec(op_name))(op_name, name, attrs)
        return self._add(op, inputs, name, out, group)

    def _add(
        self, op: Any, inputs: Sequence[Any], name: str, out: QuantDType | None, group: str | None
    ) -> fx.Node:
        if out is not None:
            op.activation_post_process = FakeQuantize(dtype=out, name=name)
        self.add_module(name.replace(".", "_"), op)
        static = {k: v for k, v in op.attrs.items() if not isinstance(v, (fx.Node, tuple))}
        dynamic = {k: v for k, v in op.attrs.items() if k not in static}
        op.attrs = static
        node = self.graph.call_module(name.replace(".", "_"), tuple(inputs), dynamic)
        node.meta.update(name=name, op=op.op, group=group or name)
        return node

    def outputs(self, *nodes: Any, structure: Any = None) -> Prepared:
        self.graph.output(tuple(nodes))
        plain = torch.zeros(1) if len(nodes) == 1 else tuple(torch.zeros(1) for _ in nodes)
        self.out_spec = flatten(plain if structure is None else structure)[1]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [node.target for node in self.graph.find_nodes(op="placeholder")]
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
        self.interface = Interface(None, self.out_spec, signature)
        return self.eval()

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values: dict[fx.Node, Any] = {}
        inputs = iter(tensors)
        for node in self.graph.nodes:
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            if node.op == "placeholder":
                values[node] = next(inputs)
            elif node.op == "output":
                return args[0]
            elif node.op == "get_attr":
                values[node] = getattr(self, node.target)
            elif node.op == "call_module":
                values[node] = self.get_submodule(node.target)(*args, **kwargs)
            elif node.op == "call_method":
                values[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
            else:
                values[node] = node.target(*args, **kwargs)
        raise AssertionError("no output")

    def state(self, state: FakeQuantState) -> Prepared:
        for module in self.modules():
            if isinstance(module, FakeQuantize):
                module.state = state
        return self

    def calibrated(self, *tensors: torch.Tensor) -> Prepared:
        self.state(FakeQuantState.CALIBRATION)
        with torch.no_grad():
            self(*tensors)
        return self.state(FakeQuantState.VALIDATION)


def small_cnn(x: torch.Tensor) -> Prepared:
    """conv-relu (fused), depthwise conv, add, pool, flatten, linear with high precision."""
    torch.manual_seed(0)
    p = Prepared()
    q = p.quantized_input()
    c = p.module(nn.Conv2d(3, 8, 3, padding=1), q, name="conv1", out=None, group="relu1")
    r = p.module(nn.ReLU(), c, name="relu1", out=qint8)
    d = p.module(nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8), r, name="conv2")
    a = p.function("add", d, d, name="add1", alpha=1)
    m = p.module(nn.MaxPool2d(2), a, name="pool")
    f = p.function("flatten", m, name="flat", out=None, start_dim=1, end_dim=-1)
    fc = p.module(nn.Linear(8 * 4, 5), f, name="fc", out=None)
    return p.outputs(p.dequantized(fc, "_output_0_dequant")).calibrated(x)
