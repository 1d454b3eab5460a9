"""A query side: what was trained holds for role ``query`` alone, and every other text keeps the bare backbone's vector.

A document's vector then depends on the backbone alone, so an index outlives every change of the query side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cse.errors import CseError
from cse.model.backbone import Backbone
from cse.model.declared import Declared, declared_by
from cse.model.pooling import TanhMlp
from cse.model.post.linear import QUERY_MAP, LinearMap
from cse.runtime.uses import NO_TEXTS, QUERY, role_for

if TYPE_CHECKING:
    from cse.model.encoder import Encoder


def with_roles(texts: Mapping[str, str]) -> dict[str, str]:
    """Return task texts by role that have a role ``query``; without one, empty texts for queries and documents."""
    if QUERY in texts:
        return dict(texts)
    return {QUERY: "", **texts} if role_for("document", texts) else {**NO_TEXTS, **texts}


def use_of_documents(backbone: Backbone, texts: Mapping[str, str]) -> Declared:
    """Return how the bare backbone is used behind these task texts: as its folder says, whatever the settings cut."""
    declared = declared_by(backbone.files.folder)
    return dataclasses.replace(declared, pooling=declared.pooling or backbone.family.pooling, texts=dict(texts))


def is_bare(encoder: Encoder) -> bool:
    """Return whether an encoder is a language model as it is used for documents, without anything trained."""
    backbone = encoder.backbone
    added = (encoder.prompt, encoder.cls, encoder.post, *encoder.templates)
    untrained = encoder.frozen and encoder.mlp_use != "always" and all(part is None for part in added)
    return isinstance(backbone, Backbone) and untrained and encoder.pooler == use_of_documents(backbone, {}).pooling


def check_side(encoder: Encoder) -> None:
    """Refuse an encoder with parts that its side cannot have."""
    obstacle = _of_query_side(encoder) if encoder.side == QUERY else _of_both(encoder)
    if obstacle:
        raise CseError(obstacle)


def _of_both(encoder: Encoder) -> str:
    maps_queries = isinstance(encoder.post, LinearMap) and encoder.post.kind == QUERY_MAP
    return f"post.kind: {QUERY_MAP} maps queries alone; set prompt.side: {QUERY}" if maps_queries else ""


def _of_query_side(encoder: Encoder) -> str:
    backbone, prompt, post = encoder.backbone, encoder.prompt, encoder.post
    if not isinstance(backbone, Backbone):
        return f"prompt.side: {QUERY} needs a language model, and {backbone.files.name} holds word vectors; set both"
    if not encoder.frozen:
        return (
            f"prompt.side: {QUERY} keeps the backbone's weights for documents, and train.parameters is "
            f"{encoder.trained}; set prompts, or prompt.side: both"
        )
    if encoder.templates:
        return f"prompt.side: {QUERY} takes no template, whose words stand in one tokenizer for all texts; set both"
    if prompt is not None and not prompt.deep:
        return f"prompt.side: {QUERY} takes a deep prompt, and prompt.kind is {prompt.kind}; choose key_value"
    if encoder.mlp_use == "always" and not isinstance(encoder.mlp, TanhMlp):
        return f"prompt.side: {QUERY} takes projector tanh, and pooler.projector is {encoder.projector}"
    own = use_of_documents(backbone, {}).pooling
    if encoder.pooler != own:
        return f"prompt.side: {QUERY} pools as its documents do, by {own}, and pooler.kind is {encoder.pooler}"
    if post is not None and not (isinstance(post, LinearMap) and post.kind == QUERY_MAP):
        return f"prompt.side: {QUERY} takes post.kind {QUERY_MAP}, and {post.config()['kind']} maps documents too"
    if post is not None and post.dimension != post.width:
        return (
            f"prompt.side: {QUERY} takes a map to the width of documents, {post.width}, and this one gives "
            f"{post.dimension}"
        )
    return ""
