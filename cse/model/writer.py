"""A language model that writes about documents: causal or sequence to sequence, any that transformers loads."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cse.errors import CseError, OfflineError, one_line
from cse.model.gguf import check_packages
from cse.model.named import is_gguf, means_folder
from cse.model.quiet import quietly

PLACE = "{document}"
_TURN = "---"  # a line between two turns of an instruction
_GGUF = ".gguf"


def turns_of(instruction: str, shown: str) -> list[str]:
    """Return the turns of an instruction, the user's and the model's by turns; the last one holds ``{document}``.

    Args:
        instruction: turns with a line ``---`` between them: examples, then what is asked of each document.
        shown: what to call it in an error.

    Raises:
        CseError: an empty turn, an even number of them, or not one place for the document.
    """
    turns = [""]
    for line in instruction.strip().splitlines():
        if line.strip() == _TURN:
            turns.append("")
        else:
            turns[-1] += line + "\n"
    turns = [turn.strip() for turn in turns]
    if not all(turns) or len(turns) % 2 == 0:
        raise CseError(
            f"{shown}: {len(turns)} turns between lines of {_TURN}, one of them empty or the last one the model's; "
            "write pairs of an example and its answer, then what is asked"
        )
    if [turn.count(PLACE) for turn in turns] != [0] * (len(turns) - 1) + [1]:
        raise CseError(f"{shown}: {PLACE} must stand once, in the last turn")
    return turns


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        count: texts for each document.
        most_tokens: of a text.
        temperature: of the draws; 0: the likeliest token, and one text.
        top_k: so many of the likeliest tokens are drawn from.
    """

    count: int
    most_tokens: int
    temperature: float
    top_k: int

    def options(self) -> dict[str, Any]:
        """Return them as ``generate`` takes them."""
        drawn = {"do_sample": True, "temperature": self.temperature, "top_k": self.top_k}
        return {"max_new_tokens": self.most_tokens, **(drawn if self.temperature else {"do_sample": False})}


