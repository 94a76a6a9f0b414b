"""The tuning tool's two ways to a loss as a metric: labels that pass through, and pseudo labels."""

import torch
import torch.nn.functional as F
from horizon_plugin_profiler import QuantAnalysis
from horizon_plugin_profiler.utils.entities import Metric
from horizon_plugin_pytorch import set_march
from horizon_plugin_pytorch.quantization import FakeQuantState, prepare, set_fake_quantize
from torch import nn
from torch.quantization import DeQuantStub, QuantStub


@Metric.register("ce_loss_with_gt", False, "all")
def ce_loss_with_gt(output1, output2):
    return F.cross_entropy(output2["logits"], output1["label"])


@Metric.register("distill_loss", False, "all")
def pseudo_gt_ce_loss(output1, output2):
    return F.cross_entropy(output2["logits"], output1["logits"].argmax(dim=-1))


@Metric.register("loss", False, "pertensor")
def loss(output1, output2):
    return F.l1_loss(output1.float(), output2.float(), reduction="mean")


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv, self.relu, self.fc = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Linear(8, 5)

    def forward(self, image, label):
        x = self.relu(self.conv(self.quant(image))).mean((2, 3))
        return {"logits": self.dequant(self.fc(x)), "label": label}


torch.manual_seed(0)
set_march("nash-e")
loader = [(torch.rand(2, 3, 8, 8), torch.randint(0, 5, (2,))) for _ in range(4)]
float_net = Classifier().eval()
calib_net = prepare(float_net, loader[0])
set_fake_quantize(calib_net.eval(), FakeQuantState.CALIBRATION)
for item in loader:
    calib_net(*item)
set_fake_quantize(calib_net, FakeQuantState.VALIDATION)

qa = QuantAnalysis(
    baseline_model=float_net,
    analysis_model=calib_net,
    analysis_model_type="fake_quant",
    out_dir="./losses",
    metric_list=[Metric.ce_loss_with_gt, Metric.distill_loss, Metric.loss],
)
report = qa.auto_find_bad_case(loader, topk=2)
qa.run(metric=Metric.distill_loss)
qa.compare_per_layer()
ranking = qa.sensitivity(
    metric=Metric.get_metric("ce_loss_with_gt"),
    use_sensitivity_v2=True,
    sensitivity_method="grad_x_error",
)
ablation = qa.sensitivity(metric=Metric.distill_loss, use_sensitivity_v2=True)
tuned = qa.tune_bad_case(
    outputs_config={
        "all": {"metric": Metric.distill_loss, "threshold": 0.01, "max_tuned_stubs": 2}
    },
    skip_prefix={"conv": ["output", "weight"]},
)
