"""Score models on MTEB tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from cse.evaluation.mteb_encoder import MtebEncoder, find_tasks, run_tasks
from cse.runtime.onnx_encoder import OnnxEncoder
from cse.stages.evaluate_models import record_folder
from cse.stages.open_model import open_model


def evaluate_on_mteb(
    models: Mapping[str, str], tasks: Sequence[str], *, device: str, batch_size: int | None, progress: bool
) -> dict[str, dict[str, float]]:
    """Return the main score of each task by model."""
    found = find_tasks(tasks)
    scores = {}
    banks: dict[Path, OnnxEncoder] = {}
    for name, model in models.items():
        encoder = MtebEncoder(open_model(model, device=device, banks=banks), record_folder(name), batch_size)
        click.echo(f"measuring {name}", err=True)
        scores[name] = run_tasks(encoder, found, progress=progress)
    return scores
