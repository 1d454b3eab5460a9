"""Choices that settings offer and the model makes: each list stands here once."""

from typing import Literal

PoolerKind = Literal["cls", "mean", "mean_top2", "mean_first_last", "last", "mask", "cnn"]
FirstLayer = Literal["embeddings", "block1"]
Precision = Literal["fp32", "fp16", "int8"]
Provider = Literal["auto", "cpu", "cuda", "openvino"]
ProjectorUse = Literal["none", "train_only", "always"]
Side = Literal["both", "query"]
ENTAILMENT, NEUTRAL, CONTRADICTION = LABELS = ("entailment", "neutral", "contradiction")  # of NLI
ProjectorKind = Literal["tanh", "batch_norm", "mlm_transform"]
