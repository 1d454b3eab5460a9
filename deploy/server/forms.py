"""Answers as JSON has them, in the form of their route."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from deploy.server.schema import Format
from deploy.server.service import Answer


def openai(answer: Answer, form: Format) -> object:
    """Return the body of ``/v1/embeddings``."""
    data = []
    for index, vector in enumerate(answer.rows):
        item: dict[str, Any] = {"object": "embedding", "index": index, "embedding": _in_form(vector, form)}
        if answer.domains:
            item["domain"] = answer.domains[index].name
        data.append(item)
    return {"object": "list", "data": data, "model": answer.model, "usage": usage(answer)}


def _in_form(vector: NDArray[np.float32], form: Format) -> NDArray[Any] | str:
    """Return a vector as a format has it: base64 is of little-endian float32."""
    if form == "base64":
        return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()
    if form == "int8":
        return np.rint(vector * (127 / max(float(np.abs(vector).max()), 1e-30))).astype(np.int8)
    if form == "float":
        return vector
    bits = np.packbits(vector > 0)
    return bits if form == "ubinary" else (bits ^ 0x80).view(np.int8)  # less 128


def usage(answer: Answer) -> dict[str, int]:
    """Return the tokens of a request."""
    return {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens}


def predictions(scores: NDArray[np.float32], labels: list[str]) -> list[list[dict[str, Any]]]:
    """Return all labels of each text with their scores ``(n, c)``, the likeliest first."""
    return [
        [{"label": labels[place], "score": float(row[place])} for place in np.argsort(-row, kind="stable")]
        for row in scores
    ]


def ranked(
    scores: NDArray[np.float32], name: str, shown: Sequence[Mapping[str, object]], most: int | None
) -> list[dict[str, object]]:
    """Return the places of texts with their scores ``(n)``, the highest first.

    Args:
        name: what the form calls a score.
        shown: what to say of each text beside it (n); none: nothing.
        most: texts to return; None: all.
    """
    order = np.argsort(-scores, kind="stable")[:most].tolist()
    return [{"index": place, name: scores[place], **(shown[place] if shown else {})} for place in order]


def spelled(text: str, found: Encoding) -> list[dict[str, object]]:
    """Return the tokens of a text, with their places in its UTF-8 bytes."""
    at = [0]
    for character in text:
        at.append(at[-1] + len(character.encode()))
    content = text.encode()
    spelled = []
    for token, name, special, (start, stop) in zip(
        found.ids, found.tokens, found.special_tokens_mask, found.offsets, strict=True
    ):
        places = (None, None) if special else (at[start], at[stop])
        shown = name if special else content[slice(*places)].decode()
        spelled.append({"id": token, "text": shown, "special": bool(special), "start": places[0], "stop": places[1]})
    return spelled
