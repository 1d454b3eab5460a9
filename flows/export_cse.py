"""Flow ``export-cse``: export a checkpoint as an ONNX bundle, compared with torch, without training."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas import State

from flows.cse_command import ended, run_command
from flows.parameters import Overrides, as_options


@flow(name="export-cse")
def export_cse(
    out: str,
    model: str = "data/checkpoint",
    overrides: Overrides = {},  # noqa: B006 - shown in Prefect's form, never changed
) -> State[Any]:
    """Write a bundle like `cse export`.

    Args:
        out: output folder; train-cse writes the pipeline's own, data/bundle.
        model: a checkpoint, or a bare backbone given by folder or hub id.
        overrides: settings by dotted key.
    """
    return ended(run_command("export", ["export", model, *as_options(overrides), "--out", out], return_state=True))
