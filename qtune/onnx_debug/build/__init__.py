"""From a float ONNX model to a calibrated and an integer one: ``build_model`` and its parts."""
