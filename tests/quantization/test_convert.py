"""``convert`` and ``convert_fx``: integer modules that equal the emulated BPU in every bit."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune import March, qint16
from qtune.capture.inputs import Inputs
from qtune.capture.structure import flatten
from qtune.errors import ArgumentError, ExportError, NotCalibratedError, PrepareError, RunError
from qtune.modes import consistency_level, qat_mode
from qtune.nn.qat import QATOp
from qtune.nn.quantized import PreservedOp, QTensor, QuantizedOp
from qtune.profiler import set_preserve_qat_mode
from qtune.quantization import (
    DeQuantStub,
    FakeQuantState,
    FloatFunctional,
    QuantStub,
    convert,
    convert_fx,
    hbdk4,
    prepare,
    prepare_qat_fx,
    set_fake_quantize,
)
from qtune.quantizers.fake_quantize import FakeQuantize

from ..integration.networks import INT16, NETWORKS
from .flow import calib, prep, run

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Residual(nn.Module):
    """One fused group with an add, and one with a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.BatchNorm2d(8)
        for norm in (self.norm1, self.norm2):
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(x)) + x).mean((2, 3))


class Wide(nn.Module):
    """A residual group, tables, decomposed layers, a constant, sizes, masks, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.layer, self.head = Residual(), nn.LayerNorm(8), nn.Linear(8, 5)
        self.up = nn.ConvTranspose2d(3, 8, 3, 2, 1, output_padding=1, groups=1)
        self.register_buffer("shift", torch.randn(1, 8, 1, 1))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        low, high = torch.tanh(self.up(x) + self.shift).chunk(2, dim=1)
        z = torch.cat([low, high * y], dim=1).mean((2, 3)).view(x.shape[0], -1) + self.body(x)
        return {"p": torch.softmax(self.head(self.layer(z)), -1), "i": z.argmax(1), "m": z > 0.1}


def wide_inputs(batch: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return (
        torch.randn(batch, 3, 4, 4, generator=generator),
        torch.rand(batch, 1, 8, 8, generator=generator),
    )


def leaves(result: Any) -> list[Tensor]:
    return flatten(result)[0]


def assert_same_bits(model: nn.Module, prepared: nn.Module, example: Any) -> None:
    """The converted model against the emulated BPU on the exported one."""
    integer = hbdk4.convert(hbdk4.export(prepared, example))[0]
    arguments = example if isinstance(example, tuple) else (example,)
    expected, got = leaves(integer(*arguments)), leaves(run(model, example))
    assert len(expected) == len(got)
    assert all(map(torch.equal, got, expected))


@pytest.mark.parametrize("int16", [False, True], ids=["int8", "int16"])
def test_a_wide_model_equals_the_emulated_bpu(int16: bool) -> None:
    prepared = prep(Wide(), wide_inputs(), qconfig_setter=INT16 if int16 else None)
    calib(prepared, [wide_inputs(), wide_inputs(3)])
    model = convert(prepared)
    assert_same_bits(model, prepared, wide_inputs())
    assert_same_bits(model, prepared, wide_inputs(1))
    assert not any(isinstance(m, FakeQuantize) for m in model.modules())
    if int16:
        assert any(
            m.grid.dtype is qint16 for m in model.modules() if isinstance(m, QuantizedOp) and m.grid
        )


@pytest.mark.parametrize("name", ["digits"])
def test_a_network_equals_the_emulated_bpu_also_on_another_size(name: str) -> None:
    network = NETWORKS[name]
    prepared = prep(network.model(), network.data()[0])
    calib(prepared, network.data())
    model = convert(prepared)
    for shape in (network.shape, network.other):
        assert_same_bits(model, prepared, torch.randn(shape))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_consistency_levels_are_kept(level: int) -> None:
    with consistency_level(level):
        prepared = prep(nn.Sequential(Residual(), nn.SiLU(), nn.Linear(8, 3)), X)
    calib(prepared, [X])
    assert_same_bits(convert(prepared), prepared, X)


@pytest.mark.parametrize("mode", ["with_bn", "with_bn_reverse_fold"])
def test_batch_norms_that_a_qat_mode_keeps_are_absorbed(mode: str) -> None:
    with qat_mode(mode):
        prepared = prep(Residual(), X)
    calib(prepared, [X])
    assert_same_bits(convert(prepared), prepared, X)


def test_hybrid_models_run_their_cpu_operators_in_float() -> None:
    class Hybrid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.dequant = QuantStub(), DeQuantStub()
            self.first, self.middle, self.last = (nn.Conv2d(3, 3, 1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.dequant(self.last(F.selu(self.middle(self.first(self.quant(x))))))

    names = {"module_name": ["middle"]}
    prepared = prepare_qat_fx(Hybrid().eval(), hybrid=True, hybrid_dict=names, example_inputs=X)
    calib(prepared, [X])
    model = convert_fx(prepared)
    assert isinstance(model.quant(X), QTensor)
    middle = prepared.middle
    x = torch.randn(1, 3, 2, 2)
    assert torch.equal(model.middle(x), F.conv2d(x, middle.weight, middle.bias))
    assert_same_bits(model, prepared, X)


def test_float16_values_are_kept() -> None:
    from qtune import march

    with march.march("nash-p"):
        from qtune.qconfig.templates import ModuleNameTemplate
        from qtune.quantization import QconfigSetter, get_qconfig

        setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({"": torch.float16})])
        prepared = prep(
            nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sigmoid(), nn.Conv2d(4, 2, 1)),
            X,
            qconfig_setter=setter,
        )
        calib(prepared, [X])
        assert_same_bits(convert(prepared), prepared, X)


def test_each_branch_of_a_model_is_converted() -> None:
    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1), nn.Conv2d(4, 3, 1)

        def forward(self, x: Tensor, task: str) -> Tensor:
            x = F.relu(self.body(x))
            return self.a(x) if task == "a" else self.b(x)

    calls = [Inputs(X, "a"), Inputs(X, "b")]
    prepared = prep(Tasks(), calls)
    calib(prepared, calls)
    model = convert(prepared)
    for call in calls:
        integer = hbdk4.convert(hbdk4.export(prepared.select_branch(call), call))[0]
        assert torch.equal(run(model, call), integer(*call.args))


def test_a_shared_layer_on_a_constant_and_on_data_has_a_module_for_each() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layer = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
            self.register_buffer("map", torch.randn(1, 3, 8, 8))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.layer(x) + self.layer(self.map) + self.layer(-x)

    prepared = prep(Shared(), X)
    calib(prepared, [X])
    assert_same_bits(convert(prepared), prepared, X)


def test_parts_of_a_graph_model_run_where_forward_calls_layers_only() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
            self.conv, self.add, self.act = nn.Conv2d(4, 4, 1), FloatFunctional(), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            x = self.body(x)
            return self.act(self.add.add(x, self.conv(x)))

    prepared = prep(Parts(), X)
    calib(prepared, [X])
    model = convert(prepared)
    x = model.body(model._input_0_quant(X))
    assert torch.equal(model._output_0_dequant(model.act(x)), run(model, X))
    with pytest.raises(AttributeError, match=r"no attribute 'add': .* is computed by act. Call"):
        model.add.add(x, x)


def test_the_prepared_model_stays_as_it_is_unless_inplace() -> None:
    prepared = prep(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), X)
    calib(prepared, [X])
    before, state = run(prepared, X), copy.deepcopy(prepared.state_dict())
    model = convert(prepared)
    assert torch.equal(run(prepared, X), before)
    assert all(torch.equal(v, state[k]) for k, v in prepared.state_dict().items())
    assert any(m.qconfig is not None for m in prepared.modules() if isinstance(m, QATOp))
    assert not any("qconfig" in vars(m) for m in model.modules())
    inner: Any = prepared.get_submodule("1")
    assert convert(prepared, remove_qconfig=False).get_submodule("1").qconfig is not None
    changed = convert(prepared, inplace=True)
    assert changed.get_submodule("1") is not inner
    assert torch.equal(run(changed, X), run(model, X))


def small() -> Any:
    prepared = prep(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)), X)
    calib(prepared, [X])
    return prepared


def test_copies_and_files_give_the_same_bits() -> None:
    model = convert(small())
    expected = run(model, X)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded, model.to("cpu")):
        assert torch.equal(run(other, X), expected)


def test_the_state_of_one_converted_model_fits_another() -> None:
    first, second = convert(small()), convert(small())
    expected = run(first, X)
    assert not torch.equal(run(second, X), expected)  # other weights
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(run(second, X), expected)


@pytest.mark.parametrize("change", [nn.Module.half, nn.Module.double])
def test_other_float_dtypes_are_refused(change: Callable[[nn.Module], nn.Module]) -> None:
    model = convert(small())
    with pytest.raises(RunError, match=r"a converted model has fixed dtypes, but .* would become"):
        change(model)
    assert run(model, X).dtype is torch.float32


def test_states_that_do_not_quantize_are_refused() -> None:
    prepared = small()
    for state in (FakeQuantState.CALIBRATION, FakeQuantState._FLOAT):
        set_fake_quantize(prepared, state)
        with pytest.raises(ExportError, match=rf"^convert: .* are in {state}"):
            convert(prepared)
    fresh = prepare(nn.Conv2d(3, 4, 3).eval(), X).eval()
    with pytest.raises(NotCalibratedError):
        convert(fresh)


def test_wrong_arguments_get_one_clear_error() -> None:
    prepared = small()
    with pytest.raises(ArgumentError, match=r"^convert: expected a prepared model, got Linear"):
        convert(nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match=r"is a part of a model that was prepared with a graph"):
        convert(prepared.get_submodule("2"))
    with pytest.raises(ArgumentError, match=r"^convert_fx: inplace must be a bool"):
        convert_fx(prepared, {}, convert_custom_config_dict={})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"convert_custom_config_dict takes"):
        convert_fx(prepared, convert_custom_config_dict={"preserve": ["a"]})
    with pytest.raises(ArgumentError, match=r"mapping must map classes"):
        convert(prepared, mapping={QATOp: nn.Identity})
    with pytest.raises(ArgumentError, match=r"no module's name begins with head"):
        set_preserve_qat_mode(prepared, ["head"])
    with pytest.raises(ArgumentError, match=r"no module is a LSTM; .* those of qtune\.nn\.qat"):
        set_preserve_qat_mode(prepared, types=nn.LSTM)


@pytest.mark.parametrize("inplace", [False, True])
def test_training_mode_converts_as_eval_mode(
    inplace: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The guide's scripts call convert_fx right behind the training, without eval()."""
    prepared = small()
    expected = run(convert(prepared), X)
    trained = copy.deepcopy(prepared).train()
    set_fake_quantize(trained, FakeQuantState.QAT)
    converted = convert(trained, inplace=inplace)
    assert "training mode; it is converted as in eval mode" in caplog.text
    assert torch.equal(run(converted, X), expected)
    assert not converted.training
    assert trained.training is not inplace


