"""Terms with a read-out of their own: IS-BERT's mutual information and SBERT's classifier."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from cse.model.encoder import SentenceEncoder
from cse.objectives.mutual_information import local_global_information
from cse.objectives.nli_softmax import nli_softmax, pair_features
from cse.training.batch import Batch
from cse.training.losses import Term


class MutualInformation(Term):
    """Token features and the sentence they form should know each other (IS-BERT, Zhang et al. 2020)."""

    name = "mutual_information"

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the negative estimate of the mutual information, tokens against sentences of the batch."""
        local, real = [], []
        for piece in batch.slices:
            missing = batch.longest - piece.ids_BL.shape[1]
            assert piece.tokens.local_BLD is not None  # noqa: S101 - kept where there are convolutions
            local.append(F.pad(piece.tokens.local_BLD, (0, 0, 0, missing)).float())
            real.append(F.pad(piece.mask_BL, (0, missing)))
        return local_global_information(batch.in_order(local), batch.projected_XD, batch.in_order(real))


class NliSoftmax(Term):
    """Classify entailment, neutral and contradiction from two embeddings (SBERT, Reimers and Gurevych 2019)."""

    name = "nli_softmax"

    def __init__(self, encoder: SentenceEncoder, *, weight: float) -> None:
        super().__init__(weight)
        self.classify = nn.Linear(3 * encoder.backbone.hidden_size, 3)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the mean cross-entropy of the labels."""
        first_BD, second_BD = batch.views
        assert batch.labels_B is not None  # noqa: S101 - the settings let this term only meet labelled rows
        return nli_softmax(self.classify(pair_features(first_BD, second_BD)), batch.labels_B)
