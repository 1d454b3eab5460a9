"""Shared fixtures: tiny random backbones, so that no test needs a download, and finished clones of the project."""

from __future__ import annotations

import functools
import gc
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaModel,
    dynamic_module_utils,
)

from cse.data.store import REPORT_FILE, PreparedData
from cse.data.suite import only_pairs
from cse.data.tasks.kinds import Task
from cse.data.tasks.store import OWN, TEST, open_tasks, write_tasks
from cse.model.backbone import Backbone, load_backbone
from cse.model.backbone_files import find_backbone
from cse.model.declared import LENGTH
from cse.model.sentence_encoder import SentenceEncoder

COLLECTED_AFTER = (20_000, 20, 50)  # objects, and rounds of the younger generations

if TYPE_CHECKING:
    from tests.pipeline.workspace import Workspace

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
    if family == "roberta":
        shape["type_vocab_size"] = 1
    kinds = (
        (BertConfig, BertModel, BertForMaskedLM)
        if family == "bert"
        else (RobertaConfig, RobertaModel, RobertaForMaskedLM)
    )
    model = kinds[2 if head else 1](kinds[0](**shape))
    model.save_pretrained(folder)
    make_tokenizer(family).save(str(folder / "tokenizer.json"))
    if max_length:
        (folder / LENGTH).write_text(json.dumps({"max_seq_length": max_length}), encoding="utf-8")
    if pooling:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        modes = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes), encoding="utf-8")
    return folder


def pytest_ignore_collect(collection_path, config) -> bool | None:
    """Do not import files without a slow test where only slow ones are wanted: it takes longer than some of them."""
    if config.option.markexpr == "slow" and collection_path.name.startswith("test_"):
        return "mark.slow" not in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_collection_finish() -> None:
    """Let the collector of cycles pass over what was imported, and come less often: a tenth of all time was its."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory) -> dict[str, Path]:
    """Folders of a tiny random BERT, which declares its length as most embedders do, and RoBERTa, which does not."""
    root = tmp_path_factory.mktemp("backbones")
    lengths = {"bert": DECLARED, "roberta": None}
    return {family: make_backbone_folder(root / family, family, max_length=n) for family, n in lengths.items()}


@pytest.fixture(scope="session")
def code_cache(tmp_path_factory):
    """Keep the copies of models' code, which transformers makes, out of the user's cache; one folder per process."""
    folder = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
        patch.setenv("HF_MODULES_CACHE", str(folder))  # of subprocesses
        yield folder


@pytest.fixture(scope="session")
def empty_banks(tiny_folders, tmp_path_factory) -> Callable[[str], Path]:
    """Banks of the tiny backbones without domains, by family; copy them."""
    from cse.export.bank import create_bank

    @functools.cache
    def get(family: str) -> Path:
        bank = tmp_path_factory.mktemp("banks") / family
        create_bank(SentenceEncoder.load(tiny_folders[family]), bank, tolerance=1e-5)
        return bank

    return get


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory) -> Path:
    """A folder that all processes of a test run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def graphs(shared_folder) -> Iterator[None]:
    """Trace each model once that tests, and commands that they fork, export; ``traced_anew`` is without that."""
    if importlib.util.find_spec("onnx") is None:  # as on a machine with few packages, see docs/gpu.md
        yield
        return
    from cse.export import graph
    from tests.export.memo import remembered
    from tests.pipeline.forking import GRAPHS

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "_export", remembered(graph, shared_folder / "graphs"))
        patch.setenv(GRAPHS, str(shared_folder / "graphs"))
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Draw the same weights in a test whatever ran before it: its models are then known from other tests."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def forking_python() -> str:
    """A Python that forks commands of the project from a process that has torch imported."""
    from tests.pipeline.forking import launchers

    return str(launchers(sys.executable) / "python")


@pytest.fixture
def forked(forking_python, monkeypatch) -> None:
    """Fork what this test starts by ``sys.executable``, and Ray's workers."""
    monkeypatch.setattr(sys, "executable", forking_python)


@pytest.fixture
def traced_anew(monkeypatch) -> None:
    """Trace every model that this test exports."""
    from cse.export import graph

    monkeypatch.setattr(graph, "_export", graph._export.__wrapped__)


@pytest.fixture(scope="session")
def finished_clone(shared_folder) -> Workspace:
    """A clone after ``dvc repro`` with the default backbone and few rows; copy it before you change anything."""
    from tests.pipeline.finished import make_default, make_once

    return make_once(shared_folder / "finished", make_default)


@pytest.fixture(scope="session")
def finished_tiny_clone(shared_folder) -> Workspace:
    """A clone after ``dvc repro`` with a tiny random backbone; copy it before you change anything."""
    from tests.pipeline.finished import make_once, make_tiny

    return make_once(shared_folder / "finished-tiny", make_tiny)


@pytest.fixture(params=["bert", "roberta"])
def family(request) -> str:
    return request.param


@pytest.fixture
def backbone_folder(tiny_folders, family) -> Path:
    return tiny_folders[family]


@pytest.fixture
def backbone(backbone_folder) -> Backbone:
    return load_backbone(find_backbone(str(backbone_folder)))


@pytest.fixture
def bert(tiny_folders) -> Backbone:
    return load_backbone(find_backbone(str(tiny_folders["bert"])))


@pytest.fixture
def batch(backbone) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask ``(3, 7)`` with two padded rows."""
    lengths = (7, 4, 2)
    mask_BL = torch.tensor([[1] * n + [0] * (7 - n) for n in lengths])
    ids_BL = torch.randint(4, 40, (3, 7), generator=torch.Generator().manual_seed(1))
    return torch.where(mask_BL == 1, ids_BL, backbone.pad_id), mask_BL


def write_report(folder: Path, view: str, rows: int) -> None:
    """Write what ``prepare`` adds to rows and tasks: what it counted."""
    report = {
        "train": {"source": f"{view}.csv", "kept": rows},
        "view": view,
        "evaluation": {"suite_missing": only_pairs([]).missing},
    }
    (folder / REPORT_FILE).write_text(json.dumps(report), encoding="utf-8")


def write_dev(folder: Path, dev: Task | None) -> None:
    """Write prepared data another dev task, or none; the other tasks stay."""
    data = PreparedData(folder)
    write_tasks(folder, dev=dev, test=open_tasks(data, TEST), own=open_tasks(data, OWN))
