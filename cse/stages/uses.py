"""What a model is trained to be used for: task texts by role, and shorter vectors."""

from __future__ import annotations

from collections.abc import Sequence

from cse.data.store import VIEW_COLUMNS
from cse.errors import CseError, in_terms_of
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.seal import short
from cse.runtime.uses import text_of
from cse.settings.objective import ObjectiveSettings
from cse.settings.train import TrainSettings


def texts_before(encoder: SentenceEncoder, roles: Sequence[str] | None, view: str) -> list[str]:
    """Return the task text that goes before each column of text, or an empty list."""
    if roles is None:
        return []
    columns = _columns(view)
    if len(roles) < len(columns):
        raise _wrong_number(roles, columns)
    with in_terms_of("train.roles: ", hint="; set backbone.texts"):
        return [text_of(role, encoder.texts) for role in roles][: len(columns)]


def check_roles(
    encoder: SentenceEncoder, roles: Sequence[str] | None, views: Sequence[str], *, max_length: int
) -> None:
    """Refuse roles that do not fit the source with the most columns of text, or whose task texts crowd out sentences.

    Args:
        max_length: tokens that training cuts at, ``train.max_length``; a task text leaves the sentence at least half.
    """
    widest = max(views, key=lambda view: len(_columns(view)))
    for text in texts_before(encoder, roles, widest):
        taken = len(encoder.text_tokenizers.truncating_at(encoder.max_length).encode(text).ids) if text else 0
        if 2 * taken > max_length:
            raise CseError(
                f"train.max_length: the task text {short(text)} takes {taken} of its {max_length} tokens, special "
                f"tokens included, and the sentence needs at least half; raise it to {2 * taken} or shorten "
                "backbone.texts"
            )
    if roles is not None and len(roles) > len(_columns(widest)):
        raise _wrong_number(roles, _columns(widest))


def _columns(view: str) -> list[str]:
    return [name for name in VIEW_COLUMNS[view] if name != "label"]


def _wrong_number(roles: Sequence[str], columns: Sequence[str]) -> CseError:
    return CseError(f"train.roles: {len(roles)} roles for {len(columns)} columns of text ({', '.join(columns)})")


def set_widths(encoder: SentenceEncoder, objective: ObjectiveSettings, train: TrainSettings) -> None:
    """Let a model that is trained for shorter vectors offer them."""
    term, key = objective.matryoshka, "objective.matryoshka.widths"
    if term.weight == 0 or train.parameters == "none":
        return
    if max(term.widths) >= encoder.dimension:
        raise CseError(f"{key}: {max(term.widths)} is not below the {encoder.dimension} dimensions of the embedding")
    if encoder.mlp_use == "train_only":
        raise CseError(f"{key}: the loss sees the projector's output; set pooler.mlp to none or always")
    encoder.widths = tuple(sorted(set(term.widths)))
