"""What a service needs to encode sentences with a bundle: numpy, tokenizers and onnxruntime, nothing else."""
