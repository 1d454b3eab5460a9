"""Tiny random backbones, so that no test needs a download, and what is written beside prepared rows."""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, BertModel, RobertaConfig, RobertaForMaskedLM, RobertaModel

from cse.data.store import REPORT_FILE, PreparedData
from cse.data.suite import only_pairs
from cse.data.tasks.kinds import Task
from cse.data.tasks.store import OWN, TEST, open_tasks, write_tasks
from cse.model.declared import LENGTH

WORDS = [
    "a", "the", "cat", "dog", "bird", "child", "woman", "man", "sits", "sleeps", "runs", "eats", "reads", "on",
    "under", "near", "mat", "sofa", "garden", "house", "red", "blue", "small", "big", "old", "new", "quickly",
    "slowly", "not", "no", "never", "two", "three", "friends", "music", "rain", "sun", "river", "bread", "apple",
    "book",
]  # fmt: skip

SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 40,
}  # fmt: skip
DECLARED = 37  # a prompt of 2 takes no token from it, one of 5 does


def make_tokenizer(family: str) -> Tokenizer:
    """A word-level tokenizer with the special tokens of the family."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] if family == "bert" else ["<s>", "<pad>", "</s>", "<unk>"]
    unknown, first, last = ("[UNK]", "[CLS]", "[SEP]") if family == "bert" else ("<unk>", "<s>", "</s>")
    mask = "[MASK]" if family == "bert" else "<mask>"
    vocabulary = {token: i for i, token in enumerate([*special, *WORDS, mask])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(mask, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=[(first, vocabulary[first]), (last, vocabulary[last])]
    )
    return tokenizer


def make_backbone_folder(
    folder: Path,
    family: str,
    seed: int = 0,
    pooling: str | None = None,
    head: bool = False,
    max_length: int | None = None,
    **changes,
) -> Path:
    """Save a tiny random model of a family as a backbone folder, with its MLM head if that is asked for.

    It declares ``max_length`` as sentence-transformers' models do, fewer tokens than it has positions.
    """
    torch.manual_seed(seed)
    shape = SHAPE | {"initializer_range": 0.2, "pad_token_id": 0 if family == "bert" else 1} | changes
    if family == "bert":
        model = (BertForMaskedLM if head else BertModel)(BertConfig(**shape))
    else:
        model = (RobertaForMaskedLM if head else RobertaModel)(RobertaConfig(**shape | {"type_vocab_size": 1}))
    model.save_pretrained(folder)
    make_tokenizer(family).save(str(folder / "tokenizer.json"))
    if max_length:
        (folder / LENGTH).write_text(json.dumps({"max_seq_length": max_length}), encoding="utf-8")
    if pooling:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        modes = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes), encoding="utf-8")
    return folder


def write_report(folder: Path, view: str, rows: int) -> None:
    """Write what ``prepare`` adds to rows and tasks: what it counted."""
    report = {
        "train": {"source": f"{view}.csv", "kept": rows},
        "view": view,
        "evaluation": {"missing": only_pairs([]).missing},
    }
    (folder / REPORT_FILE).write_text(json.dumps(report), encoding="utf-8")


def write_dev(folder: Path, dev: Task | None) -> None:
    """Write prepared data another dev task, or none; the other tasks stay."""
    data = PreparedData(folder)
    write_tasks(folder, dev=dev, test=open_tasks(data, TEST), own=open_tasks(data, OWN))
