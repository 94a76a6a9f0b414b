"""A batch norm absorbed by the GEMM before it: by prepare (FuseBN), on request, and at export."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import fx, nn

from qtune.capture.members import attribute_at
from qtune.errors import ArgumentError
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import QATOp, qat_class
from qtune.nn.qat.kept_norm import KeptNorm
from qtune.ops.norm.fold import fold_batch_norm
from qtune.ops.registry import find_module
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.learned import LearnedFakeQuantize

_Module = TypeVar("_Module", bound=nn.Module)


def absorb_bn(model: nn.Module, modules: str | Iterable[str] = ("",)) -> nn.Module:
    """Absorb the batch norms that WithBN and WithBNReverseFold keep; return ``model``.

    ``modules``: names of the sub-modules whose norms are absorbed, so that a training may absorb
    them part by part; default all. Changes ``model`` in place: ``W' = W * f`` and
    ``b' = (b - running_mean) * f + beta`` with ``f = gamma / sqrt(running_var + eps)`` become the
    GEMM's parameters, an Identity stays where the norm was. ``hbdk4.export`` and ``pre_export`` do
    this on their copy.

    In WithBNReverseFold the scale of the weight fits ``W'`` already: the eval forward keeps its
    bits. In WithBN the scale of ``W'`` is observed anew, which changes results a little where the
    old one was an average over steps; a learned or given scale is multiplied by ``abs(f)``.

    The parameters are other tensors afterwards: make a new optimizer. Raises ``ArgumentError`` for
    a name under which no norm is kept.
    """
    names = [modules] if isinstance(modules, str) else list(modules)
    found = list(dict.fromkeys(_kept(model)))
    for name in names:
        chosen = [kept for kept in found if _is_inside(kept.norm.name, name)]
        if not chosen and name:
            listed = ", ".join(kept.norm.name for kept in found) or "none"
            raise ArgumentError(
                f"absorb_bn: no batch norm is kept in {name!r}; kept are: {listed}. Norms are kept "
                "by a QAT mode WithBN or WithBNReverseFold that is set before prepare"
            )
        for kept in chosen:
            if kept.gemm.kept is kept:
                _absorb(model, kept, final=False)
    _recompile(model)
    return model


def absorb_for_export(model: nn.Module) -> None:
    """Absorb every norm that is still kept, in place, for good: the eval forward keeps its bits."""
    for kept in dict.fromkeys(_kept(model)):
        _absorb(model, kept, final=True)
    _recompile(model)


def absorbed(model: _Module) -> _Module:
    """``model`` if it keeps no norm, else a copy that has absorbed them."""
    if next(_kept(model), None) is None:
        return model
    result = copy.deepcopy(model)
    absorb_for_export(result)
    return result


def _kept(model: nn.Module) -> Iterator[KeptNorm]:
    for module in model.modules():
        if isinstance(module, QATOp) and module.kept is not None:
            yield module.kept


def _is_inside(name: str, path: str) -> bool:
    return not path or name == path or name.startswith(f"{path}.")


def _recompile(model: nn.Module) -> None:
    if isinstance(model, PreparedModel):
        model.recompile()


@dataclass(frozen=True, slots=True)
class Located:
    """An operator, and one of its calls in the graph of ``model``, where there is one."""

    model: nn.Module
    op: QATOp
    node: fx.Node | None = None

    def operand(self, role: str) -> tuple[Any, Callable[[Any], None]]:
        """The parameter that fills a role, and how to replace it."""
        op = self.op
        if role not in op.spec.roles:
            return None, lambda value: None
        value = self._argument(op.spec.roles.index(role))
        if isinstance(value, fx.Node):
            if value.op != "get_attr":
                return None, lambda new: None
            owner, _, name = str(value.target).rpartition(".")
            module = self.model.get_submodule(owner)
            return attribute_at(module, [name]), lambda new: _set(module, name, new)
        name = op.params.get(role, role)

        def replace(new: Any) -> None:
            op.params[role] = name
            _set(op, name, new)

        return getattr(op, op.params[role], None) if role in op.params else None, replace

    def _argument(self, index: int) -> Any:
        arguments = () if self.node is None else self.node.args
        return arguments[index] if index < len(arguments) else None


def fold_into(gemm: Located, norm: Located) -> None:
    """Make the norm part of the weight and the bias of the GEMM, in float64, rounded once."""
    weight, set_weight = gemm.operand("weight")
    bias, set_bias = gemm.operand("bias")
    op = gemm.op
    axis = 0 if op.spec.weight_axis is None else op.spec.weight_axis(op.attrs)
    new_weight, new_bias = fold_batch_norm(
        weight,
        bias,
        mean=norm.operand("running_mean")[0],
        variance=norm.operand("running_var")[0],
        gamma=norm.operand("weight")[0],
        beta=norm.operand("bias")[0],
        eps=norm.op.attrs["eps"],
        transposed=axis == 1,
        groups=op.weight_groups(op.attrs),
    )
    set_weight(new_weight)
    set_bias(new_bias)


def leave_identity(norm: QATOp, calls: Iterable[fx.Node]) -> QATOp:
    """The Identity that stands for an absorbed norm, which keeps its output's fake-quantize.

    The calls of the norm become calls of it.
    """
    found = find_module(nn.Identity)
    if found is None:
        raise ArgumentError("the registry has no operator for nn.Identity")
    spec, target = found
    bound = target.bind(nn.Identity(), None)
    identity = qat_class(spec, nn.Identity)(
        spec.name, norm.name, bound.attrs, float_type=norm.float_type
    )
    identity.float_repr = ""
    identity.qconfig = norm.qconfig
    identity.consistency_level = norm.consistency_level
    identity.group = norm.group
    identity.activation_post_process = norm.activation_post_process
    identity.train(norm.training)
    nodes = list(calls)
    for node in nodes:
        node.args, node.kwargs = target.bind(nn.Identity(), node.args[0]).tensors, {}
        node.meta["op"] = spec.name
    _keep_used(norm, identity, nodes)
    return identity


def _keep_used(norm: QATOp, identity: QATOp, calls: list[fx.Node]) -> None:
    """A subclass of the layer may call modules of its own and count batches in its forward."""
    for name, child in norm.named_children():
        identity.add_module(name, child)
    for node in calls[0].graph.find_nodes(op="get_attr") if calls else ():
        owner, _, name = str(node.target).rpartition(".")
        if owner == norm.name and node.users and name in norm._parameters:
            identity.register_parameter(name, norm._parameters[name])
        elif owner == norm.name and node.users and name in norm._buffers:
            identity.register_buffer(name, norm._buffers[name])


def _absorb(model: nn.Module, kept: KeptNorm, *, final: bool) -> None:
    gemm, norm = kept.gemm, kept.norm
    calls = _calls(model, norm)
    quantizer = gemm.weight_fake_quant
    has_scale = quantizer is not None and bool(quantizer.observed)
    scale = kept.folded_scale() if has_scale else None
    place = next(iter(_calls(model, gemm)), None)
    fold_into(Located(model, gemm, place), Located(model, norm))
    identity = leave_identity(norm, calls)
    paths = [p for p, m in model.named_modules(remove_duplicate=False) if m is norm]
    for path in paths:
        model.set_submodule(path, identity)
    gemm.kept = norm.kept = None
    if scale is not None and not kept.reverse:
        _rescale(Located(model, gemm, place), scale, final=final)


def _calls(model: nn.Module, op: QATOp) -> list[fx.Node]:
    if not isinstance(model, PreparedModel):
        return []
    return [node for node, called in model.operators(aside=True) if called is op]


def _rescale(gemm: Located, scale: torch.Tensor, *, final: bool) -> None:
    """Give the weight's fake-quantize the scale of the folded weight."""
    quantizer = gemm.op.weight_fake_quant
    if not isinstance(quantizer, FakeQuantize):
        return
    observer = quantizer.activation_post_process
    is_learned = isinstance(quantizer, LearnedFakeQuantize)
    is_given = is_learned or bool((observer.threshold > 0).any())
    if final or is_given or not bool(observer.observed):
        quantizer.set_qparams(scale)
        return
    quantizer.observe_anew(gemm.op.weight_view(gemm.operand("weight")[0]))


def _set(module: nn.Module, name: str, value: torch.Tensor) -> None:
    old = module._parameters.get(name, getattr(module, name, None))
    if isinstance(old, nn.Parameter) and old.shape == value.shape:
        with torch.no_grad():
            old.copy_(value)
        return
    requires_grad = old is None or old.requires_grad
    module.register_parameter(name, nn.Parameter(value, requires_grad=requires_grad))
