"""Choices that settings offer and the model makes: each list stands here once."""

from dataclasses import dataclass
from typing import Literal

PoolerKind = Literal["cls", "mean", "mean_top2", "mean_first_last", "last", "mask", "cnn"]
FirstLayer = Literal["embeddings", "block1"]
Precision = Literal["fp32", "fp16", "int8"]
Provider = Literal["auto", "cpu", "cuda", "openvino"]
ProjectorUse = Literal["none", "train_only", "always"]
Side = Literal["both", "query"]
ENTAILMENT, NEUTRAL, CONTRADICTION = LABELS = ("entailment", "neutral", "contradiction")  # of NLI
ProjectorKind = Literal["tanh", "batch_norm", "mlm_transform"]


@dataclass(frozen=True)
class ReadOut:
    """How vectors are read; by default as of the bare backbone. Group ``pooler`` of the settings has the same names.

    Attributes:
        kind: the pooler, None: the one the backbone was made for.
        kind_in_loss: the pooler in the loss; None: the same.
        mlp: when to apply the projector after pooling: ``none``, ``train_only`` (in the loss only) or ``always``.
        denoise: when to subtract the template's output without the sentence, likewise.
        start: initialisation of the projector's layers, see ``cse.model.pooling``.
    """

    kind: PoolerKind | None = None
    kind_in_loss: PoolerKind | None = None
    first_layer: FirstLayer = "embeddings"
    mlp: ProjectorUse = "none"
    projector: ProjectorKind = "tanh"
    denoise: ProjectorUse = "none"
    start: Literal["normal", "torch"] = "normal"
