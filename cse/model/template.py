"""Templates: words around a sentence, read at the mask (PromptBERT, SCPCSE) or at the last token (PromptEOL).

A template is part of the tokenizer's post-processor, so training, evaluation, export and a service without torch apply
it identically, and truncation cuts the sentence, never the template.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.processors import TemplateProcessing

from cse.model.backbone import Backbone
from cse.runtime.tokens import plain_copy

SENTENCE, MASK = "{sentence}", "{mask}"
# a text that does not end in . ? " ' ; an empty one stays empty
_NO_PERIOD = r"(?<=[^\s.?\"'])\s*\z"


@dataclass(frozen=True)
class Template:
    """A template as token ids: ``first before SENTENCE middle mask after last``."""

    text: str
    before: tuple[
        int, ...
    ]  # ids of its words, as `middle` and `after`; of trained pieces, from the vocabulary's size on
    middle: tuple[int, ...]
    after: tuple[int, ...]
    words: tuple[int, ...]  # original ids of the trained pieces, in order; () if the template is fixed
    first: tuple[int, ...]  # what the tokenizer puts before every text: `[CLS]`, or a decoder's, if any
    mask: tuple[int, ...]  # () if the last token is read
    last: tuple[int, ...]
    end_with_period: bool = False

    @property
    def ids(self) -> tuple[int, ...]:
        """The template without a sentence, including special tokens."""
        return (*self.first, *self.before, *self.middle, *self.mask, *self.after, *self.last)

    @property
    def start(self) -> int:
        """Index at which the sentence starts."""
        return len(self.first) + len(self.before)

    @property
    def tail(self) -> int:
        """Number of tokens after the mask, including ``[SEP]``: the mask's index from the end of a row."""
        return len(self.after) + len(self.last)

    def tokenizer(self, base: Tokenizer, *, training: bool = False) -> Tokenizer:
        """Return a copy of a tokenizer that wraps every text in the template."""
        tokenizer = plain_copy(base)
        if self.text.split(SENTENCE)[0].endswith(" "):
            tokenizer = _with_blank_before(tokenizer)
        names = ("first", "before", "$A", "middle", "mask", "after", "last")
        parts = (self.first, self.before, (), self.middle, self.mask, self.after, self.last)
        pieces = {name: ids for name, ids in zip(names, parts, strict=True) if ids or name == "$A"}
        tokenizer.post_processor = TemplateProcessing(
            single=" ".join(name if name == "$A" else f"[{name}]" for name in pieces),
            special_tokens=[
                {"id": f"[{name}]", "ids": list(ids), "tokens": [f"{name}{i}" for i in range(len(ids))]}
                for name, ids in pieces.items()
                if ids
            ],
        )
        if self.end_with_period and not training:
            # no space before it, as in the released code: to a byte-level tokenizer " ." and "." are different tokens
            period = normalizers.Replace(Regex(_NO_PERIOD), ".")
            steps = [period] if tokenizer.normalizer is None else [period, tokenizer.normalizer]
            tokenizer.normalizer = normalizers.Sequence(steps)
        return tokenizer

    def empty_rows(self, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids ``(count, T)`` of the template without a sentence and the column shifts ``(count, T)``.

        Row ``n`` stands for a sentence of ``n`` tokens: columns after the sentence shift by ``n``.
        """
        ids_T = torch.tensor(self.ids).to(device, non_blocking=True)
        behind_T = (torch.arange(len(self.ids), device=device) >= self.start).long()
        return ids_T.expand(count, -1), torch.arange(count, device=device)[:, None] * behind_T


def make_template(text: str, backbone: Backbone, *, trained: bool, end_with_period: bool) -> Template:
    """Tokenise words with ``{sentence}`` and, after it, ``{mask}``; without ``{mask}``, the last token is read.

    The settings refuse other texts.
    """
    masked = MASK in text
    before, rest = text.split(SENTENCE)
    middle, after = rest.split(MASK) if masked else (rest, "")
    tokenizer = plain_copy(backbone.tokenizer)
    cut = [tuple(tokenizer.encode(part.rstrip(), add_special_tokens=False).ids) for part in (before, middle, after)]
    words: tuple[int, ...] = ()
    if trained:
        words = tuple(i for part in cut for i in part)
        own = iter(range(backbone.vocabulary, backbone.vocabulary + len(words)))
        cut = [tuple(next(own) for _ in part) for part in cut]
    before_ids, middle_ids, after_ids = cut
    first, last = backbone.around
    mask = (backbone.special_ids["mask"],) if masked else ()
    return Template(text, before_ids, middle_ids, after_ids, words, first, mask, last, end_with_period)


def _with_blank_before(tokenizer: Tokenizer) -> Tokenizer:
    """Make a byte-level tokenizer read a sentence as if a space preceded it, as inside a template."""
    tree: dict[str, Any] = json.loads(tokenizer.to_str())
    if (tree["pre_tokenizer"] or {}).get("type") != "ByteLevel":
        return tokenizer
    tree["pre_tokenizer"]["add_prefix_space"] = True
    return Tokenizer.from_str(json.dumps(tree))
