"""Open the backbone that settings name: a language model, or word vectors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from cse.data.store import PreparedData
from cse.data.tasks.kinds import ScoredPairs, all_texts, of_kind
from cse.data.tasks.store import DEV, OWN, TEST, open_tasks
from cse.model.backbone import Backbone, load_backbone
from cse.model.backbone_files import BackboneFiles, find_backbone
from cse.model.named import is_word_file
from cse.model.sentence_encoder import BareBackbone
from cse.model.static_words import StaticWords, find_words, load_words, words_of
from cse.settings.model import BackboneSettings, PoolerSettings


def open_backbone(backbone: BackboneSettings, pooler: PoolerSettings, data: PreparedData) -> Backbone | StaticWords:
    """Open the language model, or the word vectors of all words in the prepared data."""
    if is_word_file(Path(backbone.name)):
        words = words_of(_every_text(data))
        bar = sys.stderr.isatty()
        return load_words(find_words(backbone.name), words, progress=bar)
    return open_language_model(find_backbone(backbone.name, backbone.revision), backbone, pooler)


def open_language_model(files: BackboneFiles, backbone: BackboneSettings, pooler: PoolerSettings) -> Backbone:
    """Load a language model whose use is as its folder declares, unless the settings say otherwise."""
    opened = load_backbone(files, pooler.kind)
    return opened.use_as(max_length=backbone.max_length, texts=backbone.texts)


def bare_of(backbone: BackboneSettings) -> BareBackbone:
    """Return what a model of these settings is compared with: its backbone, revision, length and task texts."""
    return BareBackbone(**backbone.model_dump())


def _every_text(data: PreparedData) -> Iterator[str]:
    """Yield every text of prepared data: all sources, dev and evaluation."""
    for rows in (data, *map(data.of, data.sources)):
        yield from rows.sentences()
    tested = of_kind(open_tasks(data, TEST), ScoredPairs)
    for task in [*tested, *open_tasks(data, OWN), *open_tasks(data, DEV)]:
        yield from all_texts(task)
