"""nn.MultiheadAttention in all its forms, and the transformer layers around it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qtune.dtype import qint8, qint16
from qtune.hbir.export import export
from qtune.nn.qat import iter_ops
from qtune.quantization import DeQuantStub, QuantStub
from tests.ops.whole import check, relative, trains, whole

X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(5))
PADDING = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 0, 0, 0, 1]], dtype=torch.bool)
LATER = torch.ones(5, 5, dtype=torch.bool).triu(1)
BAR = 0.03
"""Five int8 roundings in a row, each half of 1 / 127.5 of its range, and sums of a few."""


class Attention(nn.Module):
    """Self attention with masks as arguments."""

    def __init__(self, call: Any = None, **options: Any) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, **options)
        self.call = dict(call or {})
        for bias in (self.attn.in_proj_bias, self.attn.out_proj.bias):
            if bias is not None:
                nn.init.normal_(bias)

    def forward(self, x: Tensor, padding: Any = None, mask: Any = None) -> Any:
        return self.attn(x, x, x, key_padding_mask=padding, attn_mask=mask, **self.call)


def test_parts_have_stable_names_and_parameters_keep_theirs() -> None:
    net = check(Attention(batch_first=True), X, bar=BAR)
    names = {name.removeprefix("attn.") for name in net.names}
    assert {"q_proj", "k_proj", "v_proj", "scores", "values", "out_proj", "average"} <= names
    assert {"softmax.max", "softmax.exp", "softmax.reciprocal", "softmax.mul"} <= names
    state = net.calib.state_dict()
    assert set(net.model.state_dict()) <= set(state)
    assert state["attn.k_proj.weight_fake_quant.scale"].shape == (8,)  # per output channel


def test_scores_are_int16_and_weights_have_the_configured_dtype() -> None:
    net = whole(Attention(batch_first=True), X)
    dtypes = {
        op.name: op.activation_post_process.dtype
        for op in iter_ops(net.calib)
        if op.activation_post_process is not None
    }
    assert dtypes["attn.scores"] is dtypes["attn.softmax.exp"] is qint16
    assert dtypes["attn.softmax.mul"] is dtypes["attn.values"] is qint8


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({"batch_first": True}, {"need_weights": False}),
        ({"batch_first": True}, {"average_attn_weights": False}),
        ({"batch_first": True, "add_bias_kv": True, "add_zero_attn": True, "bias": False}, {}),
    ],
)
def test_masks_and_options(options: dict[str, Any], call: dict[str, Any]) -> None:
    check(Attention(call, **options), X, PADDING, LATER, bar=BAR)


def test_sequence_first_with_one_mask_per_head() -> None:
    masks = LATER.expand(6, 5, 5).contiguous()
    check(Attention(add_zero_attn=True), X.transpose(0, 1), PADDING, masks, bar=BAR)


def test_without_batch() -> None:
    check(Attention(), X[0], PADDING[1], LATER, bar=BAR)


def test_other_widths_of_keys_and_values() -> None:
    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.MultiheadAttention(8, 2, kdim=4, vdim=6, batch_first=True)

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
            return self.attn(q, k, v)

    net = check(Cross(), X, torch.randn(3, 7, 4), torch.randn(3, 7, 6), bar=BAR)
    shorter = net.calib(X[:1, :2], torch.randn(1, 9, 4), torch.randn(1, 9, 6))
    assert shorter[0].shape == (1, 2, 8)


def test_a_subclass_and_a_shared_layer() -> None:
    class Own(nn.MultiheadAttention):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x, x, x, need_weights=False)[0]

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Own(8, 2), nn.MultiheadAttention(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            x = self.b(x, x, x)[0]
            return self.b(x, x, x)[0]

    net = check(Twice(), X, bar=2 * BAR)
    assert net.names.count("b.softmax.exp") == 2


def test_training_reaches_every_parameter() -> None:
    trains(Attention(batch_first=True, dropout=0.1, add_bias_kv=True), [X])


def test_outside_of_the_stubs_the_layer_is_torchs_and_exports() -> None:
    class Front(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn, self.quant = Attention(batch_first=True), QuantStub()
            self.fc, self.dequant = nn.Linear(8, 3), DeQuantStub()

        def forward(self, x: Tensor, padding: Tensor) -> Tensor:
            return self.dequant(self.fc(self.quant(self.attn(x, padding)[0])))

    net = whole(Front(), X, PADDING, pure=False)
    assert "multi_head_attention" in [op.op for op in net.calib.float_ops]
    module = export(net.calib, (X, PADDING))
    # The same sums in another order; one step of the stub behind it may flip.
    assert relative(module[0](X, PADDING), net.calib(X, PADDING).detach()) < 0.02


def block(kind: type[nn.Module]) -> nn.Module:
    """A transformer layer with two heads: in eval mode without gradients torch has a fast path."""
    return kind(8, 2, 16, dropout=0.1, batch_first=True)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(
            block(nn.TransformerEncoderLayer), 2, enable_nested_tensor=False
        )

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.encoder(x, src_key_padding_mask=padding)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = block(nn.TransformerDecoderLayer)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.layer(
            x, x * 2, tgt_mask=mask, memory_key_padding_mask=padding, tgt_is_causal=True
        )


@pytest.mark.parametrize("model", [Encoder, Decoder])
def test_transformer_layers_are_entered_and_quantized(model: Any) -> None:
    # Two attentions, two feed-forwards and norms of int8 steps behind one another.
    net = check(model(), X, PADDING, bar=0.08)
    names = [name for name in net.names if name.endswith("softmax.exp")]
    assert len(names) == 2
    assert not any("addend" in name or "bias_0" in name for name in net.names)
