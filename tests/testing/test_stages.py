"""Stages: what they give, what the content key sees, what the store keeps."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import qtune
from qtune import modes
from qtune.errors import ArgumentError, MarchError
from qtune.quantization import PrepareMethod, QconfigSetter, get_qconfig
from qtune.quantization.observer_v2 import MSEObserver
from qtune.testing import DirectoryStore, Stages
from qtune.testing import built_stages as stages_module
from qtune.testing.origin import origin_of

from . import nets

Build = Callable[..., Stages]


def key(model: Any = None, data: Any = None, **rest: Any) -> str:
    return Stages(
        nets.make() if model is None else model,
        nets.batches() if data is None else data,
        **{"march": "nash-e", **rest},
    ).key


@pytest.fixture(scope="module")
def plain_key() -> str:
    return key()


def test_stages_are_built_and_run(stages: Stages) -> None:
    x = nets.batches()[0]
    outputs = [
        stages.float(x),
        stages.calib(x),
        stages.pre_export(x),
        stages.qat_bc[0](x),
        stages.quantized_bc[0](x),
        stages.hbm[0](x),
    ]
    assert all(torch.allclose(y, outputs[0], atol=0.2) for y in outputs)  # int8: a few steps
    assert torch.equal(outputs[4], outputs[5])
    assert stages.quantized_bc.march == "nash-e"
    assert torch.equal(stages.example_inputs.args[0], x)


def test_equal_models_have_equal_keys(plain_key: str) -> None:
    assert key() == plain_key
    assert key(nets.make, nets.batches) == plain_key  # callables
    assert key(name="another name in reports") == plain_key


def with_changed_weight() -> nn.Module:
    model = nets.make()
    with torch.no_grad():
        model.head.bias[0] += 1e-6
    return model


class WithConstant(nets.Net):
    """Adds a tensor that is neither a parameter nor a buffer."""

    def __init__(self, constant: float) -> None:
        super().__init__()
        self.constant = torch.full((1, 4, 1, 1), constant)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(F.relu(self.stem(x))) + self.constant
        return self.head(x.mean((2, 3)))


def constant(value: float) -> nn.Module:
    torch.manual_seed(0)
    return WithConstant(value).eval()


def hooked(scale: float) -> nn.Module:
    model = nets.make()
    model.stem.register_forward_hook(lambda module, args, result: result * scale)
    return model


def activation(dtype: str) -> QconfigSetter:
    from qtune.quantization.qconfig_setter import ConvDtypeTemplate, ModuleNameTemplate

    return QconfigSetter(
        get_qconfig(), [ModuleNameTemplate({"": dtype}), ConvDtypeTemplate("qint8", "qint8")]
    )


def mse() -> QconfigSetter:
    from qtune.quantization.qconfig_setter import ModuleNameTemplate

    return QconfigSetter(get_qconfig(observer=MSEObserver), [ModuleNameTemplate({"": "qint8"})])


@pytest.mark.parametrize(
    "changed",
    [
        lambda: key(nets.make(nets.EditedNet)),
        lambda: key(with_changed_weight()),
        lambda: key(data=nets.batches(seed=2)),
        lambda: key(data=nets.batches(count=2)),
        lambda: key(data=nets.batches()[::-1], example_inputs=nets.batches()[0]),
        lambda: key(example_inputs=nets.batches(size=2)[0]),
        lambda: key(march="nash-m"),
        lambda: key(method=PrepareMethod.JIT),
        lambda: key(qconfig_setter=activation("qint16")),
        lambda: key(qconfig_setter=mse()),
    ],
    ids=[
        "forward",
        "weight",
        "calibration",
        "fewer batches",
        "order of batches",
        "example",
        "march",
        "method",
        "dtypes",
        "observer",
    ],
)
def test_whatever_changes_the_artefact_changes_the_key(
    plain_key: str, changed: Callable[[], str]
) -> None:
    assert changed() != plain_key


def test_modes_of_the_process_change_the_key(plain_key: str) -> None:
    with modes.qat_mode("with_bn"):
        assert key() != plain_key
    with modes.consistency_level(2):
        assert key() != plain_key
    assert key() == plain_key


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (torch, "__version__", "9.9.0"),
        (torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT"),
        (stages_module, "__version__", "9.9.0"),
        (stages_module, "source_digest", lambda: "edited checkout"),
    ],
    ids=["torch", "CPU capability", "qtune", "source of qtune"],
)
def test_versions_and_cpu_change_the_key(
    monkeypatch: pytest.MonkeyPatch, plain_key: str, place: Any, name: str, value: Any
) -> None:
    monkeypatch.setattr(place, name, value)
    assert key() != plain_key


def test_instruction_set_that_the_user_allows_changes_the_key(
    monkeypatch: pytest.MonkeyPatch, plain_key: str
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert key() != plain_key


def test_threads_are_recorded_and_leave_the_key(plain_key: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        stages = Stages(nets.make(), nets.batches(), march="nash-e")
        assert stages.provenance["threads"] == before + 1
        assert stages.key == plain_key
    finally:
        torch.set_num_threads(before)


def test_tensors_outside_the_state_dict_count() -> None:
    assert key(constant(1.0)) == key(constant(1.0))
    assert key(constant(1.0)) != key(constant(1.5))


def test_hooks_count() -> None:
    assert key(hooked(1.5)) == key(hooked(1.5))
    assert key(hooked(1.5)) != key(hooked(2.0))


def test_edited_forward_never_gets_the_old_artefact(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    x = nets.batches()[0]
    before = Stages(nets.make(), nets.batches, march="nash-e", store=store)
    after = Stages(nets.make(nets.EditedNet), nets.batches, march="nash-e", store=store)
    assert not torch.equal(before.quantized_bc[0](x), after.quantized_bc[0](x))


def test_second_object_reads_everything(tmp_path: Path) -> None:
    first = DirectoryStore(tmp_path / "store")
    fresh = Stages(nets.make(), nets.batches, march="nash-e", store=first)
    hbm = fresh.hbm
    assert sorted(Path(name).name for name in first.built) == [
        "calib.pt",
        "model.hbm",
        "qat.bc",
        "quantized.bc",
    ]
    second = DirectoryStore(tmp_path / "store")
    again = Stages(nets.make(), nets.batches, march="nash-e", store=second)
    x = nets.batches()[0]
    assert torch.equal(again.quantized_bc[0](x), fresh.quantized_bc[0](x))
    assert torch.equal(again.calib(x), fresh.calib(x))
    assert torch.equal(again.hbm[0](x), hbm[0](x))
    assert second.built == []


def test_damaged_artefact_is_built_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    stages = Stages(nets.make(), nets.batches, march="nash-e", store=store)
    x, key = nets.batches()[0], stages.key
    expected = stages.quantized_bc[0](x)
    for name in ("calib.pt", "qat.bc", "quantized.bc"):
        path = store.path(key, name)
        path.write_bytes(path.read_bytes()[:-20])
    again = Stages(nets.make(), nets.batches, march="nash-e", store=store)
    assert torch.equal(again.quantized_bc[0](x), expected)
    assert len(store.built) == 6


def test_run_files_lie_beside_the_artefacts(stages: Stages) -> None:
    assert stages.calib is not None
    folder = stages.store.path(stages.key, "prepare")
    assert folder is not None
    assert (folder / "model_check_result.txt").exists()


def test_run_directory_of_the_environment_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTUNE_RUN_DIR", str(tmp_path / "run"))
    assert Stages(nets.make(), nets.batches, march="nash-e").calib is not None
    assert (tmp_path / "run" / "fx_graph.txt").exists()


def test_factories_are_seeded_and_the_generators_restored() -> None:
    def made() -> nn.Module:
        return nets.Net()

    def data() -> list[torch.Tensor]:
        return [torch.from_numpy(np.random.rand(2, 3, 8, 8).astype("float32")) + random.random()]

    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    first = key(made, data)
    after = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    assert (torch.rand(1), np.random.rand(), random.random()) == after
    assert key(made, data) == first


def test_given_model_stays_as_it_is() -> None:
    model = nets.make().train()
    stages = Stages(model, nets.batches, march="nash-e")
    assert stages.calib is not None
    assert model.training
    assert stages.float is not model
    assert not stages.float.training


def test_march_of_the_process_stays() -> None:
    with qtune.march.march("nash-m"):
        assert Stages(nets.make(), nets.batches, march="nash-e").quantized_bc.march == "nash-e"
        assert qtune.get_march() == "nash-m"


def test_models_know_where_they_come_from(stages: Stages) -> None:
    origin = origin_of(stages.quantized_bc)
    assert origin.model == "net"
    assert origin.artefact is not None
    assert origin.artefact.endswith("quantized.bc")
    assert origin.provenance["march"] == "nash-e"
    assert origin_of(nn.Identity()).model == "Identity"


@pytest.mark.parametrize(
    ("factory", "data", "text"),
    [
        (lambda: 3, nets.batches, "as factory; got builtins.int"),
        ("net", nets.batches, "as factory; got builtins.str"),
        (nets.make, list, "calibration data is empty"),
    ],
)
def test_bad_arguments(factory: Any, data: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        Stages(factory, data, march="nash-e").key  # noqa: B018
    with pytest.raises(MarchError):
        Stages(factory, data, march="nash")


def test_one_tensor_is_one_batch() -> None:
    x = nets.batches()[0]
    assert len(Stages(nets.make(), x, march="nash-e").batches) == 1


def test_labelled_batches_calibrate_on_their_inputs() -> None:
    plain = nets.batches()
    labelled = [[x, torch.zeros(len(x))] for x in plain]
    given = Stages(nets.make(), labelled, march="nash-e").batches
    assert all(torch.equal(b.args[0], x) for b, x in zip(given, plain, strict=True))
    wrong = Stages(nets.make(), [plain[0], qtune.Inputs(*plain[:2])], march="nash-e")
    with pytest.raises(ArgumentError, match="Stages: calibration: batch 1: .*too many positional"):
        _ = wrong.batches


def test_an_interrupted_calibration_is_begun_anew() -> None:
    def interrupted() -> Stages:
        return Stages(nets.make(), [10 * batch for batch in nets.batches()], march="nash-e")

    stages, expected = interrupted(), interrupted().calib.state_dict()
    model, calls = stages._prepared[0].train(), []

    def hook(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    handle = next(iter(model.children())).register_forward_hook(hook)
    with pytest.raises(KeyboardInterrupt):
        _ = stages.calib
    assert model.training
    handle.remove()
    found = stages.calib.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
