"""The ONNX bundle, and the check that it matches the model."""
