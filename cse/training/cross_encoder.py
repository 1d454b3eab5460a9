"""A cross-encoder as a teacher: it reads a query and a document together, and scores the best documents again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from cse.errors import CseError, one_line
from cse.files import fingerprint, write_array

_QUERIES = 64  # whose scores are kept together


@dataclass(frozen=True)
class CrossEncoderTeacher:
    """Scores of pairs of texts, kept in files: what was scored once is read the next time, or after a kill.

    Attributes:
        model: sentence-transformers' ``CrossEncoder`` with one score.
        content: what tells the model from others.
        kept: folder of the scores.
        documents: best documents of the other teacher that are scored, for each query.
        share: of the targets that this teacher gives; the other one gives the rest.
        progress: show a bar.
    """

    model: Any
    content: str
    kept: Path
    documents: int
    share: float
    progress: bool = False

    def scores(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> NDArray[np.float32]:
        """Return the scores of some documents for each query ``(n, k)``, as many for each."""
        from torch import nn

        found = []
        bar = tqdm(total=len(queries), desc="cross-encoder", unit=" queries", disable=not self.progress, leave=False)
        with bar:
            for start in range(0, len(queries), _QUERIES):
                part = slice(start, start + _QUERIES)
                texts = list(zip(queries[part], documents[part], strict=True))
                file = self.kept / f"{fingerprint({'model': self.content, 'texts': texts})}.npy"
                if not file.is_file():
                    pairs = list(itertools.chain(*([(query, each) for each in some] for query, some in texts)))
                    values = self.model.predict(pairs, show_progress_bar=False, activation_fn=nn.Identity())
                    self.kept.mkdir(parents=True, exist_ok=True)
                    draft = file.with_suffix(".new")
                    write_array(draft, np.asarray(values, np.float32).reshape(len(texts), -1))
                    draft.replace(file)
                found.append(np.load(file))
                bar.update(len(texts))
        return np.concatenate(found)


def load_cross_encoder(name: str, setting: str) -> Any:
    """Return a cross-encoder from a folder or the hub.

    Raises:
        CseError: no such model, or it gives more than one score; names the setting.
    """
    from sentence_transformers import CrossEncoder

    try:
        model = CrossEncoder(name)
    except (OSError, ValueError, KeyError) as error:
        raise CseError(f"{setting}: cannot load {name}: {one_line(str(error))[:200]}") from None
    if model.num_labels != 1:
        raise CseError(f"{setting}: {name} gives {model.num_labels} scores of a pair; name one that gives one")
    return model
