"""Whole architectures: capture, prepare, calibrate, the float state, other sizes, VALIDATION."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from qtune.march import march

from . import own_models, timm_models, transformers_models
from .runner import Architecture, run

OWN = list(own_models.architectures())
TIMM = (
    "test_resnet",
    "test_efficientnet",
    "test_convnext",
    "test_vit",
    "test_maxvit",
    "mobilenetv3_small_050",
    "efficientvit_b0",
)
TRANSFORMERS = (
    "BertModel",
    "DebertaModel",
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
    "MambaModel",
    "T5ForConditionalGeneration",
    "WhisperModel",
    "CLIPModel",
    "SegformerForSemanticSegmentation",
    "DetrForObjectDetection",
)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    with march("nash-e"), torch.random.fork_rng():
        yield


@pytest.mark.parametrize("architecture", OWN, ids=[item.name for item in OWN])
def test_own_architecture_passes_at_every_size(architecture: Architecture) -> None:
    result = run(architecture)
    assert result.passed, f"{result.step}: {result.problem}"
    assert result.refused == ()
    assert result.sizes == len(architecture.others)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TIMM)
def test_architecture_of_timm_passes(name: str) -> None:
    if find_spec("timm") is None:  # its import needs the stub of torchvision
        pytest.skip("timm is not installed")
    found = {item.name: item for item in timm_models.architectures()}
    result = run(found[name])
    assert result.passed, f"{result.step}: {result.problem}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_architecture_of_transformers_passes(name: str) -> None:
    pytest.importorskip("transformers")
    found = {item.name: item for item in transformers_models.architectures()}
    result = run(found[name])
    assert result.passed, f"{result.step}: {result.problem}"
