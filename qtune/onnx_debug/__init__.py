"""The ONNX debugger: calibrated ONNX models, and which node costs the accuracy."""
