"""Count the weights that a system has, trains and stores."""

from __future__ import annotations

from dataclasses import dataclass

from cse.model.checkpoint import stored_weights
from cse.model.encoder import Encoder
from cse.model.trained import added_weights


@dataclass(frozen=True)
class ParameterCounts:
    """Three counts that papers mix up, and that of the backbone (each a number of weights).

    Attributes:
        prompts: weights of the prompt table, template vectors and ``[CLS]`` vector.
        trained: weights of the encoder that the optimiser updates.
        stored: weights beyond the backbone that a checkpoint keeps for inference.
    """

    prompts: int
    trained: int
    stored: int
    backbone: int


def count_parameters(encoder: Encoder) -> ParameterCounts:
    """Count prompts, trained weights, stored weights and the backbone's weights."""
    return ParameterCounts(
        prompts=sum(
            0 if values is None else values.numel()
            for values in (None if encoder.prompt is None else encoder.prompt.values(), encoder.template, encoder.cls)
        ),
        trained=sum(weight.numel() for weight in encoder.trainable().values()),
        stored=sum(weight.numel() for weight in stored_weights(encoder).values()),
        backbone=sum(weight.numel() for weight in encoder.backbone.parameters()) - added_weights(encoder.backbone),
    )
