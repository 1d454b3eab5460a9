"""Files as the papers' authors saved them, and their forward pass in numpy: no code of this project."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModel

from tests.model import reference
from tests.tiny import SHAPE

TEXTS = ["the cat sits on the mat", "a dog", "two small birds eat red apple bread near the river", "she runs"]
LAYERS, HEADS, WIDTH = SHAPE["num_hidden_layers"], SHAPE["num_attention_heads"], SHAPE["hidden_size"]
LENGTH = 5
PAD = {"bert": 0, "roberta": 1}
MASK = {"bert": "[MASK]", "roberta": "<mask>"}


def close(found: np.ndarray, expected) -> None:
    wanted = np.array(expected)
    assert np.abs(wanted).max() > 0.1, "nothing to compare"
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)


def random(*shape: int, seed: int = 0, std: float = 0.5) -> torch.Tensor:
    return std * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def language_model(folder: Path, *, tuned: bool = False) -> dict[str, torch.Tensor]:
    """The weights of a backbone under bare names, changed a little where they were fine-tuned."""
    model = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    if tuned:
        weights = {name: w + random(*w.shape, seed=i, std=0.05) for i, (name, w) in enumerate(weights.items())}
    return weights


def dense(seed: int = 11) -> dict[str, torch.Tensor]:
    """A projector: Linear(D, D), followed by tanh."""
    return {"dense.weight": random(WIDTH, WIDTH, seed=seed, std=0.2), "dense.bias": random(WIDTH, seed=seed + 1)}


def prefix() -> dict[str, torch.Tensor]:
    """A prefix encoder's tensors; with a network behind them: tests/assets/released/promcse-roberta."""
    return {"embedding.weight": random(LENGTH, 2 * LAYERS * WIDTH, seed=3, std=0.7)}


def before(start: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{start}{name}": value for name, value in tensors.items()}


def training_layout(family: str, model: dict[str, torch.Tensor], **parts: dict[str, torch.Tensor]) -> dict:
    """A state dict as ``save_pretrained`` of the released classes wrote it; ``parts`` by the name before the dot."""
    positions = {f"{family}.embeddings.position_ids": torch.arange(SHAPE["max_position_embeddings"])[None]}
    tensors = positions | before(f"{family}.", model)
    for name, part in parts.items():
        tensors |= before(f"{name}.", part)
    return tensors


def save(folder: Path, tensors: dict[str, torch.Tensor], backbone: Path, **config) -> Path:
    """A released folder: ``pytorch_model.bin``, ``config.json`` and the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, folder / "pytorch_model.bin")
    known = json.loads((backbone / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(known | {"architectures": ["BertForCL"]} | config))
    shutil.copyfile(backbone / "tokenizer.json", folder / "tokenizer.json")
    return folder


def rows(folder: Path, texts: list[str]) -> list[np.ndarray]:
    """Token ids of each text, one array ``(1, L)`` per text."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    return [np.array([tokenizer.encode(text).ids]) for text in texts]


def states(
    family: str, model: dict[str, torch.Tensor], ids: np.ndarray, table: np.ndarray | None = None, pushed=0
) -> list[np.ndarray]:
    """Embedding output and every layer's, as the released encoder returns them."""
    weights = {name: value.numpy() for name, value in model.items()}
    blocks, shift = (None, 0) if table is None else (reference.key_value_prefix(table, LAYERS, WIDTH), len(table))
    shape = {"layers": LAYERS, "heads": HEADS, "family": family, "pad_id": PAD[family], "eps": 1e-12}
    return reference.hidden_states(weights, ids, np.ones_like(ids), **shape, prefix=blocks, shift=shift, pushed=pushed)


def project(vector: np.ndarray, projector: dict[str, torch.Tensor]) -> np.ndarray:
    p = {name: value.double().numpy() for name, value in projector.items()}
    return np.tanh(vector @ p["dense.weight"].T + p["dense.bias"])


def read(pooler: str, found: list[np.ndarray], projector: dict[str, torch.Tensor]) -> np.ndarray:
    """The poolers of the released scripts, for one row."""
    if pooler == "cls":
        return project(found[-1][0, 0], projector)
    if pooler == "cls_before_pooler":
        return found[-1][0, 0]
    mixed = {
        "avg": found[-1],
        "avg_top2": (found[-1] + found[-2]) / 2,
        "avg_first_last": (found[1] + found[-1]) / 2,
    }
    return mixed[pooler][0].mean(axis=0)
