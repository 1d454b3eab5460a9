"""A tiny random model of every family, of the library's real classes; a new family is one more entry."""

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, processors

from tests.tiny import SHAPE, make_tokenizer

WINDOW = 4  # of sliding layers, in tokens; test sentences are longer
_ROTARY = SHAPE | {
    "max_position_embeddings": 64, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3,
}  # fmt: skip
_GROUPED = _ROTARY | {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
_SLIDING = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_BERT = SHAPE | {"pad_token_id": 0, "initializer_range": 0.2}
_ROBERTA = SHAPE | {"pad_token_id": 1, "initializer_range": 0.2, "type_vocab_size": 1}

_SPREAD = {"initializer_range": 0.2}
_TWO_GROUPS = {"num_hidden_groups": 2, "inner_group_num": 2}
_DISTIL = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "vocab_size": 64, "max_position_embeddings": 40}
_ALBERT = _BERT | {"embedding_size": 24, "num_hidden_layers": 4}
_LLAMA, _GEMMA = _GROUPED | _SPREAD, _GROUPED | _SLIDING | _SPREAD | {"query_pre_attn_scalar": 16}

# name of a case: config class, model class, values, tokenizer
CASES: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "bert": (hf.BertConfig, hf.BertModel, _BERT, "bert"),
    "roberta": (hf.RobertaConfig, hf.RobertaModel, _ROBERTA, "roberta"),
    "xlm-roberta": (hf.XLMRobertaConfig, hf.XLMRobertaModel, _ROBERTA, "roberta"),
    "camembert": (hf.CamembertConfig, hf.CamembertModel, _ROBERTA, "roberta"),
    "electra": (hf.ElectraConfig, hf.ElectraModel, _BERT | {"embedding_size": 24}, "bert"),
    "electra, wide words": (hf.ElectraConfig, hf.ElectraModel, _BERT | {"embedding_size": 32}, "bert"),
    "distilbert": (hf.DistilBertConfig, hf.DistilBertModel, _DISTIL | _SPREAD | {"pad_token_id": 0}, "bert"),
    "mpnet": (hf.MPNetConfig, hf.MPNetModel, _ROBERTA | {"type_vocab_size": None}, "roberta"),
    "albert": (hf.AlbertConfig, hf.AlbertModel, _ALBERT, "bert"),
    "albert, two groups of two": (hf.AlbertConfig, hf.AlbertModel, _ALBERT | _TWO_GROUPS, "bert"),
    "modernbert": (hf.ModernBertConfig, hf.ModernBertModel,
                   _ROTARY | _SLIDING | _SPREAD | {"local_attention": 2 * WINDOW, "pad_token_id": 0}, "bert"),
    "nomic_bert": (hf.NomicBertConfig, hf.NomicBertModel, _BERT, "bert"),
    "gte": (hf.GteConfig, hf.GteModel, _BERT | {"type_vocab_size": 1}, "bert"),
    "gte, no types": (hf.GteConfig, hf.GteModel, _BERT | {"type_vocab_size": 0}, "bert"),
    "eurobert": (hf.EuroBertConfig, hf.EuroBertModel, _LLAMA | {"mask_token_id": 4}, "both"),
    "llama": (hf.LlamaConfig, hf.LlamaModel, _LLAMA, "last"),
    "llama, wide heads, no added tokens": (hf.LlamaConfig, hf.LlamaModel, _LLAMA | {"head_dim": 24}, "none"),
    "mistral": (hf.MistralConfig, hf.MistralModel, _LLAMA | {"sliding_window": WINDOW}, "last"),
    "mistral, no window": (hf.MistralConfig, hf.MistralModel, _LLAMA | {"sliding_window": None}, "last"),
    "qwen3": (hf.Qwen3Config, hf.Qwen3Model, _LLAMA, "last"),
    "qwen3, sliding": (hf.Qwen3Config, hf.Qwen3Model,
                       _LLAMA | _SLIDING | {"use_sliding_window": True, "sliding_window": WINDOW}, "last"),
    "gemma3": (hf.Gemma3TextConfig, hf.Gemma3TextModel, _GEMMA | {"sliding_window": WINDOW}, "both"),
    "gemma3, both ways": (hf.Gemma3TextConfig, hf.Gemma3TextModel,
                          _GEMMA | {"sliding_window": 2 * WINDOW, "use_bidirectional_attention": True}, "both"),
}  # fmt: skip


def tokenizer_of(kind: str) -> Tokenizer:
    """A word-level tokenizer: BERT's or RoBERTa's, or a decoder's with an end token, with both or with none."""
    if kind in ("bert", "roberta"):
        return make_tokenizer(kind)
    tokenizer = make_tokenizer("bert")  # its ids 2 and 3 stand for begin and end
    around = {"last": "$A [SEP]", "both": "[CLS] $A [SEP]", "none": "$A"}[kind]
    tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def make_family_folder(folder: Path, name: str, **changes: Any) -> Path:
    """Save the tiny model of a case as a backbone folder."""
    config, model, values, tokenizer = CASES[name]
    torch.manual_seed(0)
    made = model(config(**(values | changes)))
    with torch.no_grad():  # norms that change something
        for weight_name, weight in made.named_parameters():
            if "norm" in weight_name.lower():
                weight.add_(0.3 * torch.randn_like(weight))
    made.save_pretrained(folder)
    tokenizer_of(tokenizer).save(str(folder / "tokenizer.json"))
    return folder
