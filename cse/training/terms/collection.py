"""Train queries against a whole collection: each step ranks all documents as a teacher does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from cse.model.sentence_encoder import SentenceEncoder
from cse.objectives.collection import sampled_cross_entropy
from cse.training.batch import Batch
from cse.training.collection import Targets
from cse.training.terms.term import Term


class Collection(Term):
    """Cross-entropy of a teacher's shares of all documents; a step encodes the queries alone.

    Args:
        document_ND: the documents' vectors, which do not change.
        targets: the teacher's shares, one row per row of the sources.
        sizes: rows of each source.
    """

    documents: torch.Tensor
    place: torch.Tensor
    share: torch.Tensor
    own: torch.Tensor
    sample: torch.Tensor

    def __init__(
        self,
        encoder: SentenceEncoder,
        document_ND: NDArray[np.float32],
        targets: Targets,
        sizes: Sequence[int],
        *,
        weight: float,
        temperature: float,
    ) -> None:
        super().__init__(encoder, weight=weight)
        self.temperature = temperature
        self.first = np.concatenate([[0], np.cumsum(sizes)])  # row of each source
        # buffers go to the device with the term; they follow from the data, so no saved state needs them
        for name, array in (("documents", document_ND), *vars(targets).items()):
            self.register_buffer(name, torch.from_numpy(array), persistent=False)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean over the queries, the first text of each row."""
        rows = torch.from_numpy(batch.rows + self.first[batch.source]).to(self.documents.device)
        return sampled_cross_entropy(
            batch.views[0],
            self.documents,
            self.place[rows],
            self.share[rows],
            self.own[rows],
            self.sample,
            temperature=self.temperature,
        )
