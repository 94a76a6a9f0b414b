"""LSTM, GRU and RNN: every form against float, and one set of bits on every path."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from qtune.dtype import qint8, qint16
from qtune.errors import CaptureError, ExportError, GuardError
from qtune.hbir.export import export
from qtune.march import march
from qtune.nn.qat import iter_ops
from qtune.quantization import DeQuantStub, QuantStub, prepare
from tests.ops.whole import check, relative, trains, whole

X = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(7))
BAR = 0.03
"""A state in [-1, 1] on int8 steps (1 / 127.5 of the largest), fed back twice through int8
weights: up to four steps remain."""


class Holder(nn.Module):
    """A recurrent layer inside a model; ``state`` makes the second argument."""

    def __init__(self, rnn: nn.Module, state: Any = None) -> None:
        super().__init__()
        self.rnn = rnn
        self.state = state
        self.learned = nn.Parameter(torch.randn(1, 1, 6) * 0.5)

    def forward(self, x: Tensor, *given: Tensor) -> Any:
        if given:
            return self.rnn(x, given[0] if len(given) == 1 else given)
        return self.rnn(x) if self.state is None else self.rnn(x, self.state(self, x))


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.LSTM(4, 6, batch_first=True),
        lambda: nn.LSTM(4, 6, 2, bidirectional=True),
        lambda: nn.GRU(4, 6, 2, bias=False, batch_first=True),
        lambda: nn.GRU(4, 6, bidirectional=True),
        lambda: nn.RNN(4, 6, bidirectional=True),
        lambda: nn.RNN(4, 6, 2, nonlinearity="relu", batch_first=True),
    ],
)
def test_every_form_is_near_float_and_has_one_set_of_bits(layer: Any) -> None:
    check(Holder(layer()), X, bar=BAR)


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch's, about its own speed
def test_projected_states() -> None:
    check(Holder(nn.LSTM(4, 6, proj_size=3, bias=False)), X, bar=BAR)


def test_a_given_state_is_taken() -> None:
    h, c = torch.randn(1, 2, 6), torch.randn(1, 2, 6)
    check(Holder(nn.LSTM(4, 6, batch_first=True)), X, h, c, bar=BAR)
    check(Holder(nn.GRU(4, 6, batch_first=True)), X, h, bar=BAR)


def test_a_learned_state_is_taken_and_trained() -> None:
    def state(model: Holder, x: Tensor) -> Tensor:
        return model.learned.expand(1, x.shape[0], 6).contiguous()

    model = Holder(nn.GRU(4, 6, batch_first=True), state)
    check(model, X, bar=BAR)
    trains(model, [X])


def test_zeros_written_out_are_the_default_state() -> None:
    def zeros(model: Holder, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(1, x.shape[0], 6), torch.zeros(1, x.shape[0], 6)

    rnn = nn.LSTM(4, 6, batch_first=True)
    written, default = whole(Holder(rnn, zeros), X), whole(Holder(rnn), X)
    assert all(map(torch.equal, written.integer(), default.integer()))


def test_without_batch() -> None:
    check(Holder(nn.LSTM(4, 6)), X[0], bar=BAR)
    check(Holder(nn.GRU(4, 6)), X[0], torch.randn(1, 6), bar=BAR)


def test_the_layer_alone_is_a_model() -> None:
    check(nn.LSTM(4, 6, 2), X, bar=BAR, pure=False)  # its own zeros stay in the graph
    check(nn.RNN(4, 6, nonlinearity="relu"), X, bar=BAR, pure=False)


def test_other_batches_run_and_another_length_is_refused() -> None:
    net = whole(Holder(nn.LSTM(4, 6, batch_first=True)), X)
    x = torch.cat([X.flip(0), X])
    with torch.no_grad():
        right, fake = net.model(x)[0], net.calib(x)[0]
    assert relative(fake, right) < BAR
    assert relative(net.quantized[0](x)[0], right) < BAR
    with pytest.raises(GuardError, match=r"rnn: the layer is unrolled for 2 steps.*got 6 and 2"):
        net.calib(torch.randn(2, 6, 4))


def test_steps_share_their_parts_and_all_inside_is_int16() -> None:
    net = whole(Holder(nn.LSTM(4, 6, batch_first=True)), X)
    assert net.names.count("rnn.gates_l0") == net.names.count("rnn.hh_l0") == 2
    dtypes = {
        op.name.removeprefix("rnn."): op.activation_post_process.dtype
        for op in iter_ops(net.calib)
        if op.activation_post_process is not None and op.name.startswith("rnn.")
    }
    outside = {"h_l0", "stack_l0"}
    assert {dtypes[name] for name in outside} == {qint8}
    assert {dtypes[name] for name in set(dtypes) - outside} == {qint16}
    assert {"i_l0", "f_l0", "g_l0", "o_l0", "c_l0", "tanh_c_l0"} <= set(dtypes)


def test_a_state_that_nobody_uses_leaves_no_operators() -> None:
    class Last(Holder):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return self.rnn(x)[0][:, -1]

    assert not {"rnn.h_n", "rnn.c_n"} & set(whole(Last(nn.LSTM(4, 6)), X).names)


def test_names_of_parameters_stay_and_states_load() -> None:
    model = Holder(nn.LSTM(4, 6, 2, bidirectional=True))
    net = whole(model, X)
    assert set(model.state_dict()) <= set(net.calib.state_dict())
    for twin in (copy.deepcopy(net.calib), pickle.loads(pickle.dumps(net.calib))):
        assert all(map(torch.equal, twin(X)[1], net.calib(X)[1]))


def test_a_step_of_training_reaches_every_weight() -> None:
    class Sequence(Holder):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return self.rnn(x)[0]

    model = Sequence(nn.LSTM(4, 6, 2, dropout=0.5, bidirectional=True))
    del model.learned
    trains(model, [X])


def test_outside_of_the_stubs_the_layer_is_torchs_and_exports() -> None:
    class Front(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.quant, self.fc = nn.LSTM(4, 6, 2), QuantStub(), nn.Linear(6, 3)
            self.dequant = DeQuantStub()

        def forward(self, x: Tensor) -> Tensor:
            return self.dequant(self.fc(self.quant(self.rnn(x)[0])))

    net = whole(Front(), X, pure=False)
    assert [op.op for op in net.calib.float_ops] == ["lstm"]
    module = export(net.calib, (X,))
    # The same sums in another order: unrolled steps instead of torch's kernel. One step of the
    # stub behind it may flip.
    assert relative(module[0](X), net.calib(X).detach()) < 0.02


def test_a_packed_sequence_is_refused_by_name() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(4, 6, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(pack_padded_sequence(x, [2, 1], batch_first=True))[1][0]

    with march("nash-e"), pytest.raises((CaptureError, ExportError), match="PackedSequence"):
        prepare(Packed().eval(), X)
