"""Networks on tokens, in the styles of the zoos, small enough for every run of the tests."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        kind = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(kind)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat((-two, one), dim=-1) * sin


class DecoderLayer(nn.Module):
    """Rotary positions, fewer keys than queries, a gated MLP; keys and values may be continued."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, dim // heads
        self.q, self.o = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.k, self.v = (nn.Linear(dim, dim // 2, bias=False) for _ in range(2))
        self.gate, self.up, self.down = (
            nn.Linear(dim, 2 * dim),
            nn.Linear(dim, 2 * dim),
            nn.Linear(2 * dim, dim),
        )
        self.norm1, self.norm2 = RMSNorm(dim), RMSNorm(dim)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor, past: Any) -> Any:
        b, n, _ = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(b, n, -1, self.size).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotated(q, *turn), rotated(k, *turn)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        present = (k, v)
        k, v = (t[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for t in present)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).reshape(b, n, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), present


class LanguageModel(nn.Module):
    """Causal, with tied embeddings; returns what the next step needs."""

    def __init__(self, vocabulary: int = 40, dim: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(DecoderLayer(dim, 4) for _ in range(2))
        self.norm, self.head = RMSNorm(dim), nn.Linear(dim, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("speeds", 1 / 100 ** (torch.arange(0, 4, 2) / 4), persistent=False)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, past: Any = None
    ) -> Any:
        b, n = input_ids.shape
        before = 0 if past is None else past[0][0].shape[2]
        places = torch.arange(before, before + n)
        angles = places[:, None].float() * self.speeds[None]
        angles = torch.cat((angles, angles), -1)[None, None]
        open_ = torch.arange(before + n)[None] <= places[:, None]
        mask = open_[None, None].expand(b, 1, -1, -1)
        if attention_mask is not None:
            mask = mask & attention_mask[:, None, None, :].bool()
        x, presents = self.embed(input_ids), []
        for index, layer in enumerate(self.layers):
            item = None if past is None else past[index]
            x, present = layer(x, (angles.cos(), angles.sin()), mask, item)
            presents.append(present)
        return {"logits": self.head(self.norm(x)), "past": tuple(presents)}


class Bert(nn.Module):
    """Post-norm encoder; the mask becomes a float with the smallest number where it blocks."""

    def __init__(self, dim: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, dim, padding_idx=0), nn.Embedding(32, dim)
        self.qkv = nn.ModuleList(nn.Linear(dim, dim) for _ in range(3))
        self.out, self.norms = (
            nn.Linear(dim, dim),
            nn.ModuleList(nn.LayerNorm(dim) for _ in range(3)),
        )
        self.mlp = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim))
        self.pool, self.heads = nn.Linear(dim, dim), heads

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        b, n = input_ids.size()
        x = self.norms[0](self.words(input_ids) + self.places(torch.arange(n))[None])
        low = torch.finfo(x.dtype).min
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)).masked_fill(
            attention_mask[:, None, None, :] == 0, low
        )
        q, k, v = (f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in self.qkv)
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + mask, -1)
        x = self.norms[1](x + self.out((weights @ v).transpose(1, 2).flatten(2)))
        x = self.norms[2](x + self.mlp(x))
        return x, torch.tanh(self.pool(x[:, 0]))


class Translator(nn.Module):
    """Encoder and decoder of torch's own layers, with padding and causal masks."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(30, dim), nn.Embedding(30, dim)
        self.encoder = nn.TransformerEncoderLayer(dim, 2, 32, activation=F.silu, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(dim, 2, 32, batch_first=True, norm_first=True)
        self.head = nn.Linear(dim, 30)

    def forward(self, source: Tensor, target: Tensor, padding: Tensor) -> Tensor:
        n = target.shape[1]
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        memory = self.encoder(self.source(source), src_key_padding_mask=padding)
        y = self.decoder(
            self.target(target), memory, tgt_mask=future, memory_key_padding_mask=padding
        )
        return self.head(y)


class Scan(nn.Module):
    """A state space layer: a causal depthwise convolution and a loop over the time steps."""

    def __init__(self, dim: int = 8, states: int = 4) -> None:
        super().__init__()
        self.inner, self.conv = (
            nn.Linear(dim, 2 * dim),
            nn.Conv1d(dim, dim, 3, groups=dim, padding=2),
        )
        self.select, self.step = nn.Linear(dim, 2 * states + 1), nn.Linear(1, dim)
        self.log_a, self.d = nn.Parameter(torch.rand(dim, states)), nn.Parameter(torch.ones(dim))
        self.out, self.states = nn.Linear(dim, dim), states

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.inner(x).chunk(2, -1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        step, b, c = torch.split(self.select(x), [1, self.states, self.states], dim=-1)
        step = F.softplus(self.step(step))
        decay = torch.exp(step.unsqueeze(-1) * -torch.exp(self.log_a))
        given = (step * x).unsqueeze(-1) * b.unsqueeze(2)
        state = torch.zeros_like(given[:, 0])
        found = []
        for index in range(x.shape[1]):
            state = decay[:, index] * state + given[:, index]
            found.append((state * c[:, index].unsqueeze(1)).sum(-1))
        y = torch.stack(found, 1) + x * self.d
        return self.out(y * F.silu(gate))
