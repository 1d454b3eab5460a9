"""Export an encoder as an ONNX graph, pooling included: prompts as constants, or as inputs for a bank."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cse.export.bank_encoder import BankPass
from cse.export.optimize import fused, optimize
from cse.export.row_updates import RowUpdates
from cse.model.backbone import Backbone, merged
from cse.model.passes import Constants
from cse.model.sentence_encoder import SentenceEncoder

# larger weights go to a file beside the graph: the sessions of a machine map it and share its memory, and a graph file
# is limited to 2 GB
EXTERNAL_DATA_BYTES = 8_000_000
OPSET = 23  # the first with a standard Attention operator: one node per layer, prefix included
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "sentence_embedding"
Dim = torch.export.Dim
_TABLE, _LIST = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, {0: Dim.DYNAMIC}


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
        path: file to write; weights over ``EXTERNAL_DATA_BYTES`` go to ``path.data`` next to it.
    """
    encoder.eval()
    ids_BL, mask_BL = _sample(len(encoder.templates[0].ids) if encoder.templates else 4, encoder.backbone.pad_id)
    with merged(encoder.backbone), fused(encoder.backbone):
        _export(_Inference(encoder), {INPUTS[0]: (ids_BL, _TABLE), INPUTS[1]: (mask_BL, _TABLE)}, path)


def write_bank_graph(backbone: Backbone, path: Path, *, adapters: Sequence[str] | None = None) -> None:
    """Export a backbone as ONNX, with prompts as inputs: ``BankPass.forward`` to ``sentence_embedding (batch, D)``.

    Args:
        path: file to write, as in ``write_graph``.
        adapters: of ``BankPass``, where updates of the layers are inputs too; None: they are not.
    """
    ids_BL, mask_BL = _sample(4, backbone.pad_id)
    prompt = torch.zeros((3 * 2 * backbone.layers, backbone.heads, 5, backbone.head_size))
    given = {
        INPUTS[0]: (ids_BL, _TABLE),
        INPUTS[1]: (mask_BL, _TABLE),
        "domain": (torch.tensor([2, 0, 1]), _LIST),
        "prompt": (prompt, {0: Dim.DYNAMIC, 2: Dim.DYNAMIC}),
        "prompt_length": (torch.tensor([5, 3, 0]), _LIST),
        "position_shift": (torch.tensor([5, 0, 0]), _LIST),
        "trained_cls": (torch.tensor([True, False, False]), _LIST),
        "cls": (torch.zeros((3, backbone.word_size)), _LIST),
        "pooling": (torch.tensor([0, 1, 2]), _LIST),
    }
    if adapters is not None:
        widths = RowUpdates(backbone, adapters).widths
        sizes = zip(widths.items(), ((3, 2), (3, 3), (3,)), (_TABLE, _TABLE, _LIST), strict=True)
        given |= {name: (torch.zeros((*size, width)), axes) for (name, width), size, axes in sizes}
    with fused(backbone):
        _export(BankPass(backbone, adapters).eval(), given, path)


def _sample(shortest: int, pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask of three rows, one of them padded."""
    rows, length = 3, shortest + 3
    mask_BL = torch.ones((rows, length), dtype=torch.int64)
    mask_BL[1, shortest:] = 0
    return torch.where(mask_BL == 1, torch.arange(length) % 3 + 5, pad_id), mask_BL


def _export(module: nn.Module, given: dict[str, tuple[torch.Tensor, dict[int, Any]]], path: Path) -> None:
    """Trace a module with the given inputs and their dynamic axes, by name, and write the graph."""
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            module,
            tuple(tensor for tensor, _ in given.values()),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(given),
            output_names=[OUTPUT],
            dynamic_shapes=tuple(axes for _, axes in given.values()),
            external_data=False,
            optimize=True,
        )
        assert program is not None  # noqa: S101 - the dynamo exporter returns a program or raises
        size = sum(weight.numel() * weight.element_size() for weight in module.parameters())
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
