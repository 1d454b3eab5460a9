"""The term of a loss that needs the embeddings of a batch and their labels."""

from __future__ import annotations

import torch

from cse.training.batch import Batch
from cse.training.terms.of_views import OfViews


class OfLabels(OfViews):
    """An equation of both texts of each pair and the labels of the main source.

    It takes embeddings ``(2B, D)`` and labels ``(2B,)`` by place, and ``anchors``. A batch may hold any number of rows
    of a label, unlike NT-Xent's.
    """

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the equation's value."""
        assert batch.labels_B is not None  # noqa: S101 - the settings allow this term only with labelled texts
        z_BD, rows = torch.cat(batch.views[:2]), 2 * len(batch.rows)
        part = self.equation(z_BD, batch.labels_B.repeat(2), anchors=batch.group.block(rows))
        return batch.group.over_blocks(part, rows)
