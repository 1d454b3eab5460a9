"""Flow ``export-cse``: export a checkpoint as an ONNX bundle, compared with torch, without training."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas import State

from cse.cli.export import export
from flows.cse_command import arguments_of, ended, run_command, takes


@flow(name="export-cse")
@takes(export)
def export_cse(out: str, model: str = "data/checkpoint", **given: Any) -> State[Any]:
    """Write a bundle like `cse export`.

    Args:
        out: output folder; train-cse writes the pipeline's own, data/bundle.
        model: a checkpoint, or a bare backbone given by folder or hub id.
    """
    arguments = arguments_of(export, given | {"out": out, "model": model})
    return ended(run_command("export", arguments, return_state=True))
