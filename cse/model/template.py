"""Templates: fixed or trained words around a sentence, read out at the mask (PromptBERT, SCPCSE).

A template lives in the tokenizer's post-processor, so training, evaluation, export and a service without torch apply
it alike, and truncation cuts the sentence and never the template.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.processors import TemplateProcessing

from cse.errors import CseError
from cse.model.backbone import Backbone, plain_copy

SENTENCE, MASK = "{sentence}", "{mask}"
# a text that ends in something else than . ? " ' ; an empty one stays empty
_NO_PERIOD = r"(?<=[^\s.?\"'])\s*\z"


@dataclass(frozen=True)
class Template:
    """A template as token ids: ``[CLS] before SENTENCE middle [MASK] after [SEP]``.

    Attributes:
        text: as the user wrote it.
        before, middle, after: ids of its words; a trained piece has an id from the vocabulary's size on.
        words: ids that the pieces had before they were trained, in order; () where they are fixed.
        specials: ids of ``cls``, ``sep`` and ``mask``.
        end_with_period: whether the tokenizer appends a period to a sentence without one.
    """

    text: str
    before: tuple[int, ...]
    middle: tuple[int, ...]
    after: tuple[int, ...]
    words: tuple[int, ...]
    specials: dict[str, int]
    end_with_period: bool = False

    @property
    def ids(self) -> tuple[int, ...]:
        """The template without a sentence, special tokens included."""
        s = self.specials
        return (s["cls"], *self.before, *self.middle, s["mask"], *self.after, s["sep"])

    @property
    def start(self) -> int:
        """Index at which the sentence stands."""
        return 1 + len(self.before)

    @property
    def tail(self) -> int:
        """Tokens behind the mask, ``[SEP]`` included: the mask's place counted from the end of a row."""
        return len(self.after) + 1

    def tokenizer(self, base: Tokenizer, *, training: bool = False) -> Tokenizer:
        """Return a copy of a tokenizer that sets the template around every text."""
        tokenizer = plain_copy(base)
        if self.text.split(SENTENCE)[0].endswith(" "):
            tokenizer = _with_blank_before(tokenizer)
        s = self.specials
        pieces: list[tuple[str, tuple[int, ...]]] = [
            ("[CLS]", (s["cls"],)),
            ("before", self.before),
            ("middle", self.middle),
            ("[MASK]", (s["mask"],)),
            ("after", self.after),
            ("[SEP]", (s["sep"],)),
        ]
        names = [name for name, ids in pieces if ids]
        names.insert(names.index("before") + 1 if self.before else 1, "$A")
        tokenizer.post_processor = TemplateProcessing(
            single=" ".join(name if name.startswith(("[", "$")) else f"[{name}]" for name in names),
            special_tokens=[
                {
                    "id": name if name.startswith("[") else f"[{name}]",
                    "ids": list(ids),
                    "tokens": [f"{name}{i}" for i in range(len(ids))],
                }
                for name, ids in pieces
                if ids
            ],
        )
        if self.end_with_period and not training:
            # without a blank, as the released code does: to a byte-level tokenizer " ." is another token than "."
            period = normalizers.Replace(Regex(_NO_PERIOD), ".")
            steps = [period] if tokenizer.normalizer is None else [period, tokenizer.normalizer]
            tokenizer.normalizer = normalizers.Sequence(steps)
        return tokenizer

    def empty_rows(self, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids ``(count, T)`` of the template without a sentence and the column shifts ``(count, T)``.

        Row ``n`` stands for a sentence of ``n`` tokens: columns behind the sentence's place move on by ``n``.
        """
        ids_T = torch.tensor(self.ids, device=device)
        behind_T = (torch.arange(len(self.ids), device=device) >= self.start).long()
        return ids_T.expand(count, -1), torch.arange(count, device=device)[:, None] * behind_T


def make_template(text: str, backbone: Backbone, *, trained: bool, end_with_period: bool) -> Template:
    """Cut a template into token ids.

    Args:
        text: words with ``{sentence}`` and, behind it, ``{mask}``.
        backbone: gives tokenizer and special tokens.
        trained: whether each piece gets a vector of its own (ids from the vocabulary's size on).
        end_with_period: whether sentences without a closing period get one at inference.

    Raises:
        CseError: a slot is missing.
    """
    if text.count(SENTENCE) != 1 or text.count(MASK) != 1 or text.index(MASK) < text.index(SENTENCE):
        raise CseError(f"template.text: needs {SENTENCE} and behind it {MASK}, each once; found {text!r}")
    before, rest = text.split(SENTENCE)
    middle, after = rest.split(MASK)
    tokenizer = plain_copy(backbone.tokenizer)
    cut = [tuple(tokenizer.encode(part.rstrip(), add_special_tokens=False).ids) for part in (before, middle, after)]
    words: tuple[int, ...] = ()
    if trained:
        words = tuple(i for part in cut for i in part)
        own = iter(range(backbone.vocabulary, backbone.vocabulary + len(words)))
        cut = [tuple(next(own) for _ in part) for part in cut]
    before_ids, middle_ids, after_ids = cut
    return Template(text, before_ids, middle_ids, after_ids, words, backbone.special_ids, end_with_period)


def _with_blank_before(tokenizer: Tokenizer) -> Tokenizer:
    """Let a byte-level tokenizer read a sentence as if a blank stood before it, as it does inside a template."""
    tree: dict[str, Any] = json.loads(tokenizer.to_str())
    if (tree["pre_tokenizer"] or {}).get("type") != "ByteLevel":
        return tokenizer
    tree["pre_tokenizer"]["add_prefix_space"] = True
    return Tokenizer.from_str(json.dumps(tree))
