"""``ModelProfiler``: the user's own forward, seen and not changed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qtune.capture.inputs import Inputs
from qtune.errors import AnalysisError, GuardError
from qtune.profiler import ModelProfiler, read_profile
from qtune.profiler.observe import observe
from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    PrepareMethod,
    QuantStub,
    convert,
    hbdk4,
    prepare,
    set_fake_quantize,
)
from tests.analysis.nets import Block, assert_same, calibrated, fingerprint
from tests.profiler.profiled import Everything, Parts, profiled


@pytest.mark.parametrize("training", [True, False])
def test_the_forward_is_the_users_own(training: bool, tmp_path: Path) -> None:
    model = Everything().train(training)
    other = copy.deepcopy(model)
    batch, mask = {"image": torch.randn(2, 3, 4, 4)}, torch.ones(4)
    torch.manual_seed(1)
    wanted = other(batch, mask=mask)
    random = torch.get_rng_state()
    torch.manual_seed(1)
    with ModelProfiler(model, tmp_path) as profiler:
        found = model(batch, mask=mask)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(found["out"], wanted["out"])
    assert torch.equal(found["aux"][1][0], wanted["aux"][1][0])
    assert model.calls == other.calls == 1
    for name, buffer in other.named_buffers():
        assert torch.equal(model.get_buffer(name), buffer), name
    for result in (found, wanted):
        result["out"].sum().backward()
    for name, parameter in other.named_parameters():
        assert torch.equal(model.get_parameter(name).grad, parameter.grad), name
    assert {"conv", "add", "add_1", "lstm:2", "mha", "gelu"} <= set(profiler.get_info_manager)


def test_nothing_stays_on_the_model(tmp_path: Path) -> None:
    model, x = Block().eval(), torch.rand(1, 3, 8, 8)
    before, attributes, call = fingerprint(model), set(vars(model)), nn.Module.__call__
    profiled(model, tmp_path, x)
    assert_same(before, model)
    assert set(vars(model)) == attributes
    assert nn.Module.__call__ is call


def test_a_later_in_place_operator_does_not_change_what_was_seen(tmp_path: Path) -> None:
    """A31."""
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(inplace=True))
    x = torch.randn(4, 1, 3, 3)
    seen = profiled(model, tmp_path, x)
    assert seen["0"].output_min < 0
    assert torch.equal(seen["0"].output, model[0](x))
    assert torch.equal(seen["1"].input, model[0](x))
    assert seen["1"].output_min == 0
    assert not any(m._forward_hooks for m in model.modules())


def test_float_operators_have_the_names_that_prepare_gives_them(tmp_path: Path) -> None:
    model, x = Parts().eval(), torch.rand(2, 3, 8, 8)
    of_float = list(profiled(model, tmp_path / "float", x))
    prepared = calibrated(model, x)
    of_prepared = list(profiled(prepared, tmp_path / "calib", x))
    stubs = {"_input_0_quant", *(f"_output_{n}_dequant" for n in range(4))}
    assert [n for n in of_prepared if n not in stubs] == of_float
    assert {"fc", "fc_1", "_generated_split_0:1", "_generated_add_0"} <= set(of_float)


def test_a_prepared_model_shows_what_observe_sees(tmp_path: Path) -> None:
    x = torch.rand(2, 3, 8, 8)
    model = calibrated(Block(), x)
    before = fingerprint(model)
    records = read_profile(_folder(profiled(model, tmp_path, x))).records
    assert_same(before, model)
    wanted = observe(model, Inputs(x), keep_inputs=True).records
    assert list(records) == list(wanted)
    for name, record in wanted.items():
        found = records[name]
        assert torch.equal(found.value, record.value), name
        assert (found.scale, found.dtype, found.op) == (record.scale, record.dtype, record.op)
        assert torch.equal(found.inputs[0], record.inputs[0])


@pytest.mark.parametrize("state", [FakeQuantState.CALIBRATION, FakeQuantState.QAT])
def test_observers_and_gradients_work_as_without_a_profiler(
    state: FakeQuantState, tmp_path: Path
) -> None:
    x = torch.rand(2, 3, 8, 8)
    model = calibrated(Block(), x)
    model.train(state is FakeQuantState.QAT)
    set_fake_quantize(model, state)
    other = copy.deepcopy(model)
    with ModelProfiler(model, tmp_path):
        found = model(x * 2)
    wanted = other(x * 2)
    assert torch.equal(found, wanted)
    assert found.requires_grad
    for name, tensor in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_converted_model_shows_its_codes_as_real_numbers(fast_mode: bool, tmp_path: Path) -> None:
    x = torch.rand(2, 3, 8, 8)
    model = convert(calibrated(Block(), x), fast_mode=fast_mode)
    wanted = model(x)
    with ModelProfiler(model, tmp_path) as profiler:
        assert torch.equal(model(x), wanted)
    seen = profiler.get_info_manager
    stem = seen["stem.2"]
    assert (stem.dtype, stem.info.op) == ("qint8", "relu")
    codes = stem.output / stem.scale
    assert torch.equal(codes.round() * stem.scale, stem.output)
    weight = next(t for t in stem.info.tensors if t.attr == "weight")
    assert (len(weight.scale), weight.ch_axis) == (8, 0)
    assert torch.equal(seen["_output_0_dequant"].output, wanted)


class Stubs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.conv, self.pool = QuantStub(), nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)
        self.add, self.dequant = torch.ao.nn.quantized.FloatFunctional(), DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.quant(x))
        return torch.sigmoid(self.dequant(self.pool(self.add.add(y, y))))


def test_eager_models_of_all_stages_join(tmp_path: Path) -> None:
    x = torch.rand(2, 3, 8, 8)
    float_model = Stubs().eval()
    model = prepare(float_model, method=PrepareMethod.EAGER)
    set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
    model(x)
    set_fake_quantize(model, FakeQuantState.VALIDATION)
    before, wanted = fingerprint(model), model(x)
    with ModelProfiler(model, tmp_path / "calib") as profiler:
        assert torch.equal(model(x), wanted)
    assert_same(before, model)
    seen = profiler.get_info_manager
    assert seen["pool"].dtype == "qint8"
    assert seen["pool"].scale == seen["add"].scale  # a pool keeps its input's scale
    assert [t.dtype for t in seen["add"].info.tensors] == ["qint8"] * 3
    assert seen["add"].info.method == "add"
    names = ["quant", "conv", "add", "pool", "dequant", "_generated_sigmoid_0"]
    integer = convert(model)
    for folder, stage in (("float", float_model), ("calib", model), ("int", integer)):
        assert list(profiled(stage, tmp_path / folder, x)) == names


def test_later_forwards_are_further_records(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with ModelProfiler(model, tmp_path) as profiler:
        model(torch.zeros(1, 2))
        second = model(torch.ones(1, 2))
    seen = profiler.get_info_manager
    assert list(seen) == ["0", "1", "0@1", "1@1"]
    assert seen["0@1"].info.call == 1
    assert torch.equal(seen["1@1"].output, second)
    assert [row.index for row in seen.table().rows if row.tensor.attr == "output"] == [0, 1, 2, 3]


class Failing(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.fc, self.error = nn.Linear(2, 2), error

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        if x.sum() > -1e9:
            raise self.error
        return x


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_an_exception_restores_everything_and_leaves_no_files(
    error: BaseException, tmp_path: Path
) -> None:
    model, x = Failing(error), torch.ones(1, 2)
    before, attributes, call = fingerprint(model), set(vars(model)), nn.Module.__call__
    profiler = ModelProfiler(model, tmp_path)
    with pytest.raises(type(error)), profiler:
        model(x)
    assert_same(before, model)
    assert (set(vars(model)), nn.Module.__call__) == (attributes, call)
    assert torch.overrides._get_current_function_mode_stack() == []
    assert not list(tmp_path.glob("op_infos/*"))
    with pytest.raises(AnalysisError, match="no forward of the model was finished"):
        profiler.get_info_manager()


def test_a_forward_that_meets_a_guard_leaves_no_half_of_itself(tmp_path: Path) -> None:
    class Sign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.fc(x)
            return x + 1 if x.shape[0] > 2 else x

    model = calibrated(Sign(), torch.rand(1, 2))
    with ModelProfiler(model, tmp_path) as profiler:
        with pytest.raises(GuardError):
            model(torch.rand(4, 2))
        model(torch.rand(2, 2))
    assert list(profiler.get_info_manager) == ["_input_0_quant", "fc", "_output_0_dequant"]


def test_what_can_not_be_recorded_is_profiled_all_the_same(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            noise = torch.rand(2, generator=torch.Generator().manual_seed(0))
            y = self.fc(x * noise)
            return torch.tensor(y.detach().numpy()) + torch.tanh(y)

    model, x = Odd(), torch.rand(1, 2)
    with ModelProfiler(model, tmp_path) as profiler:
        found = model(x)
    assert torch.equal(found, model(x))
    names = list(profiler.get_info_manager)
    assert "fc" in names
    assert "_generated_tanh_0" in names


class Calls(nn.Module):
    def __init__(self, function: Callable[[Calls, Tensor], object]) -> None:
        super().__init__()
        self.function, self.fc = function, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


def _written_in_place(model: Calls, x: Tensor) -> object:
    first, second = x.chunk(2, 1)
    first.mul_(2)
    return second, x


ODD: dict[str, tuple[Callable[[Calls, Tensor], object], list[str]]] = {
    "vmap": (lambda m, x: torch.vmap(torch.sin)(x) + m.fc(x), ["fc", "_generated_add_0"]),
    "gradient": (
        lambda m, x: torch.autograd.grad((x.requires_grad_() ** 2).sum(), x)[0],
        ["_generated_pow_0", "_generated_sum_0"],
    ),
    "swapped parameters": (
        lambda m, x: torch.func.functional_call(m.fc, {"weight": torch.eye(4)}, (x,)),
        ["_generated_linear_0"],
    ),
    "sparse": (
        lambda m, x: x.to_sparse().to_dense(),
        ["_generated_to_sparse_0", "_generated_to_dense_0"],
    ),
    "empty, complex": (
        lambda m, x: (x[:0], torch.complex(x, x)),
        ["_generated_getitem_0", "_generated_complex_0"],
    ),
    "written in place": (
        _written_in_place,
        ["_generated_chunk_0", "_generated_chunk_0:1", "_generated_mul_0"],
    ),
    "its input": (lambda m, x: x, []),
    "no tensor": (lambda m, x: int(m.fc(x).shape[0]), ["fc"]),
    "seeded": (
        lambda m, x: (torch.manual_seed(0), torch.rand(4) + x)[1],
        ["_generated_rand_0", "_generated_add_0"],
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_forwards_are_seen(kind: str, tmp_path: Path) -> None:
    function, names = ODD[kind]
    model = Calls(function)
    wanted = model(torch.ones(2, 4))
    with ModelProfiler(model, tmp_path) as profiler:
        found = model(torch.ones(2, 4))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    seen = profiler.get_info_manager
    assert list(seen) == names
    assert len(str(seen.table())) > 0


def test_fast_paths_inside_of_a_layer_are_taken(tmp_path: Path) -> None:
    """torch's fused attention has other last bits than its parts."""

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    model, x = Attend().eval(), torch.randn(2, 50, 16)
    with torch.no_grad():
        wanted = model(x)
        with ModelProfiler(model, tmp_path):
            assert torch.equal(model(x), wanted)


