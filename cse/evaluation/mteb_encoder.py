"""Adapt encoders to MTEB; needs the extra ``mteb``.

    encoder = MtebEncoder(cse.OnnxEncoder("data/bundle"), "my-model")
    mteb.evaluate(encoder, mteb.get_tasks(tasks=["STSBenchmark"]))

``mteb`` passes batches from a data loader and needs metadata of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cse.errors import CseError, nearest
from cse.evaluation.measures import TextEncoder
from cse.runtime.uses import role_for

try:
    import mteb
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta, ScoringFunction
except ImportError:
    raise CseError("MTEB: not installed; pip install 'cse[mteb]'") from None


class MtebEncoder(AbsEncoder):
    """An encoder with the interface of ``mteb.EncoderProtocol``; texts are compared by cosine."""

    def __init__(self, encoder: TextEncoder, name: str, batch_size: int | None = None) -> None:
        self.encoder = encoder
        self.batch_size = batch_size
        organisation = "" if "/" in name else "cse/"
        self.mteb_model_meta = ModelMeta.create_empty(
            {"name": f"{organisation}{name}", "revision": "local", "similarity_fn_name": ScoringFunction.COSINE}
        )

    def encode(self, inputs: Any, *, prompt_type: Any = None, **options: Any) -> np.ndarray:
        """Return unit vectors ``(n, d)``, float32, of the texts in a loader's batches, in their order.

        Queries and documents of a search get the task text of their role, where the encoder has one.
        """
        kind = str(getattr(prompt_type, "value", prompt_type))
        role = role_for(kind, getattr(self.encoder, "texts", {}))
        texts = [text for batch in inputs for text in batch["text"]]
        batch_size = self.batch_size or options.get("batch_size") or 32
        progress = bool(options.get("show_progress_bar", False))
        given: dict[str, Any] = {} if role is None else {"role": role}
        return self.encoder.encode(texts, batch_size=batch_size, normalize=True, show_progress_bar=progress, **given)


def find_tasks(names: Sequence[str]) -> list[Any]:
    """Return MTEB tasks by name."""
    known = [task.metadata.name for task in mteb.get_tasks(exclude_superseded=False)]
    for name in names:
        if name not in known:
            raise CseError(f"--mteb {name}: no such task{nearest(name, known)}; see `mteb available-tasks`")
    found = {task.metadata.name: task for task in mteb.get_tasks(tasks=list(names), exclude_superseded=False)}
    return [found[name] for name in names]


def run_tasks(model: MtebEncoder, tasks: Sequence[Any], *, progress: bool = False) -> dict[str, float]:
    """Return the main score of each task, in its own unit; a task's data come from the hub or the local cache."""
    scores = {}
    for task in tasks:
        name = task.metadata.name
        try:
            task.load_data()
        except (OSError, ValueError) as error:  # the hub and its cache raise either
            reason = str(error).partition("\n")[0]
            raise CseError(
                f"MTEB {name}: its data ({task.metadata.dataset['path']}) are not cached and cannot be downloaded "
                f"({reason}); run once with access to the hub, or copy the cache of `datasets` here"
            ) from None
        results = mteb.evaluate(model, [task], cache=None, co2_tracker=False, show_progress_bar=progress)
        scores[name] = float(results.task_results[0].get_score())
    return scores
