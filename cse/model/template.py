"""Templates: fixed or trained words around a sentence, pooled at the mask (PromptBERT, SCPCSE).

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

from cse.errors import CseError
from cse.model.backbone import Backbone, plain_copy

SENTENCE, MASK = "{sentence}", "{mask}"
# a text that does not end in . ? " ' ; an empty one stays empty
_NO_PERIOD = r"(?<=[^\s.?\"'])\s*\z"


@dataclass(frozen=True)
class Template:
    """A template as token ids: ``[CLS] before SENTENCE middle [MASK] after [SEP]``.

    Attributes:
        text: the template as written by the user.
        before, middle, after: ids of its words; ids of trained pieces start at the vocabulary's size.
        words: original ids of the trained pieces, in order; () if the template is fixed.
        specials: ids of ``cls``, ``sep`` and ``mask``.
        end_with_period: whether the tokenizer appends a period to sentences without one.
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
        """The template without a sentence, including special tokens."""
        s = self.specials
        return (s["cls"], *self.before, *self.middle, s["mask"], *self.after, s["sep"])

    @property
    def start(self) -> int:
        """Index at which the sentence starts."""
        return 1 + len(self.before)

    @property
    def tail(self) -> int:
        """Number of tokens after the mask, including ``[SEP]``: the mask's index from the end of a row."""
        return len(self.after) + 1

    def tokenizer(self, base: Tokenizer, *, training: bool = False) -> Tokenizer:
        """Return a copy of a tokenizer that wraps every text in the template."""
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
    """Tokenise a template.

    Args:
        text: words with ``{sentence}`` and, after it, ``{mask}``.
        backbone: provides the tokenizer and special tokens.
        trained: whether each piece gets its own trained vector (ids starting at the vocabulary's size).
        end_with_period: whether to add a period at inference to sentences that do not end in one.

    Raises:
        CseError: ``{sentence}`` or ``{mask}`` is missing, repeated or out of order.
    """
    if text.count(SENTENCE) != 1 or text.count(MASK) != 1 or text.index(MASK) < text.index(SENTENCE):
        raise CseError(f"template.text: needs {SENTENCE} followed by {MASK}, each once; found {text!r}")
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
    """Make a byte-level tokenizer read a sentence as if a space preceded it, as inside a template."""
    tree: dict[str, Any] = json.loads(tokenizer.to_str())
    if (tree["pre_tokenizer"] or {}).get("type") != "ByteLevel":
        return tokenizer
    tree["pre_tokenizer"]["add_prefix_space"] = True
    return Tokenizer.from_str(json.dumps(tree))
