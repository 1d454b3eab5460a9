"""Write a bundle: graph, tokenizer and manifest in one folder that appears whole or not at all."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cse.export.graph import write_graph
from cse.model.checkpoint import describe
from cse.model.sentence_encoder import SentenceEncoder
from cse.outputs import Kind, publish_folder
from cse.runtime.bundle import FORMAT, MODEL, TOKENIZER, Bundle, describe_files

_PACKAGES = ("cse", "torch", "transformers", "onnx", "onnxscript", "onnxruntime-gpu", "tokenizers")


@dataclass
class Draft:
    """A bundle that is written but not yet published; ``parity`` goes into its manifest at the end."""

    folder: Path
    manifest: Bundle
    parity: dict[str, Any] = field(default_factory=dict)


@contextmanager
def write_bundle(
    encoder: SentenceEncoder, out: Path, *, normalize: bool, metrics: dict[str, Any], checkpoint: str = ""
) -> Iterator[Draft]:
    """Yield a loadable draft of the bundle to check; it takes the place of ``out`` when the block ends without error.

    Args:
        encoder: on the CPU.
        out: the bundle's folder.
        normalize: whether embeddings have unit length unless the caller says otherwise.
        metrics: scores to record in the manifest.
        checkpoint: identity of the checkpoint that the encoder was read from; empty for a bare backbone.
    """
    facts = describe(encoder)
    with publish_folder(out, Kind.BUNDLE) as folder:
        write_graph(encoder, folder / MODEL)
        # the tokenizer's own save would raise something that is no OSError on a full disk
        (folder / TOKENIZER).write_text(encoder.tokenizer.to_str(pretty=True), encoding="utf-8", newline="\n")
        manifest = Bundle(
            format=FORMAT,
            dimension=encoder.dimension,
            pooler=encoder.pooler,
            normalize=normalize,
            max_length=encoder.max_length,
            pad_id=encoder.backbone.pad_id,
            files=describe_files(folder, [path.name for path in folder.glob("[!.]*")]),
            prompt=facts["prompt"] or {},
            backbone=facts["backbone"],
            versions={name: importlib.metadata.version(name) for name in _PACKAGES},
            metrics=metrics,
            checkpoint=checkpoint,
        )
        manifest.write(folder)
        draft = Draft(folder, manifest)
        yield draft
        Bundle(**vars(manifest) | {"parity": draft.parity}).write(folder)
