"""``torch.compile`` and prepared models: they run eagerly inside of it, with the same bits."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from qtune.march import march
from qtune.quantization import (
    FakeQuantize,
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    set_fake_quantize,
)
from qtune.quantizers.lsq import _LearnableFakeQuantize

# torch's own, where it looks at what crosses a break of the graph
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

BACKEND = "aot_eager"


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    x = torch.randn(2, 3, 8, 8)
    with march("nash-e"):
        prepared = prepare(net, (x,), QconfigSetter(get_qconfig(), templates=[]))
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    prepared(x)
    return prepared, x


class Around(nn.Module):
    """Float code around a prepared model."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return torch.softmax(self.inner(x * 2.0) + 1.0, 1)


@pytest.mark.parametrize("backend", ["eager", BACKEND])
def test_every_state_has_the_same_bits(model, backend):
    prepared, x = model
    compiled = torch.compile(prepared, backend=backend)
    for state in FakeQuantState:
        set_fake_quantize(prepared, state)
        assert torch.equal(compiled(x), prepared(x))


def test_statistics_and_gradients_of_a_training_step_are_the_same(model):
    prepared, x = model
    set_fake_quantize(prepared, FakeQuantState.QAT)
    before = {k: v.clone() for k, v in prepared.state_dict().items()}
    results = []
    for run in (prepared, torch.compile(prepared, backend=BACKEND)):
        prepared.load_state_dict(before)
        prepared.train()
        prepared.zero_grad()
        run(x * 1.5).square().sum().backward()
        grads = [p.grad.clone() for p in prepared.parameters()]
        results.append((grads, {k: v.clone() for k, v in prepared.state_dict().items()}))
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[1][0], strict=True))
    assert all(torch.equal(v, results[1][1][k]) for k, v in results[0][1].items())


def test_the_code_around_a_prepared_model_is_compiled(model):
    prepared, x = model
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    net = Around(prepared)
    # compiled softmax may differ in the last bits
    torch.testing.assert_close(torch.compile(net, backend=BACKEND)(x), net(x))
    found = torch._dynamo.explain(net)(x)
    assert found.graph_count == 2, "one before, one after"


def test_a_whole_graph_is_refused_by_torch(model):
    prepared, x = model
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(Around(prepared), backend="eager", fullgraph=True)(x)


@pytest.mark.parametrize("kind", [FakeQuantize, _LearnableFakeQuantize])
def test_a_lone_fake_quantize_has_the_same_bits(kind):
    net = nn.Sequential(nn.Linear(4, 4), kind())
    x = torch.randn(3, 4)
    net(x)
    set_fake_quantize(net, FakeQuantState.VALIDATION)
    assert torch.equal(torch.compile(net, backend=BACKEND)(x), net(x))


def test_nothing_of_the_compiler_is_imported_before_it_runs():
    code = (
        "import sys, torch, qtune.quantization as q; f = q.FakeQuantize(); f(torch.ones(3)); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
