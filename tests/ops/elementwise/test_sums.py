"""add and sub: one sum over a common shift, one rounding (numerics.md section 3)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import ConvertError, ExportError
from tests.ops.whole import quiet, relative, whole

from .rig import Case, Operand, randn

__all__ = ["quiet"]

X = randn(2, 3, 5, 4)
Y = randn(2, 3, 5, 4, scale=2.0, seed=1)
ROW = randn(1, 3, 1, 1, seed=2)


@pytest.mark.parametrize("op", ["add", "sub"])
@pytest.mark.parametrize("dtypes", [(qint8, qint8), (qint16, qint16), (qint8, qint16)])
@pytest.mark.parametrize("out", [qint8, qint16])
def test_sum_is_within_one_step(
    op: str, dtypes: tuple[QuantDType, QuantDType], out: QuantDType
) -> None:
    case = Case(op, [Operand(X, dtypes[0]), Operand(Y, dtypes[1])], out=out)
    # Bars of numerics.md section 3: 1, and 2 for int16; the steps are floats, hence the 0.01.
    assert case.check() <= (1 if out is qint8 else 2) + 0.01
    assert case.op_types == ["QAdd"]


def test_channels_last_and_broadcast_operands_agree_in_every_bit() -> None:
    last = X.contiguous(memory_format=torch.channels_last)
    for operands in ([last, Y], [last, ROW], [ROW, last], [last, Y[0, 0]], [Y[:1], last]):
        assert Case("add", [Operand(x) for x in operands]).check() <= 1.01


def test_number_on_either_side_has_no_scale() -> None:
    """A14: scalar operands get no observer; the number is added over the output's shift."""
    for op, operands in (
        ("add", [Operand(X), Operand(1.5, None)]),
        ("add", [Operand(2, None), Operand(X)]),
        ("sub", [Operand(X), Operand(0.3, None)]),
        ("sub", [Operand(1, None), Operand(X)]),
    ):
        case = Case(op, operands)
        assert case.check() <= 1.01
        node = next(n for n in case.quantized.model.graph if n.op_type == "QAdd")
        addend = node.inputs[1]
        assert addend is not None
        assert addend.const_value is not None
        assert addend.const_value.numpy().dtype == np.int64


def test_number_is_rounded_half_up_over_the_shift() -> None:
    """y = floor((q * m + floor(c / s_y * 2**n + 0.5) + half) / 2**n)."""
    case = Case("sub", [Operand(1, None), Operand(X)])
    node = next(n for n in case.quantized.model.graph if n.op_type == "QAdd")
    constants = [v.const_value.numpy() for v in node.inputs[1:] if v is not None and v.const_value]
    addend, m, one, n = (int(c) for c in constants)
    assert (one, m < 0) == (1, True)
    assert addend == int(np.floor(1 / case.scale * 2.0**n + 0.5))


def test_broadcast_parameter_keeps_its_own_scale() -> None:
    """A14: a parameter of shape (1, C, 1, 1) is a constant with codes of its own."""
    case = Case("add", [Operand(X), Operand(ROW * 20, constant=True)])
    assert case.check() <= 1.01
    node = next(n for n in case.quantized.model.graph if n.op_type == "QAdd")
    codes = node.inputs[1]
    assert codes is not None
    assert codes.const_value is not None
    assert codes.const_value.numpy().dtype == np.int8


def test_alpha_scales_the_second_operand() -> None:
    for op in ("add", "sub"):
        for alpha in (2, -0.5, 0):
            operands = [Operand(X), Operand(Y)]
            assert Case(op, operands, {"alpha": alpha}).check() <= 1.01


def test_sum_of_integers_stays_as_it_is() -> None:
    """A16: ids + 1 is no quantized sum."""
    ids = torch.tensor([[1, 2, 300]])
    for operands in (
        [Operand(ids, None), Operand(1, None)],
        [Operand(2, None), Operand(ids, None)],
    ):
        case = Case("sub", operands)
        assert case.check() == 0
        assert case.run_integer().dtype == torch.int64


def test_float_number_beside_integers_is_refused_at_export() -> None:
    case = Case("add", [Operand(torch.tensor([1, 2]), None), Operand(0.5, None)])
    with pytest.raises(ExportError, match=r"\.float\(\)"):
        _ = case.qat


def test_lost_operand_is_reported() -> None:
    small = Operand(X * 1e-9)
    case = Case("add", [Operand(Y), small])
    assert case.check() <= 1.01
    (note,) = case.quantized.report
    assert note["kind"] == "zero_multiplier"
    assert note["details"]["operand"] == 1


def test_zeros_that_are_lost_are_not_reported() -> None:
    case = Case("add", [Operand(Y), Operand(torch.zeros_like(Y), constant=True)])
    assert case.check() <= 1.01
    (node,) = [n for n in case.quantized.model.graph if n.op_type == "QAdd"]
    constants = [v.const_value.numpy() for v in node.inputs[2:] if v is not None and v.const_value]
    assert [int(c) for c in constants[:2]][1] == 0, "the multiplier of the zeros is 0"
    assert case.quantized.report == ()


def test_a_token_beside_zeros_of_the_batch_keeps_it_open_without_a_report() -> None:
    token, x = randn(1, 1, 8) * 3, randn(2, 4, 8)
    net = whole(lambda x: torch.cat([x[:, :1] * 0 + token, x], 1), x)
    assert net.quantized.report == ()
    (value,) = net.integer()
    assert relative(value, net.right()[0]) < 1 / 127  # one step of int8
    other = randn(5, 4, 8)
    assert torch.equal(net.quantized[0](other)[:, 0], value[:1, 0].expand(5, 8))


def test_a_lost_constant_is_reported_with_what_to_do() -> None:
    case = Case("add", [Operand(Y), Operand(torch.full_like(Y, 1e-9), constant=True)])
    (note,) = case.quantized.report
    assert (note["kind"], note["details"]["operand"]) == ("zero_multiplier", 1)
    assert note["op"] == "op", "the name of the call"
    assert "A constant as small as an eps is better a plain number" in note["message"]


def test_tiny_and_huge_outputs_saturate_and_vanish() -> None:
    for out_scale in (2.0**-40, 1e-7, 1e6, 1e12, 1e20):
        for operands in ([Operand(X), Operand(Y)], [Operand(X), Operand(1, None)]):
            Case("add", operands, out_scale=out_scale).run_integer()


def test_ties_round_up() -> None:
    """A21: half steps of a sum go up, as everywhere."""
    half = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    grid = torch.tensor([-63.75, 63.75])  # absmax 63.75 gives the scale 0.5
    x = torch.cat([half, grid])
    case = Case("add", [Operand(x), Operand(torch.zeros(8))], out_scale=1.0)
    assert case.run_integer()[:6].tolist() == [1, 2, 3, 0, -1, -2]


def test_unquantized_float_operand_is_refused_with_a_remedy() -> None:
    case = Case("add", [Operand(X), Operand(randn(1, 3, 1, 1), None, constant=True)])
    with pytest.raises(ConvertError, match="float constant of shape"):
        _ = case.quantized


def test_empty_batch() -> None:
    case = Case("add", [Operand(X[:0]), Operand(Y[:0])], out_scale=0.02)
    object.__setattr__(case.operands[0], "scale", np.float32(0.01))
    object.__setattr__(case.operands[1], "scale", np.float32(0.01))
    assert case.run_integer().shape == (0, 3, 5, 4)
