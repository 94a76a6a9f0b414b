"""``prepare``: from a float model to a calibration / QAT model, step by step."""

from __future__ import annotations

import copy
import enum
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from qtune.capture.fusion import FusionResult
from qtune.capture.graph import GraphModel
from qtune.capture.inputs import as_example_list
from qtune.check.finite import non_finite_inputs
from qtune.check.misconceptions import at_prepare
from qtune.errors import PrepareError
from qtune.march import March, get_march
from qtune.modes import FuseMode, QATMode, get_consistency_level, get_qat_mode, level_on
from qtune.nn.consistency import apply_level
from qtune.nn.eager import as_graph, eager_facts
from qtune.nn.float_graph import FloatGraph
from qtune.nn.prepared import ORIGIN_CALL, FloatOp, PreparedModel, UnfusedOps
from qtune.nn.quantized.preserved import choose, chosen_paths
from qtune.nn.table import note_sources
from qtune.prepare.border import Border
from qtune.prepare.both_modes import capture_for_qat
from qtune.prepare.configure import attach, nearest_qconfig, operator_views, users_of
from qtune.prepare.decompose import decompose_all, undecomposable
from qtune.prepare.eager import check_eager, prepare_eager, settings_of
from qtune.prepare.fuse import fold_batch_norms, fuse, keep_batch_norms
from qtune.prepare.hybrid import Hybrid, refused_whole
from qtune.prepare.operators import Operators, remove_unused_attributes
from qtune.prepare.region import DEQUANT, Region, classify
from qtune.prepare.rundir import write_run_files
from qtune.prepare.symbolic import symbolic_example
from qtune.qconfig.accept import AnySetter, rules_of
from qtune.qconfig.explain import raise_surprises, surprises
from qtune.qconfig.plan import Refusal, Resolution
from qtune.qconfig.resolve import resolve
from qtune.qconfig.rules import Rules

_log = logging.getLogger(__name__)

_PASSES = 8
"""Most rounds until the operators that the configuration keeps float are settled."""


class PrepareMethod(enum.Enum):
    """How the model's graph is found."""

    EAGER = "eager"
    """Replace modules one by one, without a graph."""
    SYMBOLIC = "symbolic"
    """As JIT_STRIP for models that torch.fx can trace; example inputs are found where none come."""
    JIT = "jit"
    """Record a run on example inputs; quantize everything."""
    JIT_STRIP = "jit_strip"
    """Record a run; where the model has QuantStubs, quantize what lies between the stubs."""


def prepare(
    model: nn.Module,
    example_inputs: Any = None,
    qconfig_setter: AnySetter = None,
    method: PrepareMethod = PrepareMethod.JIT_STRIP,
    *,
    hybrid: bool = False,
    hybrid_dict: Mapping[str, Any] | None = None,
    fuse_mode: FuseMode = FuseMode.BNAddReLU,
    strict: bool = False,
    inplace: bool = False,
) -> Any:
    """Return the calibration / QAT model of ``model``, which stays untouched.

    ``example_inputs``: a tensor, a tuple of the positional arguments, or ``qtune.Inputs``. Other
    batch and image sizes work later. A list of examples, one for each path through the model that
    will be calibrated, trained or exported (``task``, a mask or ``None``, training mode by
    ``Inputs.in_mode``), gives one model with all of them over the same operators.
    ``qconfig_setter``: default everything qint8, the last GEMM before the model's end with
    high-precision output. The result is in the state QAT.

    ``hybrid``: operators that the march can't run stay in float on the CPU, between
    ``<operator>_input_dequant`` and ``<operator>_activation_post_process``; so do those that
    ``hybrid_dict`` names: ``{"module_name": [...], "module_type": [...]}``, names of operators or
    of modules, and module classes. ``float_ops`` of the result lists them with the reason.

    The result is a :class:`~qtune.nn.prepared.PreparedModel`. ``EAGER`` gives a model of the user's
    own class instead, with operators in the place of its layers; it needs no example inputs.
    ``inplace``: the result shares modules and parameters with ``model``, which is used up.

    ``fuse_mode`` NoFuse leaves every operator a scale of its own. What becomes of batch norms
    behind a GEMM says the QAT mode in force (``qtune.qat_mode``).

    ``qconfig_setter`` is a ``QconfigSetter``, a setter of ``qconfig_template`` or a tuple of them
    (the first wins), or a ``qconfig_dict``. ``strict``: a rule of it that decides nothing and a
    dtype that is not given raise ``QconfigError`` instead of a warning (``explain`` tells both).

    Writes ``model_check_result.txt``, ``qconfig_dtypes.pt``, ``qconfig_dtypes.pt.py`` and
    ``fx_graph.txt`` into the run directory (see ``qtune.prepare.rundir``).

    Raises ``MarchError`` without a march or for operators that it can't run, ``PrepareError`` for
    unusable arguments.
    """
    march = get_march()
    _check_arguments(model, example_inputs, method, fuse_mode)
    rules = rules_of(qconfig_setter)
    advise = rules.advise_outputs and method is not PrepareMethod.EAGER  # it sees no outputs
    rules = replace(rules, strict=strict or rules.strict, advise_outputs=advise)
    choice = Hybrid.of(hybrid, hybrid_dict)
    preserved = chosen_paths(model)
    float_model, work = (settings_of(model), model) if inplace else (model, _copied(model))

    def steps(graph: GraphModel, how: PrepareMethod) -> PreparedModel:
        return _Preparation(float_model, graph, rules, march, how, choice, fuse_mode).run()

    if method is PrepareMethod.EAGER:
        check_eager(choice)
        eager = prepare_eager(work, lambda graph: steps(graph, PrepareMethod.JIT))
        choose(eager, preserved)
        if example_inputs is not None:
            write_run_files(as_graph(eager, example_inputs), as_example_list(example_inputs))
        return eager
    if method is PrepareMethod.SYMBOLIC:
        example_inputs = symbolic_example(float_model, example_inputs)
    examples = as_example_list(example_inputs)
    for text in non_finite_inputs(examples, float_model):
        _log.warning("prepare: %s", text)
    prepared = steps(capture_for_qat(work, examples), method)
    choose(prepared, preserved)
    write_run_files(prepared, examples)
    return prepared


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except (TypeError, RuntimeError) as error:
        raise PrepareError(
            f"prepare: {type(model).__name__} can't be copied with copy.deepcopy ({error}). Drop "
            "what can't be copied from its attributes; tensors with a gradient history need "
            ".detach(). prepare_qat and prepare_calibration make no copy with inplace=True"
        ) from error


