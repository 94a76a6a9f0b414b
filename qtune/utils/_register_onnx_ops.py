"""Facade: the import that the guide asks for before a plain ``torch.onnx.export``.

Nothing is left to register: a fake-quantize writes itself (``qtune.quantizers.onnx_form``) whenever
torch's TorchScript exporter (``dynamo=False``, opset 11 to 20) runs it. The model must be
calibrated and in the state VALIDATION; ``export_to_onnx`` sees to that itself.
"""
