"""Every torch spelling of the operators that the first deliverable names is registered."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops import registry

SPELLINGS = {
    "conv2d": "nn.Conv2d F.conv2d torch.conv2d",
    "conv_transpose2d": "nn.ConvTranspose2d F.conv_transpose2d torch.conv_transpose2d",
    "linear": "nn.Linear F.linear",
    "batch_norm": "nn.BatchNorm1d nn.BatchNorm2d nn.BatchNorm3d nn.SyncBatchNorm F.batch_norm "
    "torch.batch_norm",
    "relu": "nn.ReLU F.relu F.relu_ torch.relu torch.relu_ Tensor.relu Tensor.relu_",
    "relu6": "nn.ReLU6 F.relu6",
    "leaky_relu": "nn.LeakyReLU F.leaky_relu F.leaky_relu_",
    "prelu": "nn.PReLU F.prelu torch.prelu Tensor.prelu",
    "sigmoid": "nn.Sigmoid F.sigmoid torch.sigmoid torch.sigmoid_ torch.special.expit "
    "Tensor.sigmoid Tensor.sigmoid_",
    "silu": "nn.SiLU F.silu",
    "hardswish": "nn.Hardswish F.hardswish",
    "hardsigmoid": "nn.Hardsigmoid F.hardsigmoid",
    "tanh": "nn.Tanh F.tanh torch.tanh torch.tanh_ Tensor.tanh Tensor.tanh_",
    "add": "torch.add operator.add operator.iadd Tensor.add Tensor.add_ Tensor.__add__ "
    "Tensor.__radd__ Tensor.__iadd__",
    "sub": "torch.sub torch.subtract torch.rsub operator.sub operator.isub Tensor.sub Tensor.sub_ "
    "Tensor.subtract Tensor.subtract_ Tensor.__sub__ Tensor.__rsub__ Tensor.__isub__",
    "mul": "torch.mul torch.multiply operator.mul operator.imul Tensor.mul Tensor.mul_ "
    "Tensor.multiply Tensor.multiply_ Tensor.__mul__ Tensor.__rmul__ Tensor.__imul__",
    "cat": "torch.cat torch.concat torch.concatenate",
    "max_pool2d": "nn.MaxPool2d F.max_pool2d torch.max_pool2d",
    "avg_pool2d": "nn.AvgPool2d F.avg_pool2d",
    "adaptive_avg_pool2d": "nn.AdaptiveAvgPool2d F.adaptive_avg_pool2d",
    "mean": "torch.mean Tensor.mean",
    "flatten": "nn.Flatten torch.flatten Tensor.flatten",
    "reshape": "torch.reshape torch.ravel Tensor.reshape Tensor.view Tensor.ravel",
    "permute": "torch.permute Tensor.permute",
    "transpose": "torch.transpose torch.swapaxes torch.swapdims torch.t Tensor.transpose "
    "Tensor.transpose_ Tensor.swapaxes Tensor.swapaxes_ Tensor.swapdims Tensor.swapdims_ Tensor.t "
    "Tensor.t_",
    "getitem": "operator.getitem torch.select Tensor.__getitem__ Tensor.select",
    "narrow": "torch.narrow Tensor.narrow",
    "pad": "nn.ZeroPad1d nn.ZeroPad2d nn.ZeroPad3d nn.ConstantPad1d nn.ConstantPad2d "
    "nn.ConstantPad3d nn.ReflectionPad1d nn.ReflectionPad2d nn.ReflectionPad3d "
    "nn.ReplicationPad1d nn.ReplicationPad2d nn.ReplicationPad3d F.pad torch.constant_pad_nd",
    "softmax": "nn.Softmax nn.Softmax2d F.softmax torch.softmax torch.special.softmax "
    "Tensor.softmax",
    "interpolate": "nn.Upsample nn.UpsamplingNearest2d nn.UpsamplingBilinear2d F.interpolate "
    "F.upsample F.upsample_nearest F.upsample_bilinear",
}
ROOTS = {"nn": nn, "F": F, "torch": torch, "operator": operator}


def lookup(spelling: str) -> Any:
    root, *names = spelling.split(".")
    if root == "Tensor":
        assert hasattr(torch.Tensor, names[0]), spelling
        return registry.find_method(names[0])
    found: Any = ROOTS[root]
    for name in names:
        found = getattr(found, name)
    return registry.find_module(found) if root == "nn" else registry.find_function(found)


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_of_the_operator_is_registered(name: str) -> None:
    for spelling in SPELLINGS[name].split():
        found = lookup(spelling)
        assert found is not None, f"{spelling} is not registered"
        assert found[0].name == name, spelling