def _described(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}, not an object of it"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{value!r:.80} (type={type(value).__name__})"


def _check_arguments(model: Any, example_inputs: Any, method: Any, fuse_mode: Any) -> None:
    if not isinstance(model, nn.Module):
        raise PrepareError(
            f"prepare: expected a torch.nn.Module but got {_described(model)}; the call is "
            "prepare(model, example_inputs)"
        )
    if isinstance(model, GraphModel) or eager_facts(model) is not None:
        raise PrepareError("prepare: this model is prepared already; pass the float model")
    if not isinstance(method, PrepareMethod):
        raise PrepareError(f"prepare: method must be a PrepareMethod but got {method!r}")
    if not isinstance(fuse_mode, FuseMode):
        raise PrepareError(f"prepare: fuse_mode must be a FuseMode but got {fuse_mode!r}")
    without_example = (PrepareMethod.EAGER, PrepareMethod.SYMBOLIC)
    if example_inputs is None and method not in without_example:
        raise PrepareError(
            f"prepare: {method} records the model while it runs and needs example_inputs: a "
            "tensor, a tuple of the positional arguments, or qtune.Inputs(...)"
        )


class _Preparation:
    """The steps after capture, on one graph."""

    def __init__(
        self,
        float_model: nn.Module,
        graph: GraphModel,
        rules: Rules,
        march: March,
        method: PrepareMethod,
        hybrid: Hybrid,
        fuse_mode: FuseMode,
    ) -> None:
        self.float_model = float_model
        self.model = graph
        self.rules = rules
        self.march = march
        self.strip = method is not PrepareMethod.JIT
        self.hybrid = hybrid
        self.fuse_mode = fuse_mode
        self.mode = get_qat_mode()
        self.refused: list[Refusal] = []
        self.ops = Operators(graph, float_model.training)
        self.forced: dict[str, str] = {}
        self.float_graph: FloatGraph | None = None

    def run(self) -> PreparedModel:
        ops = self.ops
        recorded = FloatGraph.of(self.model)
        ops.replace_calls()
        self.float_graph = None if recorded is None else recorded.named(ops.graph)
        self.forced.update(self.hybrid.chosen(ops, self.float_model))
        self._force_unconfigured()
        region = self._without_refused(classify(ops, self.forced, strip=self.strip))
        region = self._without_undecomposable(region)
        decompose_all(ops, [node for node in ops.graph.nodes if node in region.quantized])
        self._force_unconfigured()
        region, fusion, resolution = self._settle()
        if self.mode is QATMode.FuseBN:
            fold_batch_norms(ops, fusion.groups)
        attach(ops, dict(resolution.plans))
        level = level_on(get_consistency_level(), self.march, "prepare")
        if self.mode is not QATMode.FuseBN:
            keep_batch_norms(ops, fusion.groups, self.mode, level)
        self._note_qconfigs(resolution)
        remove_unused_attributes(ops.graph)
        ops.graph.lint()
        return self._result(region, fusion, resolution, level)

    def _force_unconfigured(self) -> None:
        """Operators whose nearest ``module.qconfig`` is ``None`` stay float."""
        for node in self.ops.graph.nodes:
            if self.ops.op(node) is None:
                continue
            qconfig, path = nearest_qconfig(self.float_model, node)
            if qconfig is None:
                self.forced[node.meta["name"]] = f"module.qconfig of {path or 'the model'} is None"

    def _without_refused(self, region: Region) -> Region:
        """Keep whole what would be decomposed into operators that the march lacks anyway."""
        found = refused_whole(self.ops, region, self.float_model, self.march)
        for name, (op, reason) in found.items():
            self.refused.append(Refusal(name, op, reason))
            self.forced[name] = self._cpu_reason(reason)
        return classify(self.ops, self.forced, strip=self.strip) if found else region

    def _without_undecomposable(self, region: Region) -> Region:
        """Keep float, where hybrid allows it, what turns out to have no form in integers."""
        quantized = [node for node in self.ops.graph.nodes if node in region.quantized]
        found = undecomposable(self.ops, quantized) if self.hybrid.enabled else {}
        self.forced.update((name, reason) for name, (_, reason) in found.items())
        return classify(self.ops, self.forced, strip=self.strip) if found else region

    def _to_the_cpu(self, resolution: Resolution) -> dict[str, str]:
        """What the march refuses, where hybrid allows it; ``MarchError`` for what stays refused."""
        refused = [*self.refused, *resolution.refused]
        hybrid = self.hybrid.enabled
        final = tuple(r for r in refused if r.by_configuration) if hybrid else tuple(refused)
        replace(resolution, refused=final).raise_refused(str(self.march))
        return {r.name: self._cpu_reason(r.reason) for r in resolution.refused}

    def _cpu_reason(self, reason: str) -> str:
        known = reason.startswith(str(self.march))
        return reason if known else f"{self.march} can't run it: {reason}"

    def _settle(self) -> tuple[Region, FusionResult, Resolution]:
        """Stubs, groups and dtypes; again where the configuration keeps more operators float."""
        for _ in range(_PASSES):
            region = classify(self.ops, self.forced, strip=self.strip)
            border = Border(self.ops, region)
            border.insert()
            fusion = fuse(self.ops, region, self.mode, self.fuse_mode)
            views = operator_views(self.ops, region, self.float_model)
            resolution = resolve(views, self.rules, self.march)
            more = self._newly_float(region, resolution)
            more |= self._to_the_cpu(resolution)
            if not more:
                return region, fusion, resolution
            self.forced.update(more)
            border.remove()
        raise PrepareError(
            f"prepare: which operators stay float did not settle in {_PASSES} rounds; still open: "
            f"{', '.join(more)}"
        )

    def _newly_float(self, region: Region, resolution: Resolution) -> dict[str, str]:
        """Operators that the configuration keeps float in the middle of quantized ones."""
        found: dict[str, str] = {}
        for node in self.ops.graph.nodes:
            name = node.meta.get("name")
            plan = resolution.plans.get(name) if name else None
            if node not in region.quantized or plan is None or plan.float_reason is None:
                continue
            users = [user for user in users_of(node) if user in region.quantized]
            if any(user.meta["op"] != DEQUANT for user in users):
                found[name] = plan.float_reason
        return found

    def _note_qconfigs(self, resolution: Resolution) -> None:
        """``op.qconfig``: what the operator was configured by, ``None`` where it stays float."""
        for node in self.ops.graph.nodes:
            op = self.ops.op(node)
            plan = None if op is None else resolution.plans.get(op.name)
            if op is None or plan is None or plan.float_reason is not None:
                continue
            op.qconfig = plan.qconfig or self.rules.reference_qconfig

    def _result(
        self, region: Region, fusion: FusionResult, resolution: Resolution, level: int | None
    ) -> PreparedModel:
        self.model.recompile()
        prepared = PreparedModel.of(self.model)
        note_sources(prepared)
        reasons = dict(region.reasons)
        for name, plan in resolution.plans.items():
            if plan.float_reason is not None:
                reasons.setdefault(name, plan.float_reason)
        metas = {n.meta["name"]: n.meta for n in self.ops.graph.nodes if "name" in n.meta}
        prepared.float_ops = tuple(FloatOp.of(metas[n], reason) for n, reason in reasons.items())
        unfused = (
            UnfusedOps(tuple(n.meta["name"] for n in item.nodes), item.reason)
            for item in fusion.unfused
            if not all(ORIGIN_CALL in node.meta for node in item.nodes)  # parts that prepare made
        )
        prepared.unfused = tuple(dict.fromkeys(unfused))  # calls of shared operators come once
        prepared.resolution = resolution
        prepared.call_names = dict(self.ops.call_names)
        prepared.float_graph = self.float_graph
        prepared.march = str(self.march)
        prepared.qat_mode = self.mode
        apply_level(prepared, level)
        for op in prepared.float_ops:
            _log.info("%s (%s)%s stays float: %s", op.name, op.op, op.call_site, op.reason)
        if self.rules.strict:
            raise_surprises(resolution)
        notes = prepared.report.notes
        for text in (*notes, *surprises(resolution), *at_prepare(self.float_model, prepared)):
            _log.warning("prepare: %s", text)
        return prepared
