"""Runs go to files operator by operator: values as they were, inputs too, and nothing piles up."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qtune.analysis.op_info import RunFiles
from qtune.capture.inputs import Inputs
from qtune.profiler import OpInfo
from qtune.profiler.float_reference import observe_baseline, stream_baseline
from qtune.profiler.observe import observe, run_model, stream
from qtune.profiler.undisturbed import undisturbed
from qtune.quantization import convert, hbdk4
from tests.analysis.nets import Block, calibrated


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that were made in the block and are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                if storage._cdata not in self.known:
                    self.known[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.known.pop, storage._cdata, None)
        self.peak = max(self.peak, sum(self.known.values()))
        return result


def stored(folder: Path, model: Any, x: Any) -> RunFiles:
    files = RunFiles(folder)
    stream(model, Inputs(x), files.note)
    return files


class Deep(nn.Module):
    """Twenty layers of one size."""

    def __init__(self) -> None:
        super().__init__()
        convs = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(20)]
        self.layers = nn.Sequential(*(m for conv in convs for m in (conv, nn.ReLU())))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_memory_beside_a_plain_run_stays_below_three_layers(tmp_path: Path) -> None:
    model, x = Deep().eval(), torch.randn(1, 8, 64, 64)
    layer = x.numel() * x.element_size()
    prepared = calibrated(model, x)

    def peak(run: Callable[[], Any]) -> float:
        with undisturbed(model, prepared), LiveBytes() as live:
            run()
        return live.peak / layer

    for side, both in (("baseline", model), ("analysis", prepared)):
        files = RunFiles(tmp_path / side)
        plain = peak(lambda both=both: run_model(both, Inputs(x)))
        if side == "baseline":
            seen = peak(lambda files=files: stream_baseline(model, prepared, Inputs(x), files.note))
        else:
            seen = peak(lambda files=files: stream(prepared, Inputs(x), files.note))
        assert len(files) > 40  # all of them would be 40 layers
        assert seen < plain + 3, side


@pytest.mark.parametrize("kind", ["calib", "qat", "quantized", "converted"])
def test_files_hold_what_was_observed(tmp_path: Path, kind: str) -> None:
    x = torch.rand(2, 3, 8, 8)
    calib = calibrated(Block(), x)
    qat = hbdk4.export(calib, x)
    models = {"calib": calib, "qat": qat, "quantized": hbdk4.convert(qat, "nash-e")}
    model: Any = models[kind] if kind in models else convert(calib)
    files = stored(tmp_path, model, x)
    seen = observe(model, Inputs(x), keep_inputs=True).records
    assert list(files) == list(seen)
    for name, record in seen.items():
        back = files[name]
        assert torch.equal(back.value, record.value), name
        assert (back.scale, back.dtype, back.op_type) == (
            record.scale,
            record.dtype,
            record.op_type,
        )
        known = [v for v in record.inputs if v is not None]
        assert len(back.inputs) == len(known) > 0, name
        assert all(torch.equal(a, b) for a, b in zip(back.inputs, known, strict=True)), name
    path = sorted(tmp_path.glob("*.opinfo"))[1]
    info = torch.load(path)
    assert isinstance(info, OpInfo)
    assert isinstance(info.input, list)
    assert isinstance(info.output, list)
    assert info.output[0].as_subclass(torch.Tensor).flatten().numpy().size


def test_operators_of_a_module_in_hbir_have_the_inputs_that_torch_has() -> None:
    x = torch.rand(2, 3, 8, 8)
    calib = calibrated(Block(), x)
    torch_side = observe(calib, Inputs(x), keep_inputs=True).records
    bc_side = observe(hbdk4.export(calib, x), Inputs(x), keep_inputs=True).records
    for name in ("_input_0_quant", "_generated_add_0", "_generated_sigmoid_0", "head"):
        tensors = [v for v in torch_side[name].inputs if isinstance(v, Tensor)]
        assert len(tensors) == len(bc_side[name].inputs) > 0, name
        same = [torch.equal(a, b) for a, b in zip(tensors, bc_side[name].inputs, strict=True)]
        assert all(same), name


def test_a_layer_that_works_in_place_leaves_all_values_of_both_models(tmp_path: Path) -> None:
    """A31."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1)).eval()
    x = torch.randn(4, 1, 3, 3)
    prepared = calibrated(net, x)
    files = RunFiles(tmp_path)
    stream_baseline(net, prepared, Inputs(x), files.note)
    assert files["0"].value.min() < 0
    assert torch.equal(files["0"].value, net[0](x))
    assert torch.equal(files["1"].inputs[0], net[0](x))
    assert torch.equal(files["1"].value, net[0](x).relu())


def test_inputs_that_a_model_writes_to_stay_the_users(tmp_path: Path) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            x.mul_(2)
            return self.fc(x)

    net, x = Writes().eval(), torch.rand(3, 4)
    prepared = calibrated(net, x.clone())
    before = x.clone()
    files = RunFiles(tmp_path)
    stream_baseline(net, prepared, Inputs(x), files.note)
    stream(prepared, Inputs(x), lambda record: None)
    run_model(net, Inputs(x))
    assert torch.equal(x, before)
    assert torch.equal(files["fc"].value, net.fc(2 * x))


def test_views_and_tuples_are_stored_as_their_own_values(tmp_path: Path) -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            left, right = self.fc(x).chunk(2, 1)
            return left.flatten(), {"right": right, "same": nn.Identity()(right)}

    x = torch.rand(3, 8)
    model = calibrated(Parts(), x)
    files = stored(tmp_path, model, x)
    seen = observe(model, Inputs(x)).records
    assert "_generated_chunk_0:1" in files
    for name, record in seen.items():
        assert torch.equal(files[name].value, record.value), name
    for path in tmp_path.glob("*.opinfo"):
        (output,) = torch.load(path).output
        assert output.untyped_storage().nbytes() == output.numel() * output.element_size()


def test_the_graph_that_prepare_kept_is_not_used_for_a_model_that_changed() -> None:
    class Switch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.twice = False

        def forward(self, x: Tensor) -> Tensor:
            x = self.fc(x)
            return x + x if self.twice else x + 1

    net, x = Switch().eval(), torch.rand(3, 4)
    prepared = calibrated(net, x)
    assert prepared.float_graph is not None
    assert torch.equal(observe_baseline(net, prepared, Inputs(x)).outputs, net.fc(x) + 1)
    net.twice = True
    assert torch.equal(observe_baseline(net, prepared, Inputs(x)).outputs, 2 * net.fc(x))