def test_sizes_are_ints_and_what_is_made_of_them_has_a_name(tmp_path: Path) -> None:
    class Positions(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, int, str]:
            rows, columns = x.shape
            made = torch.ones(rows, len(x)) * torch.arange(x.size(1) // 1 - columns + rows)
            assert isinstance(rows, int)
            assert isinstance(-rows * 2 % 7, int)
            assert range(rows) == range(2)
            return made + torch.ones(2) * x, x.numel(), f"{rows}x{columns:d}"

    model, x = Positions(), torch.ones(2, 2)
    with ModelProfiler(model, tmp_path / "float") as profiler:
        _, count, text = model(x)
    assert (count, text) == (4, "2x2")
    assert copy.deepcopy(count) == pickle.loads(pickle.dumps(count)) == 4
    names = list(profiler.get_info_manager)
    parts = ("ones", "arange", "mul", "mul", "add")
    numbers = (0, 0, 0, 1, 0)
    assert names == [f"_generated_{p}_{n}" for p, n in zip(parts, numbers, strict=True)]
    prepared = calibrated(model, x)
    of_prepared = list(profiled(prepared, tmp_path / "calib", x))
    assert [name for name in of_prepared if name.startswith("_generated")] == names


def test_in_inference_mode(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    with torch.inference_mode():
        seen = profiled(model, tmp_path, torch.ones(1, 2))
        assert torch.equal(seen["0"].output, model[0](torch.ones(1, 2)))


def test_data_parallel_is_seen_as_the_model_inside(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(2, 2)), torch.rand(1, 2)
    assert list(profiled(nn.DataParallel(model), tmp_path, x)) == ["0"]


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a number": (lambda: 3, r"expected a torch.nn.Module, got int"),
    "TorchScript": (
        lambda: torch.jit.script(nn.Linear(2, 2)),
        "TorchScript, whose operators can't be seen",
    ),
    "HBIR": (
        lambda: hbdk4.export(calibrated(nn.Linear(2, 2), torch.rand(1, 2)), torch.rand(1, 2)),
        "use HbirModelProfiler",
    ),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("kind", REFUSED)
def test_other_models_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    make, message = REFUSED[kind]
    with pytest.raises(AnalysisError, match=message):
        ModelProfiler(make(), tmp_path)  # type: ignore[arg-type]


def test_a_part_that_is_prepared_is_asked_for(tmp_path: Path) -> None:
    model = nn.Sequential(calibrated(nn.Linear(2, 2), torch.rand(1, 2)))
    with pytest.raises(AnalysisError, match="holds a prepared model at '0'"):
        ModelProfiler(model, tmp_path).__enter__()


def test_a_lazy_module_must_have_run_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(AnalysisError, match="0.weight has no shape yet"):
        ModelProfiler(model, tmp_path).__enter__()


def test_use_outside_of_the_block_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(AnalysisError, match="inside of its with block only"):
        ModelProfiler(model, tmp_path).get_info_manager()
    with ModelProfiler(model, tmp_path) as profiler:
        for second in (profiler, ModelProfiler(model, tmp_path / "second")):
            with pytest.raises(AnalysisError, match="block"):
                second.__enter__()
    with pytest.raises(AnalysisError, match="call the very object"):
        profiler.get_info_manager()


def _folder(manager: object) -> Path:
    return Path(manager.out_dir)  # type: ignore[attr-defined]
