"""What a model is trained to be used for: task texts by role, and shorter vectors."""

from __future__ import annotations

from collections.abc import Sequence

from cse.data.store import VIEW_COLUMNS
from cse.errors import CseError
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.uses import text_of
from cse.settings.groups.objective import ObjectiveSettings
from cse.settings.groups.train import TrainSettings


def texts_before(encoder: SentenceEncoder, roles: Sequence[str] | None, view: str) -> list[str]:
    """Return the task text that goes before each column of text, or an empty list.

    Raises:
        CseError: a role that the backbone does not know, or fewer roles than columns of text.
    """
    if roles is None:
        return []
    columns = _columns(view)
    if len(roles) < len(columns):
        raise _wrong_number(roles, columns)
    try:
        return [text_of(role, encoder.texts) for role in roles][: len(columns)]
    except CseError as error:
        raise CseError(f"train.roles: {error}; set backbone.texts") from None


def check_roles(encoder: SentenceEncoder, roles: Sequence[str] | None, views: Sequence[str]) -> None:
    """Refuse roles that do not fit the source with the most columns of text.

    Raises:
        CseError: see ``texts_before``; or more roles than columns.
    """
    widest = max(views, key=lambda view: len(_columns(view)))
    texts_before(encoder, roles, widest)
    if roles is not None and len(roles) > len(_columns(widest)):
        raise _wrong_number(roles, _columns(widest))


def _columns(view: str) -> list[str]:
    return [name for name in VIEW_COLUMNS[view] if name != "label"]


def _wrong_number(roles: Sequence[str], columns: Sequence[str]) -> CseError:
    return CseError(f"train.roles: {len(roles)} roles for {len(columns)} columns of text ({', '.join(columns)})")


def set_widths(encoder: SentenceEncoder, objective: ObjectiveSettings, train: TrainSettings) -> None:
    """Let a model that is trained for shorter vectors offer them.

    Raises:
        CseError: a width that is not below the embedding's, or a loss that does not see what is cut.
    """
    term, key = objective.matryoshka, "objective.matryoshka.widths"
    if term.weight == 0 or train.parameters == "none":
        return
    if max(term.widths) >= encoder.dimension:
        raise CseError(f"{key}: {max(term.widths)} is not below the {encoder.dimension} dimensions of the embedding")
    if encoder.mlp_use == "train_only":
        raise CseError(f"{key}: the loss sees the projector's output; set pooler.mlp to none or always")
    encoder.widths = tuple(sorted(set(term.widths)))
