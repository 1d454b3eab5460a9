"""Post-processing of sentence vectors: modules fitted on an encoder's vectors and applied to its output.

============ ============================================ ======================================
kind         what it does                                 source
============ ============================================ ======================================
whitening    linear: zero mean, identity covariance       Su et al. 2021, "BERT-whitening"
discriminant linear: identity covariance within labels    Fisher 1936; Friedman 1989
linear       a discriminant trained on by a loss          Khosla et al. 2020, "SupCon"
query_map    linear, D to D, of queries alone             the loss it is trained by
flow         invertible network towards ``N(0, I)``       Li et al. 2020, "BERT-flow"
============ ============================================ ======================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cse.errors import CseError, nearest
from cse.model.post.flow import Flow, fit_flow
from cse.model.post.linear import QUERY_MAP, LinearMap, fit_whitening, kept_dimension

LABELLED_KINDS = ("discriminant", "linear")  # fitted on labelled texts
LINEAR_KINDS = ("whitening", *LABELLED_KINDS, QUERY_MAP)
POST_SIZES = {  # of ``config()``
    **dict.fromkeys(LINEAR_KINDS, ("width", "dimension")),
    "flow": ("width", "levels", "depth", "hidden"),
}
POST_KINDS = tuple(POST_SIZES)

__all__ = [
    "LABELLED_KINDS",
    "LINEAR_KINDS",
    "POST_KINDS",
    "POST_SIZES",
    "QUERY_MAP",
    "Flow",
    "LinearMap",
    "build_post",
    "fit_flow",
    "fit_whitening",
    "kept_dimension",
]


def build_post(config: Mapping[str, Any]) -> LinearMap | Flow:
    """Build the module that a ``config()`` describes, without weights; load those with ``load_state_dict``."""
    kind = config.get("kind")
    if kind in LINEAR_KINDS:
        return LinearMap(kind, config["width"], config["dimension"]).eval()
    if kind == "flow":
        flow = Flow(config["width"], levels=config["levels"], depth=config["depth"], hidden=config["hidden"])
        return flow.requires_grad_(False).eval()
    raise CseError(f"post.kind: {kind!r} is not one of {', '.join(POST_KINDS)}{nearest(str(kind), POST_KINDS)}")
