"""Contrastive sentence embeddings from soft prompts on a frozen language model.

::

    import cse

    encoder = cse.SentenceEncoder.load("data/checkpoint")  # or a name on the hub
    sentences = ["A man plays the guitar.", "Somebody makes music.", "A train leaves."]
    vectors = encoder.encode(sentences)  # (3, D), float32, unit length
    cosines = encoder.similarity("Who plays?", sentences)  # (1, 3)
    print(sentences[cosines[0].argmax()])

``SentenceEncoder`` and ``BankEncoder`` (torch) and ``OnnxEncoder`` (no torch) are imported on first use, so that a
service which only needs the runtime never loads torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cse.export.bank import BankEncoder
    from cse.model.sentence_encoder import SentenceEncoder
    from cse.runtime.onnx_encoder import OnnxEncoder

__version__ = "0.1.0"
__all__ = ["BankEncoder", "OnnxEncoder", "SentenceEncoder", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "SentenceEncoder":
        from cse.model.sentence_encoder import SentenceEncoder

        return SentenceEncoder
    if name == "BankEncoder":
        from cse.export.bank import BankEncoder

        return BankEncoder
    if name == "OnnxEncoder":
        from cse.runtime.onnx_encoder import OnnxEncoder

        return OnnxEncoder
    raise AttributeError(f"module 'cse' has no attribute {name!r}")
