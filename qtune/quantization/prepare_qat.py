"""The older calls of ``prepare``: ``prepare_qat`` (eager), ``prepare_qat_fx``, calibration."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from qtune.capture.inputs import as_example_list
from qtune.capture.recorder import capture
from qtune.check.qat_model import check_qat_model
from qtune.errors import PrepareError
from qtune.march import get_march
from qtune.modes import FuseMode
from qtune.nn.prepared import PreparedModel
from qtune.nn.preserved import preserve
from qtune.nn.qat.functional import is_functional
from qtune.prepare.cat_scales import share_cat_scales
from qtune.prepare.fuse import fusible
from qtune.prepare.fuse_modules import fuse_known_modules, fused_layers
from qtune.prepare.pipeline import PrepareMethod, prepare
from qtune.prepare.symbolic import symbolic_example
from qtune.qconfig.accept import AnySetter
from qtune.quantizers.state import FakeQuantState, set_fake_quantize

BERNOULLI = "bernoulli"
_CUSTOM = "preserved_attributes"


def prepare_qat(
    model: nn.Module,
    mapping: Mapping[type, type] | None = None,
    inplace: bool = False,
    optimize_graph: bool = False,
    hybrid: bool = False,
    optimize_kwargs: Mapping[str, Any] | None = None,
    example_inputs: Any = None,
    qconfig_setter: AnySetter = None,
    verbose: int = 0,
) -> Any:
    """``prepare`` in eager mode: layers are replaced, and the model keeps its own forward.

    Layers take the nearest ``module.qconfig``; where none is set, ``qconfig_setter`` decides, or
    everything is qint8. ``qconfig = None`` keeps a module float. ``verbose=1`` runs
    ``check_qat_model`` on ``example_inputs``, which are not needed otherwise. ``inplace`` changes
    ``model`` itself. ``optimize_graph``: see :func:`prepare_qat_fx`, which does it on bernoulli.
    """
    if mapping is not None and not isinstance(mapping, Mapping):
        raise PrepareError(
            f"prepare_qat: the second argument is mapping, and {type(mapping).__name__} came; "
            "example inputs, which eager mode does not need, go to example_inputs="
        )
    if mapping is not None:
        raise NotImplementedError(
            "prepare_qat: mapping (other QAT classes for single layers) is not done; which "
            "operator a layer is says the registry"
        )
    if optimize_kwargs:
        raise NotImplementedError("prepare_qat: optimize_kwargs is not done; leave it out")
    if _shares_scales(optimize_graph):
        raise PrepareError(
            "prepare_qat: optimize_graph gives the inputs of cat its scale, for which eager mode "
            "has no graph; use prepare_qat_fx"
        )
    result = prepare(
        model, example_inputs, qconfig_setter, PrepareMethod.EAGER, hybrid=hybrid, inplace=inplace
    )
    return _checked(result, example_inputs, verbose, "prepare_qat")


def prepare_qat_fx(
    model: nn.Module,
    qconfig_dict: Mapping[str, Any] | None = None,
    prepare_custom_config_dict: Mapping[str, Any] | None = None,
    optimize_graph: bool = False,
    hybrid: bool = False,
    hybrid_dict: Mapping[str, Any] | None = None,
    example_inputs: Any = None,
    qconfig_setter: AnySetter = None,
    fuse_mode: FuseMode = FuseMode.BNAddReLU,
    verbose: int = 0,
) -> PreparedModel:
    """``prepare`` by symbolic tracing: torch.fx must be able to trace ``model``.

    ``qconfig_dict``: ``{"": qconfig, "module_type": [...], "module_name": [...]}``; or give a
    ``qconfig_setter``. ``example_inputs`` need not be given: sizes that the layers take are found.
    ``prepare_custom_config_dict``: ``{"preserved_attributes": [...]}``, names that the result must
    have; plain attributes and methods are kept anyway. ``hybrid``, ``hybrid_dict``, ``fuse_mode``:
    as in ``prepare``. ``verbose=1`` runs ``check_qat_model``. ``optimize_graph``: cat and its
    inputs have one scale, on bernoulli marches; it changes nothing on others (document).
    """
    if qconfig_dict is not None and qconfig_setter is not None:
        raise PrepareError("prepare_qat_fx: give qconfig_dict or qconfig_setter, not both")
    names = _preserved(prepare_custom_config_dict)
    if verbose and example_inputs is None:
        example_inputs = symbolic_example(model, None)
    result: PreparedModel = prepare(
        model,
        example_inputs,
        qconfig_setter if qconfig_dict is None else qconfig_dict,
        PrepareMethod.SYMBOLIC,
        hybrid=hybrid,
        hybrid_dict=hybrid_dict,
        fuse_mode=fuse_mode,
    )
    preserve(result, model, names)
    if _shares_scales(optimize_graph):
        share_cat_scales(result)
    checked: PreparedModel = _checked(result, example_inputs, verbose, "prepare_qat_fx")
    return checked


def prepare_calibration(
    model: nn.Module,
    inplace: bool = False,
    optimize_graph: bool = False,
    hybrid: bool = False,
    optimize_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """:func:`prepare_qat` with the result in the state CALIBRATION and in eval mode."""
    result = prepare_qat(
        model,
        inplace=inplace,
        optimize_graph=optimize_graph,
        hybrid=hybrid,
        optimize_kwargs=optimize_kwargs,
    )
    return _calibrating(result)


def prepare_calibration_fx(
    model: nn.Module,
    qconfig_dict: Mapping[str, Any] | None = None,
    prepare_custom_config_dict: Mapping[str, Any] | None = None,
    optimize_graph: bool = False,
    hybrid: bool = False,
    hybrid_dict: Mapping[str, Any] | None = None,
) -> PreparedModel:
    """:func:`prepare_qat_fx` with the result in the state CALIBRATION and in eval mode."""
    result: PreparedModel = _calibrating(
        prepare_qat_fx(
            model, qconfig_dict, prepare_custom_config_dict, optimize_graph, hybrid, hybrid_dict
        )
    )
    return result


def fuse_fx(model: nn.Module, fuse_custom_config_dict: Mapping[str, Any] | None = None) -> Any:
    """A copy of ``model`` whose layers are marked as ``fuse_modules`` does, found by torch.fx.

    For eager mode; ``prepare_qat_fx`` finds the same groups itself, and functions (``x + y``,
    ``F.relu``) as well, which can't be marked.
    """
    if fuse_custom_config_dict:
        raise NotImplementedError("fuse_fx: fuse_custom_config_dict is not done; leave it out")
    result = copy.deepcopy(model)
    graph = capture(copy.deepcopy(model), as_example_list(symbolic_example(model, None)))
    _, fusion = fusible(graph, model.training)
    layers = dict(result.named_modules())
    for group in fusion.groups:
        found = [layers.get(str(node.meta["name"])) for node in group.nodes]
        known = [layer for layer in found if layer is not None and fused_layers(layer) is None]
        if len(known) == len(found) and not _is_relu_of(known):
            fuse_known_modules(known)
    return result


def _is_relu_of(layers: Sequence[nn.Module]) -> bool:
    """Whether the last layer is the relu of an ``add_relu``, which is one layer."""
    return len(layers) > 1 and is_functional(layers[-1])


def _calibrating(model: Any) -> Any:
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    return model


def _checked(model: Any, example_inputs: Any, verbose: int, where: str) -> Any:
    if not verbose:
        return model
    if example_inputs is None:
        raise PrepareError(f"{where}: verbose=1 checks the model on example_inputs; give them")
    check_qat_model(model, example_inputs)
    return model


def _shares_scales(optimize_graph: bool) -> bool:
    """Whether ``optimize_graph`` means something on the march in force."""
    return optimize_graph and get_march().series == BERNOULLI


def _preserved(custom: Mapping[str, Any] | None) -> Sequence[str]:
    if not custom:
        return ()
    names = custom.get(_CUSTOM, ())
    if set(custom) != {_CUSTOM} or not all(isinstance(name, str) for name in names):
        raise PrepareError(
            f"prepare_qat_fx: prepare_custom_config_dict takes {{{_CUSTOM!r}: [names]}}, got "
            f"{dict(custom)!r}"
        )
    return tuple(names)
