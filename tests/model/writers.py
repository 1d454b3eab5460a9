"""Tiny random language models that write."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.tiny import make_tokenizer

CHAT = (
    "{% for m in messages %}{{ '<s>' + m.role + ' ' + m.content + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant {% endif %}"
)
_SHAPE = {"vocab_size": 48, "pad_token_id": 1, "eos_token_id": 2, "initializer_range": 0.3}


def make_writer(folder: Path, kind: str = "causal", chat: bool = False) -> Path:
    """Save a tiny random model, causal (of the Llama, Bloom or GPT-2 family) or sequence to sequence (T5)."""
    torch.manual_seed(3)
    if kind == "causal":
        shape = _SHAPE | {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        model = LlamaForCausalLM(LlamaConfig(**shape, bos_token_id=0))
    elif kind == "bloom":
        model = BloomForCausalLM(BloomConfig(**_SHAPE, hidden_size=32, n_layer=2, n_head=4, bos_token_id=0))
    elif kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(**_SHAPE, n_embd=32, n_layer=2, n_head=4, bos_token_id=0))
    else:
        shape = _SHAPE | {"d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4}
        model = T5ForConditionalGeneration(T5Config(**shape, decoder_start_token_id=1, tie_word_embeddings=False))
        torch.manual_seed(1)
        for parameter in model.parameters():  # as it starts, it writes nothing
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.8)
    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer("roberta"),
        bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
    )  # fmt: skip
    if chat:
        tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    return folder