def test_preserved_attributes_are_on_the_result() -> None:
    float_model = nn.Sequential(nn.Conv2d(3, 4, 3))
    float_model.classes = ["a", "b"]  # type: ignore[assignment]
    prepared = prepare_qat_fx(float_model.eval(), example_inputs=X)
    calib(prepared, [X])
    wanted = {"preserved_attributes": ["classes"]}
    assert convert_fx(prepared, convert_custom_config_dict=wanted).classes == ["a", "b"]
    prepared.qconfig = None
    as_the_guide_writes = convert_fx(prepared, wanted, False)
    assert as_the_guide_writes.classes == ["a", "b"]
    assert hasattr(as_the_guide_writes, "qconfig")
    with pytest.raises((ArgumentError, PrepareError), match=r"no"):
        convert_fx(prepared, convert_custom_config_dict={"preserved_attributes": ["nothing"]})


def test_a_mapping_puts_the_users_class_in_an_operators_place() -> None:
    class Mine(nn.Module):
        @classmethod
        def from_float(cls, op: QATOp) -> Mine:
            return cls()

        def forward(self, x: Any) -> Any:
            return x

    prepared = small()
    model = convert(prepared, mapping={type(prepared.get_submodule("1")): Mine})
    assert isinstance(model.get_submodule("1"), Mine)


