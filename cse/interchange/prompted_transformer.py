"""A language model with trained prompts, as the first module of a sentence-transformers model.

``cse export --format sentence-transformers`` copies this file and those of ``cse.model`` that it imports into the
model's folder: a model that was exported runs without ``cse``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig

from cse.model.passes import Prefix
from cse.model.transformer import Transformer, load_model

try:
    from sentence_transformers.base.modules import InputModule
except ImportError:  # before version 6
    from sentence_transformers.models import InputModule

BACKBONE, TOKENIZER, PROMPT = "backbone", "tokenizer.json", "prompt.safetensors"
_AGAIN = "fetch or export the model again (without its prompt it would be the bare language model)"


class PromptedTransformer(InputModule):
    """Token vectors of ``[prompt | tokens]``; the prompt has keys and values in every layer and no outputs.

    The language model lies in a folder of its own, so that no tool takes the folder above for a model without prompt.

    Args:
        tokenizer: its tokenizer, which neither pads nor truncates.
        prompt: keys and values ``(layers, 2, H, P, K)``; ``P`` may be 0.
        cls: trained word vector of the first token ``(W,)``, or None.
        max_seq_length: tokens per text, special tokens included.
        position_shift: whether the positions of the tokens start after the prompt's.
        frozen: whether further training leaves the language model as it is.
        query_length: tokens per query, if prompt and ``cls`` are for task ``query`` alone; None: for all texts.
    """

    forward_kwargs: ClassVar[set[str]] = {"task"}
    config_file_name = "sentence_bert_config.json"
    config_keys: ClassVar[list[str]] = ["max_seq_length", "position_shift", "frozen", "query_length"]
    save_in_root = True

    def __init__(
        self,
        transformer: Transformer,
        tokenizer: Tokenizer,
        prompt: torch.Tensor,
        cls: torch.Tensor | None = None,
        *,
        max_seq_length: int,
        position_shift: bool,
        frozen: bool,
        query_length: int | None = None,
    ) -> None:
        super().__init__()
        self.transformer = transformer.requires_grad_(not frozen)
        self.tokenizer = tokenizer
        self.prompt = nn.Parameter(prompt)
        self.cls = None if cls is None else nn.Parameter(cls)
        self.max_seq_length = max_seq_length
        self.position_shift = position_shift
        self.query_length = query_length

    @property
    def frozen(self) -> bool:
        """Whether training leaves the language model as it is."""
        return not any(weight.requires_grad for weight in self.transformer.parameters())

    def prompts(self, task: str | None) -> bool:
        """Return whether texts of a task have the prompt."""
        return self.query_length is None or task == "query"

    def forward(self, features: dict[str, Any], task: str | None = None, **_: Any) -> dict[str, Any]:
        """Add ``token_embeddings (B, L, D)`` to ``input_ids`` and ``attention_mask``, both ``(B, L)``."""
        prompted, length = self.prompts(task or features.get("task")), self.prompt.shape[3]
        ids_BL, mask_BL, inner = features["input_ids"], features["attention_mask"], self.transformer
        words_BLW = inner.words(ids_BL)
        if self.cls is not None and prompted:
            words_BLW = torch.cat([self.cls.expand(len(ids_BL), 1, -1), words_BLW[:, 1:]], dim=1)
        positions_BL = inner.positions(mask_BL, length if self.position_shift and prompted else 0)
        embedded_BLD = inner.embed(words_BLW, positions_BL)
        prefix: Prefix | None = [(layer[0], layer[1]) for layer in self.prompt] if length and prompted else None
        states = inner.run(embedded_BLD, positions_BL, mask_BL, prefix, every=False)
        return features | {"token_embeddings": states[-1]}

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **options: Any) -> dict[str, Any]:
        """Return ``input_ids`` and ``attention_mask`` of texts, after the words of ``prompt`` if it is given."""
        own = self.query_length if self.prompts(options.get("task")) else None
        limit = options.get("max_length") or own or self.max_seq_length
        now = self.tokenizer.truncation
        if now is None or now["max_length"] != limit:
            self.tokenizer.enable_truncation(limit)
        rows = [row.ids for row in self.tokenizer.encode_batch([(prompt or "") + text for text in inputs])]
        length, pad_id = max(1, *map(len, rows)), self.transformer.pad_id
        features: dict[str, Any] = {
            "input_ids": torch.tensor([row + [pad_id] * (length - len(row)) for row in rows]),
            "attention_mask": torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows]),
        }
        if prompt:  # so that pooling may leave these words out
            alone = self.tokenizer.encode(prompt)
            features["prompt_length"] = len(alone.ids) - alone.special_tokens_mask[-1]
        return features

    def tokenize(self, texts: Sequence[str], **options: Any) -> dict[str, Any]:
        """Do what ``preprocess`` does, under its name before version 6."""
        return self.preprocess(texts, **options)

    def get_embedding_dimension(self) -> int:
        """Return the width of the token vectors."""
        return self.transformer.hidden_size

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write language model, tokenizer, prompt and config into a folder."""
        folder = Path(output_path)
        self.transformer.model.save_pretrained(folder / BACKBONE)
        plain = Tokenizer.from_str(self.tokenizer.to_str())
        plain.no_truncation()
        (folder / BACKBONE / TOKENIZER).write_text(plain.to_str(pretty=True), encoding="utf-8", newline="\n")
        tensors = {"prompt": self.prompt} | ({} if self.cls is None else {"cls": self.cls})
        content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
        (folder / PROMPT).write_bytes(content)
        config = self.get_config_dict() | {"prompt": hashlib.sha256(content).hexdigest()}
        (folder / self.config_file_name).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        model_kwargs: dict[str, Any] | None = None,
        **_: Any,
    ) -> PromptedTransformer:
        """Load what ``save`` wrote, from a folder or the hub."""
        reach = {"token": token, "cache_folder": cache_folder, "revision": revision}
        found = cls.load_dir_path(model_name_or_path, subfolder, local_files_only=local_files_only, **reach)
        shown, dtype = Path(model_name_or_path, subfolder), _dtype(model_kwargs or {})
        folder = Path(found) if found else shown
        for name in (cls.config_file_name, PROMPT, f"{BACKBONE}/{TOKENIZER}"):
            if not (folder / name).is_file():
                raise ValueError(f"{shown / name}: missing; {_AGAIN}")
        config, content = json.loads((folder / cls.config_file_name).read_text("utf-8")), (folder / PROMPT).read_bytes()
        if hashlib.sha256(content).hexdigest() != config.get("prompt"):
            raise ValueError(f"{shown / PROMPT}: not the prompt that its config names (SHA-256 differs); {_AGAIN}")
        try:
            tensors = {name: tensor.to(dtype) for name, tensor in load(content).items()}
        except SafetensorError as error:
            raise ValueError(f"{shown / PROMPT}: {error}; {_AGAIN}") from None
        model, missing = load_model(folder / BACKBONE, AutoConfig.from_pretrained(folder / BACKBONE), dtype=dtype)
        if missing:
            raise ValueError(f"{shown / BACKBONE}: its weights lack {', '.join(missing[:3])}; {_AGAIN}")
        transformer = Transformer(model)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        length = (shapes.get("prompt", ()) + (0,) * 5)[3]
        needed = {"prompt": (transformer.layers, 2, transformer.heads, length, transformer.head_size)}
        needed |= {name: (transformer.word_size,) for name in shapes if name == "cls"}
        if shapes != needed:
            raise ValueError(f"{shown / PROMPT}: has {shapes}, the language model needs {needed}; {_AGAIN}")
        tokenizer = Tokenizer.from_file(str(folder / BACKBONE / TOKENIZER))
        tokenizer.no_padding()
        return cls(
            transformer,
            tokenizer,
            tensors["prompt"],
            tensors.get("cls"),
            **{key: config[key] for key in cls.config_keys},
        ).eval()


def _dtype(options: dict[str, Any]) -> torch.dtype:
    """Return the number type that a user asks for, float32 by default."""
    if others := sorted(options.keys() - {"dtype", "torch_dtype"}):
        raise ValueError(
            f"model_kwargs: {others[0]} has no effect here, prompts need their own attention; leave it out"
        )
    found = options.get("dtype", options.get("torch_dtype"))
    found = getattr(torch, found, None) if isinstance(found, str) else found
    return found if isinstance(found, torch.dtype) else torch.float32