class Writer:
    """A language model with its instruction.

    What stands before the documents is read once and its keys and values are kept; each document is read once, too,
    however many texts are written for it.

    Args:
        model: of transformers.
        tokenizer: its tokenizer.
        turns: of the instruction, see ``turns_of``.
        most_tokens: of a document; the rest is cut off.
    """

    def __init__(self, model: Any, tokenizer: Any, turns: Sequence[str], most_tokens: int) -> None:
        self.model, self.tokenizer, self.most_tokens = model.eval().requires_grad_(False), tokenizer, most_tokens
        self.reads_apart = bool(model.config.is_encoder_decoder)
        self.before, self.after = self._around(turns)
        self._first: Any = None
        ends = model.generation_config.eos_token_id
        self.end = ends[0] if isinstance(ends, list) else ends
        padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.end
        self.padding = 0 if padding is None else padding  # masked

    def _around(self, turns: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return the tokens before and after a document."""
        begin, end = [], []
        if self.tokenizer.chat_template and not self.reads_apart:
            roles = ["user", "assistant"] * len(turns)
            messages = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        else:
            text = "\n\n".join(turns) + ("" if self.reads_apart else "\n")
            special = self.tokenizer("")["input_ids"]
            begin = [token for token in special if token == self.tokenizer.bos_token_id][:1]
            end = [token for token in special if token == self.tokenizer.eos_token_id][:1] if self.reads_apart else []
        before, _, after = text.rpartition(PLACE)
        return begin + self._tokens(before), self._tokens(after) + end

    def _tokens(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        return found

    def lengths(self, documents: Sequence[str]) -> list[int]:
        """Return the number of tokens that are read of each document."""
        return [len(self._read(text)) for text in documents]

    def _read(self, document: str) -> list[int]:
        words = document.split(maxsplit=self.most_tokens)[: self.most_tokens]  # a word has a token or more
        return self._tokens(" ".join(words))[: self.most_tokens]

    @torch.inference_mode()
    def write(self, documents: Sequence[str], sampling: Sampling, seed: int) -> list[list[str]]:
        """Return the texts written for each document.

        Args:
            documents: a batch; the longest sets its size.
            sampling: how.
            seed: of the draws.
        """
        torch.manual_seed(seed)
        own = [self._read(text) + self.after for text in documents]
        kept, start = (None, 0) if self.reads_apart else self._kept(len(own))
        if self.reads_apart:
            own = [self.before + tokens for tokens in own]
        ids_BL, mask_BL = self._padded(own)
        device, count = self.model.device, sampling.count
        if kept is not None:
            before_BP = torch.tensor([self.before] * len(own), device=device, dtype=torch.long)
            ids_BL = torch.cat([before_BP, ids_BL], dim=1)
            mask_BL = torch.cat([torch.ones_like(before_BP), mask_BL], dim=1)
            if ids_BL.shape[1] - start > 1:  # all but the last token, once for all texts of a document
                place_BL = (mask_BL.cumsum(dim=1) - 1).clamp(min=0)
                self._fill(
                    input_ids=ids_BL[:, start:-1],
                    attention_mask=mask_BL[:, :-1],
                    position_ids=place_BL[:, start:-1],
                    past_key_values=kept,
                )
            if ids_BL.shape[1] > 1:
                kept.batch_repeat_interleave(count)
            ids_BL, mask_BL = (each.repeat_interleave(count, dim=0) for each in (ids_BL, mask_BL))
        written_BL = self.model.generate(
            input_ids=ids_BL,
            attention_mask=mask_BL,
            pad_token_id=self.padding,
            **({"num_return_sequences": count} if kept is None else {"past_key_values": kept}),
            **sampling.options(),
        )
        new_BL = written_BL if self.reads_apart else written_BL[:, ids_BL.shape[1] :]
        texts = self.tokenizer.batch_decode(new_BL, skip_special_tokens=True)
        return [texts[place : place + count] for place in range(0, len(texts), count)]

    def _fill(self, **inputs: Any) -> None:
        """Add keys and values of tokens to a cache; a family without position ids (ALiBi) takes them from the mask."""
        takes = inspect.signature(self.model.forward).parameters
        inputs |= {"use_cache": True, "logits_to_keep": 1}
        self.model(**{name: value for name, value in inputs.items() if name in takes})

    def _kept(self, rows: int) -> tuple[Any, int]:
        """Return keys and values of what stands before a document, for a batch, and their number of tokens."""
        if self._first is None:
            from transformers import DynamicCache

            self._first = DynamicCache(config=self.model.config)
            if self.before:
                ids = torch.tensor([self.before], device=self.model.device)
                self._fill(input_ids=ids, past_key_values=self._first)
        kept = copy.deepcopy(self._first)
        if self.before:
            kept.batch_repeat_interleave(rows)
        return kept, len(self.before)

    def _padded(self, tokens: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return token ids and mask ``(B, L)``, filled up on the left."""
        most = max(map(len, tokens))
        ids = [[self.padding] * (most - len(row)) + list(row) for row in tokens]
        mask = [[0] * (most - len(row)) + [1] * len(row) for row in tokens]
        return torch.tensor(ids, device=self.model.device), torch.tensor(mask, device=self.model.device)


def load_writer(
    name: str, turns: Sequence[str], *, most_tokens: int, device: torch.device, bf16: bool, option: str
) -> Writer:
    """Load a language model: a folder, a hub id, or a GGUF file.

    Args:
        name: of the model.
        turns: of the instruction.
        most_tokens: of a document.
        device: where it runs.
        bf16: weights and products in bfloat16.
        option: what to call the name in an error.

    Raises:
        CseError: no such model, none that writes, or a package is missing for its file.
        OfflineError: the hub is unreachable and nothing is cached.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, GgufConfig

    place, more = name, {}
    if name.endswith(_GGUF):
        check_packages(f"{option}: to read {name}")
        if not is_gguf(Path(name)):
            raise CseError(f"{option}: no file {name}")
        place, more = str(Path(name).parent), {"gguf_file": Path(name).name}
    elif not Path(name).is_dir() and means_folder(name):
        raise CseError(f"{option}: no folder {name}; give a folder, a hub id or a .gguf file")
    plain = {"quantization_config": GgufConfig(dequantize=True)} if more else {}
    try:
        with quietly():
            config = AutoConfig.from_pretrained(place, **more)
            tokenizer = AutoTokenizer.from_pretrained(place, **more)
            kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
            model = kind.from_pretrained(place, dtype=torch.bfloat16 if bf16 else torch.float32, **more, **plain)
    except Exception as error:  # the library's own, of many kinds
        reason = one_line(str(error))[:200] or type(error).__name__
        missing = isinstance(error, OSError) and not Path(place).is_dir()
        raise (OfflineError if missing else CseError)(f"{option}: cannot load {name}: {reason}") from None
    return Writer(model.to(device), tokenizer, turns, most_tokens)
