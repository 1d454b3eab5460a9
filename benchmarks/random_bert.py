"""A BERT of random weights, which do not affect speed or memory, with a tokenizer of its own: nothing to download."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerFast

from cse.data.sample import sample_rows

SHAPES = {
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128},
}
_SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def sentences(count: int) -> list[str]:
    """Return generated texts of about 24 tokens: two sentences each."""
    rows = sample_rows("sentences", 2 * count, 1)
    return [f"{first} {second}" for (first,), (second,) in islice(zip(rows, rows, strict=True), count)]


def save_bert(folder: Path, shape: dict[str, int], kind: type[PreTrainedModel] = BertModel) -> Path:
    """Save a BERT as sentence-transformers would, with mean pooling and vectors of unit length.

    Args:
        shape: arguments of ``BertConfig``, see ``SHAPES``.
        kind: ``BertModel``, or ``BertForMaskedLM`` for one with its head.

    Returns:
        The folder.
    """
    torch.manual_seed(0)
    kind(BertConfig(**shape)).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [*_SPECIAL.values(), "[MASK]"]
    tokenizer.train_from_iterator(
        sentences(2000), trainers.WordPieceTrainer(vocab_size=30522, special_tokens=special, show_progress=False)
    )
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = _SPECIAL | {"mask_token": "[MASK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names).save_pretrained(folder)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": shape["hidden_size"], "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling), encoding="utf-8")
    kinds = [f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", "Normalize")]
    places = ["", "1_Pooling", "2_Normalize"]
    modules = [{"idx": at, "name": str(at), "path": places[at], "type": kind} for at, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    return folder
