"""Which module of the toolchain is which module of qtune, and what is left out, as data.

Source: "Roots" of the public API, and the toolchain fact sheet for what exists there and not here.
No torch, and nothing of qtune, is needed to read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

PAGE = "docs/how-to/move-from-the-toolchain.md"
"""Where a message sends the reader."""


@dataclass(frozen=True, slots=True)
class Root:
    """One module of the toolchain.

    ``alias``: its dotted name. ``target``: the module of qtune that stands for it; empty for a
    package that only holds others. ``only``: the names that are served, where the module of qtune
    has more than belongs there (empty: all its public names). ``like``: names that the module makes
    on demand count only if this other module of qtune has them, too.
    """

    alias: str
    target: str
    only: tuple[str, ...] = ()
    like: str = ""


_PLUGIN = (
    "dtype",
    "march",
    "qat_mode",
    "jit",
    "fx",
    "fx.jit_scheme",
    "nn",
    "nn.qat",
    "utils",
    "utils._register_onnx_ops",
    "utils.check_model",
    "utils.onnx_helper",
    "utils.quant_profiler",
    "quantization",
    "quantization.hbdk4",
    "quantization.observer_v2",
    "quantization.qconfig",
    "quantization.qconfig_setter",
    "quantization.qconfig_template",
    "quantization.quantize_fx",
)
"""Modules of horizon_plugin_pytorch that qtune has under the same name."""

_PRINTED = {"conv2d": ("Conv2d",), "relu": ("ReLU",), "stubs": ("QuantStub", "DeQuantStub")}
"""Modules of nn.qat that the documents show in printed types, so that scripts import from them."""

_DEBUGGER = "qtune.onnx_debug"


def _roots() -> Iterator[Root]:
    yield Root("horizon_plugin_pytorch", "qtune")
    for name in _PLUGIN:
        yield Root(f"horizon_plugin_pytorch.{name}", f"qtune.{name}")
    for name, classes in _PRINTED.items():
        yield Root(f"horizon_plugin_pytorch.nn.qat.{name}", "qtune.nn.qat", only=classes)
    quantized = "qtune.nn.quantized"
    yield Root("horizon_plugin_pytorch.nn.quantized", quantized, like="qtune.nn.qat")
    yield Root("horizon_plugin_profiler", "qtune.profiler")
    yield Root("horizon_plugin_profiler.utils", "qtune.profiler.utils")
    yield Root("horizon_plugin_profiler.utils.entities", "qtune.profiler.utils.entities")
    yield Root("hbdk4", "")
    yield Root("hbdk4.compiler", "qtune.bpu.compiler")
    yield Root("hbdk4.compiler.onnx", "qtune.bpu.onnx")
    yield Root("hbdk4.compiler.hbm_tools", "qtune.bpu.compiler", only=("hbm_perf",))
    yield Root("horizon_nn", "")
    yield Root("horizon_nn.debug", _DEBUGGER)
    yield Root("horizon_nn.quantizer", "")
    yield Root("horizon_nn.quantizer.debugger", _DEBUGGER)
    yield Root("hmct", "")
    yield Root("hmct.api", _DEBUGGER, only=("build_model", "check_model"))
    yield Root("hmct.quantizer", "")
    yield Root("hmct.quantizer.debugger", _DEBUGGER)


ROOTS: Mapping[str, Root] = MappingProxyType({root.alias: root for root in _roots()})
"""Every module of the toolchain that is served: dotted name -> what stands for it."""

TOPS: tuple[str, ...] = tuple(name for name in ROOTS if "." not in name)
"""The top-level packages."""

TORCH_NAMES = ("QuantStub", "DeQuantStub", "FloatFunctional", "fuse_modules")
"""What scripts take from torch; torch's own where it has them, else ``qtune.quantization``'s."""

TORCH_ROOTS: Mapping[str, Root] = MappingProxyType(
    {
        name: Root(name, "qtune.quantization", only=TORCH_NAMES)
        for name in ("torch.quantization", "torch.ao.quantization")
    }
)
"""Where scripts take them from: served only where torch has no such module any more."""

_TEMPLATE = "its rule is in no public text; write a ModuleNameTemplate"
_BOARD = "there is no board behind the emulated BPU; run quantized.bc or the Hbm instead"
_PASSES = "the optimizer's passes are not open to scripts; change the ONNX model before build_model"

LEFT_OUT: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "PropagateTemplate": ("qconfig_setter.ModuleNameTemplate", _TEMPLATE),
        "SetDynamicQuantTemplate": ("qconfig_setter.ModuleNameTemplate", _TEMPLATE),
        "get_common_templates": ("qconfig_setter.QconfigSetter", _TEMPLATE),
        "get_compat_templates": ("qconfig_setter.QconfigSetter", _TEMPLATE),
        "AdaRound": ("_LearnableFakeQuantize", "no document describes it; LSQ learns scales, too"),
        "DynamicFakeQuantize": ("FakeQuantize", "scales are fixed when a model is converted"),
        "find_bad_case": (
            "QuantAnalysis.auto_find_bad_case",
            "its arguments are in no public text",
        ),
        "profile_module_constraints": ("check_model", "its arguments are in no public text"),
        "plot_opinfo": ("QuantAnalysis.compare_per_layer", "its page has the distributions"),
        "plot_opinfo_bar3d": ("QuantAnalysis.compare_per_layer", "its page has the distributions"),
        "export_quantized_onnx": ("hbdk4.export", "a .bc file is ONNX, and runs"),
        "ConsistencyAnalyzer": (
            "QuantAnalysis",
            "it compares any two stages, pre_export to convert",
        ),
        "HbmServerSession": ("hbdk4.compiler.Hbm", _BOARD),
        "InferenceEngine": ("hbdk4.compiler.Hbm", _BOARD),
        "QatBcEditor": ("Module.precision_config", "edit ids differ; choose operators by name"),
        "BevPoolV2": ("the operator list", "it does not run on the BPU either"),
        "MultiScaleDeformableAttention": ("nn.GridSample", "build it from GridSample and matmul"),
        "AnchorGenerator": ("the operator list", "anchors are data: compute them outside the net"),
        "BaseGridGenerator": ("the operator list", "grids are data: register them as buffers"),
        "hbm_pack": ("hbdk4.compiler.link", "link puts several models into one file"),
        "hbdk4.march": ("horizon_plugin_pytorch.March", "its members know series and num_cores"),
        "hmct.api.load_model": ("onnx.load", "models are plain onnx.ModelProto here"),
        "hmct.api.export_onnx": ("onnx.save", "models are plain onnx.ModelProto here"),
        "hmct.api.infer_shapes": ("onnx.shape_inference", "models are plain onnx.ModelProto here"),
        "hmct.api.ORTExecutor": ("onnxruntime.InferenceSession", "calibrated models run there"),
        "hmct.api.register_pass": ("hmct.api.build_model", _PASSES),
        "hmct.api.PredicateBasedPass": ("hmct.api.build_model", _PASSES),
        "hmct.tools": ("the command qtune onnx build", "it has their conversions"),
        "horizon_tc_ui": ("the command qtune onnx build", "it reads the toolchain's yaml"),
        "hat": ("a training script of your own", "a framework for training, not quantization"),
    }
)
"""What the toolchain has and qtune has not: name (or dotted name) -> what to use, and why.

A plain name holds wherever it is asked for.
"""

TOPS_LEFT_OUT = ("horizon_tc_ui", "hat")
"""The names of ``LEFT_OUT`` that are top-level packages; the other plain ones lie inside."""


def parent_and_name(dotted: str) -> tuple[str, str]:
    """The longest served module in front of ``dotted``, and the next name behind it.

    >>> parent_and_name("hbdk4.compiler.load")
    ('hbdk4.compiler', 'load')
    """
    parts = dotted.split(".")
    for end in range(len(parts) - 1, 0, -1):
        parent = ".".join(parts[:end])
        if parent in ROOTS:
            return parent, parts[end]
    return "", parts[0]


def children(alias: str) -> tuple[str, ...]:
    """The modules directly inside of a served one, by their last name."""
    depth = alias.count(".") + 1
    inside = (name for name in ROOTS if name.startswith(f"{alias}.") and name.count(".") == depth)
    return tuple(name.rpartition(".")[2] for name in inside)
