"""The text of docs/onnx.md before its table of cases: which forms of files are taken, and how."""

from __future__ import annotations

from qtune.hbir.domain import OPSET
from qtune.hbir.onnx_import.opset import OLDEST

_FORMS = (
    (
        "HzCalibration of an activation",
        "`activation`",
        "`FakeQuant` (half up), one scale, 4, 8 or 16 bits; it is the result of "
        "the operator before it",
    ),
    (
        "HzCalibration of a constant, also through Identity, Transpose or Reshape",
        "`weight`",
        "a quantized weight, int4, int8 or int16",
    ),
    (
        "... of a bias, or of a single number",
        "`weight`",
        "the constant that it rounds to: the BPU rounds a bias at the accumulator's scale",
    ),
    (
        "QuantizeLinear and DequantizeLinear on one grid",
        "`<tensor>_HzCalibration`, threshold: the largest magnitude on the grid",
        "`FakeQuantHalfEven`",
    ),
    (
        "... behind a constant",
        "`weight`",
        "a quantized weight",
    ),
    (
        "DequantizeLinear of constant codes",
        "`weight`, `is_stored`: it can't be switched off",
        "a quantized weight",
    ),
    (
        "DequantizeLinear of constant int32",
        "none: a constant",
        "the bias",
    ),
    (
        "pairs that compute the same, several DequantizeLinear behind one QuantizeLinear",
        "one, with all users",
        "one",
    ),
    (
        "QuantizeLinear, Reshape (or what else moves elements), DequantizeLinear",
        "the pair, then the operator",
        "the same",
    ),
    (
        "the same in the domain `com.microsoft`",
        "the same",
        "the same",
    ),
    (
        "operators on codes (QOperator format: QLinearConv, QLinearMatMul, and onnxruntime's "
        "QGemm, QLinearAdd, QLinearMul, QLinearConcat, QLinearAveragePool, "
        "QLinearGlobalAveragePool, "
        "QLinearLeakyRelu, QLinearSigmoid, QLinearSoftmax)",
        "the pairs around the standard operator",
        "the same",
    ),
    (
        "codes that go elsewhere, other grids on both sides, scales in blocks",
        "none: ordinary nodes",
        "refused by name",
    ),
)
"""In the file, calibration node, in HBIR."""


_OPERATORS = (
    (
        "LayerNormalization, InstanceNormalization, GroupNormalization, Einsum",
        "the parts that a prepared torch model has; an Einsum with a diagonal (`ii->i`) is refused "
        "by its equation",
    ),
    (
        "DepthToSpace, SpaceToDepth; GatherND with constant indices",
        "elements move, codes as codes",
    ),
    (
        "ScatterND, ScatterElements with constant indices (a slice that is assigned)",
        "a Concat of data and updates, and a Gather",
    ),
    (
        "MaxPool, AveragePool of rows; pads that differ, `ceil_mode`",
        "pools of maps of height 1; a Pad, and for averages the share of what counts",
    ),
    ("LSTM, GRU, RNN", "their steps, one after the other, in float on the CPU"),
    (
        "OneHot, Hardmax, LpNormalization, GlobalLpPool, MeanVarianceNormalization, "
        "ThresholdedRelu, IsNaN",
        "comparisons, sums and tables",
    ),
)
"""In the file, in HBIR."""

_RESIZES = (
    (
        "two spatial axes of a map, linear, `half_pixel` or `align_corners` (`pytorch_half_pixel`, "
        "but to one row), step = ratio of the sizes",
        "the BPU's bilinear operator",
    ),
    (
        "two spatial axes, nearest that takes element `floor(o * in / out)`, or the one nearest to "
        "the middle",
        "the BPU's nearest operator",
    ),
    ("nearest by any other rule, of any axes", "a Gather for each axis: codes move"),
    (
        "linear or cubic by any other rule (`asymmetric`, `half_pixel_symmetric`, `antialias`, "
        "other scales and axes)",
        "a product with a constant matrix for each axis",
    ),
    (
        "`tf_crop_and_resize`; `align_corners` with a scale that is not the ratio of the sizes, "
        "where runtimes differ",
        "refused",
    ),
)
"""Rule, way."""


