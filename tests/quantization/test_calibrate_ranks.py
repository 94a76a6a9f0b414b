"""auto_calibrate and states in several processes: uneven data, errors, wrapped models."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from qtune.errors import NonFiniteError, PrepareError
from qtune.march import march
from qtune.modes import qat_mode
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    auto_calibrate,
    get_default_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.qconfig_setter import ModuleNameTemplate

from ..ranks import on_ranks

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")

ITEMS = torch.randn(10, 3, 6, 6, generator=torch.Generator().manual_seed(3))


def model(synchronize: bool = True, mode: str = "fuse_bn") -> PreparedModel:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    qconfig = get_default_qconfig(activation_qkwargs={"is_sync_quantize": synchronize})
    setter = QconfigSetter(qconfig, [ModuleNameTemplate({"": "qint8"})])
    with qat_mode(mode):
        return prepare(net.eval(), ITEMS[:2], setter)


def scales(prepared: nn.Module) -> dict[tuple[str, str], Tensor]:
    return {(name, kind): q.scale.clone() for name, kind, q in iter_stubs(prepared)}


def states(prepared: nn.Module) -> set[FakeQuantState]:
    return {q.state for _, _, q in iter_stubs(prepared)}


class Told(logging.Handler):
    """What the log of the package says in this process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        logging.getLogger("qtune").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"


def failing(batches: list[Tensor]) -> Iterator[Tensor]:
    yield from batches
    raise OSError("the disk is gone")


def sampled(rank: int) -> Any:
    """Ten items with labels in batches of two on two processes: one gets a batch more."""
    data = TensorDataset(ITEMS, torch.zeros(len(ITEMS)))
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))
    wrapped = DistributedDataParallel(model())
    assert auto_calibrate(wrapped, loader) is wrapped
    return scales(wrapped.module), states(wrapped)


def uneven(rank: int) -> Any:
    told = Told()
    calibrated = auto_calibrate(model(), list(ITEMS.split(2))[: 2 + 3 * rank])
    return scales(calibrated), told.text


def empty_batches(rank: int) -> Any:
    batches = [ITEMS[:4], ITEMS[:0] if rank else ITEMS[4:8]]
    return scales(auto_calibrate(model(), batches))


def outcome(prepared: PreparedModel, batches: Any) -> Any:
    """The error of a calibration, and whether the model is as it was."""
    set_fake_quantize(prepared.train(), FakeQuantState.QAT)
    before = {name: value.clone() for name, value in prepared.state_dict().items()}
    text = ""
    try:
        auto_calibrate(prepared, batches)
    except (OSError, PrepareError, NonFiniteError) as error:
        text = f"{type(error).__name__}: {error}"
    after = prepared.state_dict()
    as_before = all(torch.equal(value, after[name]) for name, value in before.items())
    return text, as_before and prepared.training and states(prepared) == {FakeQuantState.QAT}


def nothing_on_one(rank: int) -> Any:
    return outcome(model(), [] if rank else [ITEMS])


def error_on_one(rank: int) -> Any:
    return outcome(model(), failing([ITEMS]) if rank else [ITEMS, ITEMS])


def nan_on_one(rank: int) -> Any:
    return outcome(model(), [ITEMS, ITEMS * (torch.nan if rank else 1)])


def first_process_alone(rank: int) -> Any:
    """Without exchange the usual way: one process calibrates, DDP sends what it found."""
    prepared = model(synchronize=False)
    if rank == 0:
        auto_calibrate(prepared, [ITEMS])
    dist.barrier()
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    wrapped = DistributedDataParallel(prepared)
    with torch.no_grad():
        wrapped.eval()(ITEMS)
    return scales(prepared)


def loaded(rank: int) -> Any:
    """A calibrated state loaded before and after wrapping, and the tensors that DDP holds."""
    calibrated = auto_calibrate(model(), [ITEMS])
    early, late = model(), model()
    early.load_state_dict(calibrated.state_dict())
    DistributedDataParallel(early)
    wrapped = DistributedDataParallel(late)
    held = dict(late.named_buffers()) | dict(late.named_parameters())
    late.load_state_dict(calibrated.state_dict())
    whole = DistributedDataParallel(model())
    whole.load_state_dict(wrapped.state_dict())
    set_fake_quantize(wrapped, FakeQuantState.VALIDATION)
    now = dict(late.named_buffers()) | dict(late.named_parameters())
    return {
        "scales": [scales(m) for m in (calibrated, early, late, whole.module)],
        "held": all(now[name] is tensor for name, tensor in held.items()),
        "states": states(late),
        "saved": wrapped.state_dict(),
    }


