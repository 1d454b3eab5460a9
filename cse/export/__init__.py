"""The ONNX bundle and the proof that it is the model."""
