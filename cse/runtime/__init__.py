"""Encode sentences with a bundle, using only numpy, tokenizers and onnxruntime."""
