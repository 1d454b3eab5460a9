"""Tiny encoders and their bundles."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cse.export.bundle import write_bundle
from cse.export.parity import check_parity
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder
from tests.export.systems import SENTENCES


@dataclass
class Exported:
    """An encoder and its bundle."""

    encoder: SentenceEncoder
    folder: Path

    def open(self) -> OnnxEncoder:
        return OnnxEncoder(self.folder, provider="cpu", threads=1)


def bundle_of(encoder: SentenceEncoder, folder: Path, **options: Any) -> OnnxEncoder:
    """Write a bundle, and open it."""
    with write_bundle(encoder, folder, **({"normalize": True, "metrics": {}} | options)):
        pass
    return OnnxEncoder(folder, provider="cpu", threads=1)


def export(
    encoder: SentenceEncoder, folder: Path, tolerance: float = 1e-5, *, precision="fp32", texts=SENTENCES
) -> Exported:
    """What the stage does."""
    given = {"normalize": True, "metrics": {"train": {"dev_spearman": 80.5}}, "precision": precision, "texts": texts}
    with write_bundle(encoder, folder, **given) as draft:
        onnx = OnnxEncoder(draft.folder, provider="cpu", threads=1)
        draft.parity = check_parity(encoder, onnx, texts, tolerance=tolerance, precision=precision)
    return Exported(encoder, folder)