CASES = (
    sampled,
    uneven,
    empty_batches,
    nothing_on_one,
    error_on_one,
    nan_on_one,
    first_process_alone,
    loaded,
)


def all_cases(rank: int) -> dict[str, Any]:
    return {case.__name__: case(rank) for case in CASES}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    with march("nash-e"), pytest.MonkeyPatch.context() as environment:
        environment.setenv("QTUNE_RUN_DIR", "")
        found = on_ranks(all_cases, tmp_path_factory.mktemp("ranks"))
    for one in found:
        assert isinstance(one, dict), one
    return found


def alone(*batches: Tensor) -> dict[tuple[str, str], Tensor]:
    return scales(auto_calibrate(model(), batches))


def check_close(found: dict[Any, Tensor], expected: dict[Any, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # float32 kernels sum in another order at another batch size
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=0)


def check_equal(found: dict[Any, Tensor], expected: dict[Any, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_wrapped_model_calibrates_on_a_sampled_loader(ranks: list[dict[str, Any]]) -> None:
    (first, state), (second, other) = (rank["sampled"] for rank in ranks)
    check_equal(first, second)
    assert state == other == {FakeQuantState.VALIDATION}
    parts = ITEMS[0::2].split(2), ITEMS[1::2].split(2)
    check_close(first, alone(*(torch.cat(pair) for pair in zip(*parts, strict=True))))


def test_all_stop_with_the_process_that_has_fewest_batches(ranks: list[dict[str, Any]]) -> None:
    (first, text), (second, other) = (rank["uneven"] for rank in ranks)
    check_equal(first, second)
    check_close(first, alone(ITEMS[:2], ITEMS[2:4]))
    for told in (text, other):
        assert "auto_calibrate: process 0 has no more than 2 batches, so all stop" in told


def test_a_process_with_an_empty_batch_takes_part(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["empty_batches"] for rank in ranks)
    check_equal(first, second)
    check_close(first, alone(ITEMS[:4], ITEMS[4:8]))


def test_a_process_without_data_is_an_error_in_all(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        text, as_before = rank["nothing_on_one"]
        assert text.startswith("PrepareError: auto_calibrate: the data loader gave no batch in")
        assert "in process 1" in text
        assert as_before


def test_an_error_of_one_loader_stops_all(ranks: list[dict[str, Any]]) -> None:
    (first, undone), (second, other) = (rank["error_on_one"] for rank in ranks)
    assert first.startswith("PrepareError: auto_calibrate: batch 1 failed in process 1")
    assert second == "OSError: the disk is gone"
    assert undone
    assert other


def test_nan_in_one_process_is_the_same_error_in_all(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        text, as_before = rank["nan_on_one"]
        assert text.startswith("NonFiniteError: ")
        assert "NaN in the data" in text
        assert as_before


def test_ddp_sends_what_the_first_process_calibrated(ranks: list[dict[str, Any]]) -> None:
    check_equal(ranks[1]["first_process_alone"], ranks[0]["first_process_alone"])
    check_equal(ranks[0]["first_process_alone"], alone(ITEMS))


def test_states_load_before_and_after_wrapping(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        found = rank["loaded"]
        for other in found["scales"][1:]:
            check_equal(other, found["scales"][0])
        assert found["held"]
        assert found["states"] == {FakeQuantState.VALIDATION}


def test_a_state_of_a_wrapped_model_loads_into_one_process(ranks: list[dict[str, Any]]) -> None:
    saved, single = dict(ranks[0]["loaded"]["saved"]), model()
    with pytest.raises(RuntimeError, match="saved from DistributedDataParallel") as hint:
        single.load_state_dict(saved)
    assert "consume_prefix_in_state_dict_if_present" in str(hint.value)
    nn.modules.utils.consume_prefix_in_state_dict_if_present(saved, "module.")
    single.load_state_dict(saved)
    check_equal(scales(single), ranks[0]["loaded"]["scales"][0])


class Wrapper(nn.Module):
    """Names its model as DistributedDataParallel does."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.module = inside


def test_a_plain_state_in_a_wrapped_model_says_where_to_load_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(RuntimeError, match="Missing key"):
        Wrapper(model()).load_state_dict(model().state_dict())
    assert "ddp_model.module.load_state_dict(state)" in caplog.text


def test_states_of_another_qat_mode_are_refused_inside_a_wrapper_too() -> None:
    with pytest.raises(RuntimeError, match="this state comes from QAT mode with_bn"):
        Wrapper(model(mode="with_bn_reverse_fold")).load_state_dict(
            Wrapper(model(mode="with_bn")).state_dict()
        )