def test_preserved_modules_stay_in_qat_form_between_integer_ones() -> None:
    prepared = small()
    expected = run(prepared, X)
    set_preserve_qat_mode(prepared, ["0"])
    model = convert(prepared)
    kept = model.get_submodule("1")  # conv and relu are one group
    assert isinstance(kept, PreservedOp)
    assert isinstance(model.get_submodule("2"), QuantizedOp)
    # exact integers as float32 products (numerics.md section 7), here well below 2**24
    assert torch.allclose(run(model, X), expected, rtol=0, atol=1e-5)
    set_preserve_qat_mode(prepared, value=False)
    assert not any(isinstance(m, PreservedOp) for m in convert(prepared).modules())


def test_the_choice_may_be_made_on_the_float_model_and_by_float_classes() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    set_preserve_qat_mode(net, ["0"])
    prepared = prep(net.eval(), X)
    calib(prepared, [X])
    kept = convert(prepared)
    assert isinstance(kept.get_submodule("2"), PreservedOp)
    assert isinstance(kept.get_submodule("3"), QuantizedOp)
    set_preserve_qat_mode(prepared, value=False)
    assert not any(isinstance(m, PreservedOp) for m in convert(prepared).modules())
    set_preserve_qat_mode(prepared, types=(nn.Conv2d,))
    both = convert(prepared)
    assert all(isinstance(both.get_submodule(name), PreservedOp) for name in ("2", "3"))


def test_convert_is_what_qat_training_ends_with() -> None:
    prepared = prepare(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), X)
    prepared.train()
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        prepared(X).square().mean().backward()
        optimizer.step()
    prepared.eval()
    assert_same_bits(convert_fx(prepared), prepared, X)


def test_march_of_prepare_is_the_march_of_the_programs() -> None:
    from qtune.quantization.deploy import export_hbir  # noqa: F401 - the module must import alone

    model = convert(small())
    assert {m.march for m in model.modules() if isinstance(m, QuantizedOp)} == {March.NASH_E.value}
