"""Export an encoder as an ONNX graph: prompts as constants, pooling included."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from cse.export.optimize import fused, optimize
from cse.model.passes import Constants
from cse.model.sentence_encoder import SentenceEncoder

EXTERNAL_DATA_BYTES = 1_900_000_000  # protobuf is limited to 2 GB; larger weights go to a separate file
OPSET = 23  # the first with a standard Attention operator: one node per layer, prefix included
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "sentence_embedding"


class _Inference(nn.Module):
    """The encoder at inference: prefix and template noise are precomputed constants."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        with torch.no_grad():
            constants = encoder.constants()
        prefix = constants.prefix or []
        self.keys = nn.ParameterList([nn.Parameter(key.clone(), requires_grad=False) for key, _ in prefix])
        self.values = nn.ParameterList([nn.Parameter(value.clone(), requires_grad=False) for _, value in prefix])

        noise = constants.noise_TND
        self.noise = None if noise is None else nn.Parameter(noise.clone(), requires_grad=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        prefix = list(zip(self.keys, self.values, strict=True)) or None
        return self.encoder.embed(input_ids, attention_mask, Constants(prefix, self.noise))


def write_graph(encoder: SentenceEncoder, path: Path) -> None:
    """Export the encoder as ONNX: ``input_ids`` and ``attention_mask`` int64 ``(batch, length)`` to float32 embeddings.

    The output is ``sentence_embedding (batch, D)``, pooled and not normalised. The graph is traced on a padded batch,
    because a mask of ones would be optimised away and the graph would ignore padding.

    Args:
        encoder: model to export, on the CPU.
        path: file to write; weights over ``EXTERNAL_DATA_BYTES`` go to ``path.data`` next to it.
    """
    encoder.eval()
    rows, shortest = 3, len(encoder.templates[0].ids) if encoder.templates else 4
    length = shortest + 3
    mask_BL = torch.ones((rows, length), dtype=torch.int64)
    mask_BL[1, shortest:] = 0
    ids_BL = torch.where(mask_BL == 1, torch.arange(length) % 3 + 5, encoder.backbone.pad_id)
    dynamic = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with _quiet(), torch.no_grad(), fused(encoder.backbone):
        program = torch.onnx.export(
            _Inference(encoder),
            (ids_BL, mask_BL),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            dynamic_shapes=(dynamic, dynamic),
            external_data=False,
            optimize=True,
        )
        assert program is not None  # noqa: S101 - the dynamo exporter returns a program or raises
        size = sum(weight.numel() * weight.element_size() for weight in encoder.parameters())
        program.save(str(path), external_data=size > EXTERNAL_DATA_BYTES)
    optimize(path, path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's progress lines and deprecation warnings."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