def _table(head: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


_OPERATOR_TABLE = _table(("in the file", "in HBIR"), _OPERATORS)
_RESIZE_TABLE = _table(("rule", "way"), _RESIZES)


def page() -> str:
    """The text, in Markdown."""
    table = _table(("in the file", "calibration node", "in HBIR"), _FORMS)
    return f"{_BEFORE}{table}{_AFTER}"


_BEFORE = f"""# ONNX files of other tools

`qtune.bpu.compiler.load("net.onnx")` (or `qtune.hbir.onnx_import.import_onnx`) gives the same
module that `export` gives: it runs, converts, compiles and is compared like one. Float files run in
float; files with HzCalibration nodes, or with QuantizeLinear and DequantizeLinear, convert to
integers.

```python
import numpy as np, onnx
from onnx import helper, numpy_helper
from qtune.bpu import compiler

make = helper.make_node
nodes = [
    make("QuantizeLinear", ["x", "s", "z"], ["q"]),
    make("DequantizeLinear", ["q", "s", "z"], ["d"]),
    make("Relu", ["d"], ["r"], name="act"),
    make("QuantizeLinear", ["r", "s", "z"], ["rq"]),
    make("DequantizeLinear", ["rq", "s", "z"], ["y"]),
]
info = helper.make_tensor_value_info
graph = helper.make_graph(
    nodes,
    "net",
    [info("x", 1, ["n", 4])],
    [info("y", 1, ["n", 4])],
    [numpy_helper.from_array(np.float32(0.1), "s"), numpy_helper.from_array(np.int8(-5), "z")],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), "net.onnx")

module = compiler.load("net.onnx")
integers = compiler.convert(module, "nash-e")
print(integers[0].feed({{"x": np.array([[-3.0, 0.25, 1.0, 99.0]], np.float32)}}))
```

* onnxruntime's own quantizer makes such files: `quantize_static(source, target, data, quant_format=
  QuantFormat.QDQ)`, best after its `quant_pre_process`, which folds batch norms. A plain float file
  converts too, but wholly in float: quantize it first, or calibrate it with
  `qtune.onnx_debug.build_model`.
* A call takes and gives flat lists (an exported module has the float model's own containers);
  `feed` takes and gives dicts by name.
* Opsets {OLDEST} to the newest of the installed onnx are brought to {OPSET}. Functions are
  replaced by their bodies, constants are folded; an If that constants or sizes decide is the
  branch that it takes, one that an input decides is refused with the input's name. Nodes and
  tensors keep their names. A node without a name is called `<op type>_<index in the graph>`, the
  second node of a name `<name>_1`. Sizes must be known: a
  symbolic first size is a free batch, others are given as `input_shapes`. Nodes may stand in any
  order.
* Operators of newer opsets (Attention, RMSNormalization, Swish, ...) are replaced by what the
  standard defines them by. Upsample, and Resize of opset 10, keep the rule of their opset
  (`asymmetric`). Operators that onnxruntime's optimizer writes (`com.microsoft`: Gelu, BiasGelu,
  FastGelu, QuickGelu, FusedConv, FusedGemm, FusedMatMul, SkipLayerNormalization) are the standard
  ones they stand for.
* Elements are float32; a model in half or double precision is refused with what to do.
* An operator that has no integer form (or none of its dtype, like a bilinear resize of codes with a
  zero point) runs in float on the CPU between its neighbours, as the file says; the conversion
  report lists it.
* Limits on dtypes are checked for every operator, limits on shapes for convolutions, linear layers,
  matmul and pools.

## Operators that become others

{_OPERATOR_TABLE}
A Resize takes the way that its rule allows:

{_RESIZE_TABLE}
## Calibrated models

`HzCalibration` is the toolchain's calibration node: an activation on its grid, or a constant weight
on its own. It is taken in any domain and gets ours (`qtune`) with a function body, so that
onnxruntime runs a calibrated model as it is:
`y = clamp(floor(x / scale + 0.5), -2**(bits-1), 2**(bits-1) - 1) * scale`, rounded half up.

```python
import numpy as np, onnx
from onnx import helper, numpy_helper
from qtune.bpu import compiler
from qtune.hbir.onnx_import import import_onnx
from qtune.onnx_debug import load_calibrated

make = helper.make_node
weight = np.random.default_rng(0).normal(0, 0.3, (5, 8)).astype(np.float32)
absmax = np.abs(weight).max(axis=1)
x_grid = {{"scales": [3 / 127.5], "thresholds": [3.0], "bits": 8}}
w_grid = {{"scales": absmax / 127.5, "thresholds": absmax, "bits": 8, "axis": 0}}
nodes = [
    make("HzCalibration", ["x"], ["xq"], "x_HzCalibration", domain="horizon", **x_grid),
    make("HzCalibration", ["w"], ["wq"], "w_HzCalibration", domain="horizon", **w_grid),
    make("Gemm", ["xq", "wq"], ["y"], name="head", transB=1),
]
info = helper.make_tensor_value_info
ends = [info("x", 1, [2, 8])], [info("y", 1, [2, 5])]
graph = helper.make_graph(nodes, "net", *ends, [numpy_helper.from_array(weight, "w")])
opsets = [helper.make_opsetid("", 17), helper.make_opsetid("horizon", 1)]
calibrated = helper.make_model(graph, opset_imports=opsets, ir_version=8)

model = load_calibrated(calibrated)
for item in model.calibrations.values():
    print(item.name, item.kind, item.users, item.bits, item.axis, item.scales.shape)
module = import_onnx(calibrated)
integers = compiler.convert(module, "nash-e")
print(integers[0].operator_names())
```

`load_calibrated` gives what the debugger works on, `import_onnx` the module; both read one form:

"""
_AFTER = """
* Without `scales`, an HzCalibration node's scale is `threshold / 2**(bits-1)`: somebody fixed it.
  Thresholds and scales that are 0, negative, NaN or infinite are refused, all of them by name.
* A weight has one scale, or one per output channel: axis 0 of Conv, axis 1 of ConvTranspose (the
  same for each group), axis 0 of Gemm with `transB`, else axis 1, axis 1 of MatMul. Constants of
  other operators have one scale. A Gemm with `alpha`, `beta` or `transA` stays a linear layer:
  alpha goes into the scales of its weight, beta into its bias. A constant added to a MatMul with
  such a weight is its bias. A constant divisor becomes a product with its reciprocals, which lie on
  an int16 grid of their own.
* A tensor that is calibrated behind an operator which only moves it (Flatten, Reshape, Transpose,
  MaxPool, ...) has that grid before it as well, so that the operator moves integers. A calibration
  with the grid of its source converts to nothing.
* Operators are called in HBIR as the ordinary nodes in the file, also those that take another form,
  so that the ONNX file and the `.bc` file are compared by name. The FakeQuant of an activation is
  part of the operator before it; that of an input is called `<input>_quant`.

## Pairs of QuantizeLinear and DequantizeLinear

* Imported nodes round ties to even, as ONNX says; what the BPU rounds inside (the requantize of a
  convolution) is half up.
* A zero point is kept as the range of the codes: int8 with zero point -128 is `q - zp` in 0 .. 255,
  carried as int16. Every sum is the one that a kernel subtracting `zp * sum(w)` computes. For the
  limits of a march such codes count as int8.
* Taken are int8 and uint8 activations; int16 (and uint16) activations as far as the codes less the
  zero point fit in 16 bits, that is, symmetric ones; one scale per tensor; int8 and int16 weights
  without zero point (uint8 with 128 is one), with one scale or one per channel; int32 biases.
  Anything else is refused at conversion, all nodes at once; the debugger takes it all the same.

## What a bad file gets

One `OnnxImportError` for each: a file that is missing, a directory, no ONNX file, cut off or empty;
no valid model (in onnx's words); an opset out of range; a calibration that makes no sense;
operators without a form and control flow that data decides, one line with the node's name for each;
shapes that don't fit together.

## The node cases of the onnx package

Every case whose operators have a form here, on our float kernels. Refused means: one clear error at
import, never a wrong number. None fails (`tests/hbir/onnx_import/test_onnx_cases.py`).
"""
