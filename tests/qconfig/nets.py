"""Small networks as ``resolve`` sees them."""

from dataclasses import replace

from qtune.march import March
from qtune.ops.spec import FuseRole, MarchRule, Rule
from qtune.qconfig.plan import OpView
from qtune.qconfig.qconfig import get_qconfig
from qtune.qconfig.resolve import resolve
from qtune.qconfig.setter import QconfigSetter

GEMM_RULES = (
    MarchRule(("bernoulli",), ("qint8",), ("qint8", "qint32")),
    MarchRule(("bayes", "nash"), ("qint8", "qint16"), ("qint8", "qint16", "qint32")),
)
WIDE = (MarchRule(("bernoulli",), ("qint8",), ("qint8",)), MarchRule(("bayes", "nash")))
INT8_ONLY = (MarchRule(("bernoulli", "bayes", "nash"), ("qint8",), ("qint8",)),)


def view(name, producers, fields, **defaults):
    return OpView(**({"name": name, "producers": producers, "march": WIDE} | defaults | fields))


def quant(name="quant", **fields):
    return view(name, (None,), fields, op="quant_stub", rule=Rule.OWN_SCALE)


def dequant(name, producer, **fields):
    return view(name, (producer,), fields, op="dequant_stub", rule=Rule.NO_SCALE, dequantizes=True)


def gemm(name, producer, **fields):
    kind = {"rule": Rule.OWN_SCALE, "is_gemm": True, "weight": True, "march": GEMM_RULES}
    producers = (producer, None, None)
    return view(name, producers, fields, op="conv2d", fuse=FuseRole.GEMM, **kind)


def matmul(name, *producers, **fields):
    kind = {"rule": Rule.OWN_SCALE, "is_gemm": True, "march": GEMM_RULES}
    return view(name, producers, fields, op="matmul", **kind)


def relu(name, producer, **fields):
    return view(name, (producer,), fields, op="relu", rule=Rule.INPUT_SCALE, fuse=FuseRole.RELU)


def add(name, *producers, **fields):
    return view(name, producers, fields, op="add", rule=Rule.OWN_SCALE, fuse=FuseRole.ADD)


def table(name, producer, **fields):
    return view(name, (producer,), fields, op="sigmoid", rule=Rule.TABLE)


def chain(**fields):
    """quant -> conv1 + relu1 (fused) -> pool -> conv2 -> dequant; ``fields`` by view name."""
    views = [
        quant(consumers=("conv1",)),
        gemm("conv1", "quant", group="relu1", consumers=("relu1",)),
        relu("relu1", "conv1", group="relu1", consumers=("pool",)),
        relu("pool", "relu1", op="max_pool2d", fuse=None, consumers=("conv2",)),
        gemm("conv2", "pool", consumers=("dequant",)),
        dequant("dequant", "conv2", is_model_output=True),
    ]
    return [replace(v, **fields.get(v.name, {})) for v in views]


def solve(views, *templates, reference=None, march=March.NASH_E):
    return resolve(views, QconfigSetter(reference or get_qconfig(), templates), march)


def dtypes(resolution):
    """name -> dtype of the result as text; ``float`` for operators that stay float."""
    return {
        name: "float" if plan.float_reason else str(plan.dtype)
        for name, plan in resolution.plans.items()
    }


def decision(resolution, name, port="output"):
    (found,) = [d for d in resolution.explanation if (d.name, d.port) == (name, port)]
    return found
