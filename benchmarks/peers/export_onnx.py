"""Write ``model.onnx`` for infinity's ONNX engine into the folder of a transformers model; run it in infinity's Python.

    .venv-infinity/bin/python benchmarks/peers/export_onnx.py FOLDER

The graph is the one that optimum exports: token vectors of a batch of any size; infinity does the pooling. Optimum's
own command needs another version of optimum than infinity's ONNX engine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModel

INPUTS = ["input_ids", "attention_mask", "token_type_ids"]
OUTPUT = "last_hidden_state"


class TokenVectors(torch.nn.Module):
    """A model that returns only the vectors of its tokens."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """Run the model."""
        return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state


def export(folder: Path) -> None:
    """Write the graph."""
    model = TokenVectors(AutoModel.from_pretrained(folder, attn_implementation="eager").eval())
    ids = torch.ones(2, 16, dtype=torch.int64)
    torch.onnx.export(
        model,
        (ids, ids, torch.zeros_like(ids)),
        folder / "model.onnx",
        input_names=INPUTS,
        output_names=[OUTPUT],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in [*INPUTS, OUTPUT]},
        opset_version=17,
        dynamo=False,
    )


if __name__ == "__main__":
    export(Path(sys.argv[1]))
