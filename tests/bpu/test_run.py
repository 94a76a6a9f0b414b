"""The emulated BPU: fast path, NumPy oracle and ONNX Runtime give the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from qtune.bpu.compiler import convert
from qtune.bpu.ort import run_in_onnxruntime
from qtune.dtype import qint8, qint16
from qtune.errors import HbirError, NonFiniteError, RunError
from qtune.hbir.export import export
from qtune.hbir.module import HbirModule
from qtune.hbir.serialize import from_bytes
from tests.hbir.prepared import Prepared, small_cnn

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def cnn() -> HbirModule:
    return convert(export(small_cnn(X), X), "nash-e")


def residual_net(x: torch.Tensor) -> Prepared:
    """conv + add + relu as one group, int16 add, transposed conv with groups, table, mean."""
    torch.manual_seed(3)
    p = Prepared()
    q = p.quantized_input()
    side = p.module(nn.Conv2d(3, 8, 1), q, name="side")
    c = p.module(nn.Conv2d(3, 8, 3, padding=1), q, name="conv", out=None, group="relu")
    a = p.function("add", c, side, name="add", out=None, group="relu", alpha=1)
    r = p.module(nn.ReLU(), a, name="relu", out=qint8)
    w = p.function("add", r, side, name="wide", out=qint16, alpha=1)
    u = p.module(nn.ConvTranspose2d(8, 6, 3, stride=2, groups=2), w, name="up")
    s = p.function("sigmoid", u, name="sigmoid")
    m = p.function("mean", s, name="mean", dim=(2, 3), keepdim=False)
    return p.outputs(p.dequantized(m, "d0"), p.dequantized(s, "d1")).calibrated(x)


def all_ways(module: HbirModule, x: torch.Tensor) -> list[list[np.ndarray]]:
    feed = {"_input_0": x}
    fast = module[0].run(feed)
    reference = module[0].run(feed, mode="reference")
    runtime = run_in_onnxruntime(module, {"_input_0": x.numpy()})
    return [[np.asarray(value) for value in way.values()] for way in (fast, reference, runtime)]


@pytest.mark.parametrize("make", [small_cnn, residual_net])
@pytest.mark.parametrize("batch", [2, 3])
def test_fast_reference_and_onnxruntime_give_the_same_bits(make, batch):
    module = convert(export(make(X), X), "nash-e")
    x = torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(batch)) * 2

    fast, reference, runtime = all_ways(module, x)

    for a, b, c in zip(fast, reference, runtime, strict=True):
        assert a.dtype == b.dtype == c.dtype == np.float32
        assert np.array_equal(a, b)
        assert np.array_equal(a, c)


def test_every_operator_has_the_same_codes_on_both_paths(cnn):
    fast, reference = {}, {}
    cnn[0].run({"_input_0": X}, observe=fast.__setitem__)
    cnn[0].run({"_input_0": X}, mode="reference", observe=reference.__setitem__)

    assert list(fast) == list(reference) == cnn[0].operator_names()
    for name, result in fast.items():
        assert torch.equal(result.values, reference[name].values), name
        if result.codes is not None:
            assert result.codes.dtype == torch.int8
            assert torch.equal(result.codes, reference[name].codes)
            assert torch.equal(result.values, result.codes * torch.tensor(result.scale))


def test_memory_format_and_threads_do_not_change_bits(cnn):
    expected = cnn[0](X)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(cnn[0](X), expected)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(cnn[0](X.contiguous(memory_format=torch.channels_last)), expected)


def test_runs_overlap_in_threads(cnn):
    inputs = [torch.randn(2, 3, 8, 8) for _ in range(8)]
    expected = [cnn[0](x) for x in inputs]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(cnn[0], inputs))

    assert all(map(torch.equal, results, expected))


def test_results_are_not_overwritten_by_later_runs(cnn):
    """Case A31."""
    seen = {}
    cnn[0].run({"_input_0": X}, observe=seen.__setitem__)
    kept = {name: result.values.clone() for name, result in seen.items()}
    first = cnn[0](X)
    copy = first.clone()
    cnn[0](X * 3)

    assert torch.equal(first, copy)
    assert all(torch.equal(seen[name].values, kept[name]) for name in seen)


def test_saved_and_loaded_module_gives_the_same_bits(cnn):
    assert torch.equal(from_bytes(cnn.to_bytes())[0](X), cnn[0](X))


def test_user_flags_and_inputs_stay_as_they_are(cnn):
    x = X.clone()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = cnn[0](x)
        assert torch.is_autocast_enabled("cpu")

    assert torch.equal(x, X)
    assert torch.equal(result, cnn[0](X))
    assert torch.is_grad_enabled()


def test_nan_is_refused_with_the_operator(cnn):
    """Case A03."""
    x = X.clone()
    x[0, 0, 0, 0] = float("nan")
    for mode in ("fast", "reference"):
        with pytest.raises(NonFiniteError, match="x_quant"):
            cnn[0].run({"_input_0": x}, mode=mode)


def test_ties_round_up():
    """Case A21."""
    p = Prepared()
    q = p.quantized_input()
    p.x_quant.activation_post_process.set_qparams(1.0)
    ties = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5]])
    module = convert(export(p.outputs(p.dequantized(q, "d")).calibrated(ties), ties), "nash-e")

    for way in all_ways(module, ties):
        assert way[0].tolist() == [[1, 2, 3, 0, -1, -2]]


@pytest.mark.parametrize("swap", [False, True])
def test_cat_rescales_every_input_to_the_scale_of_the_output(swap):
    """Case A24."""
    a, b = torch.linspace(-1, 1, 101)[None], torch.linspace(-50, 50, 101)[None]
    p = Prepared()
    x, y = p.quantized_input("x"), p.quantized_input("y")
    p.function("cat", *((y, x) if swap else (x, y)), name="cat", dim=1)
    cat = next(n for n in p.graph.nodes if n.meta.get("name") == "cat")
    p.outputs(p.dequantized(cat, "d")).calibrated(a, b)
    module = convert(export(p, (a, b)), "nash-e")
    got = module[0](a, b)
    first, second = got[:, :101], got[:, 101:]
    wide = first if swap else second

    # half a step of the input grid and half a step of the output grid, both 100 / 255
    assert (wide - b).abs().max() <= 0.3922
    assert torch.equal(got, module[0].run({"_input_0": a, "_input_1": b}, "reference")["_output_0"])


def test_bool_and_integer_tensors_have_no_scale():
    """Case A16."""
    p = Prepared()
    q, ids = p.quantized_input(), p.input("ids")
    mask = p.function("gt", q, 0.0, name="gt", out=None)
    filled = p.function("masked_fill", q, mask, 0.0, name="fill", out=None)
    more = p.graph.call_function(torch.add, (ids, 1))
    x, n = torch.randn(2, 4), torch.arange(8).reshape(2, 4)
    p.outputs(p.dequantized(filled, "d"), mask, more).calibrated(x, n)
    module = convert(export(p, (x, n)), "nash-e")
    _, flags, numbers = module[0](x, n)

    assert flags.dtype == torch.bool
    assert torch.equal(numbers, n + 1)


def test_codes_at_the_end_become_floats():
    p = Prepared()
    p.outputs(p.quantized_input()).calibrated(X)
    qat = export(p, X)

    assert torch.equal(convert(qat, "nash-e")[0](X), qat[0](X))


def test_onnxruntime_runs_the_float_module_too():
    qat = export(small_cnn(X), X)
    expected = qat[0](X)
    got = run_in_onnxruntime(qat, {"_input_0": X.numpy()})["_output_0"]

    # float sums in another order may flip a rounding here and there, no more than a few steps
    assert np.abs(got - expected.numpy()).max() <= 0.02 * expected.abs().max()


def test_infinity_saturates(cnn):
    x = X.clone()
    x[0, 0, 0, 0] = float("inf")

    fast, reference, _ = all_ways(cnn, x)
    assert np.array_equal(fast[0], reference[0])
    assert np.isfinite(fast[0]).all()


def test_empty_batch_gives_an_empty_result(cnn):
    assert cnn[0](X[:0]).shape == (0, 5)


def test_operator_of_another_version_is_named(cnn):
    proto_module = from_bytes(cnn.to_bytes())
    node = next(n for n in proto_module.model.graph if n.op_type == "QAdd")
    node.op_type = "QFuture"

    with pytest.raises(RunError, match="no kernel for qtune::QFuture"):
        proto_module[0](X)


def test_illegal_scale_is_shown_with_the_node(cnn):
    from qtune.hbir.verify import verify

    module = from_bytes(cnn.to_bytes())
    node = next(n for n in module.model.graph if n.op_type == "QAdd")
    node.outputs[0].metadata_props["qtune.scale"] = "-1.0"

    with pytest.raises(HbirError, match=r"add1/QAdd.*scale positive.*-1\.0"):
        verify(module.model, "quantized")


def test_bits_do_not_depend_on_the_instruction_set(cnn, tmp_path):
    """The kernels are tested under every instruction set in tests/arith_fast; here the whole."""
    cnn.save(tmp_path / "m.bc")
    torch.save(X, tmp_path / "x.pt")
    script = (
        "import sys, torch; from qtune.hbir.serialize import load; "
        "print(load(sys.argv[1])[0](torch.load(sys.argv[2])).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "m.bc"), str(tmp_path / "x.pt")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
    )

    assert done.stdout.strip() == str(cnn[0](X).tolist())
