"""Shared fixtures: tiny random backbones, so that no test needs a download, and finished clones of the project."""

from __future__ import annotations

import functools
import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# the process that shares tests out reads this file too, and needs no torch: fixtures import what they make
if TYPE_CHECKING:
    import torch

    from cse.model.backbone import Backbone
    from tests.pipeline.workspace import Workspace

ROOT = Path(__file__).parents[1]
# The files of slow tests that take minutes, the longest first: what begins last decides when a run ends. The first page
# begins at once, as it makes the clones that the others copy, and which they would wait for.
LONGEST = (
    "tests/flows/test_deployments.py", "tests/training/test_elastic.py", "docs/pipeline.md", "docs/train.md",
    "tests/tune/test_sweeps.py", "tests/training/test_workers.py", "docs/bank.md", "tests/flows/test_train_cse.py",
    "tests/pipeline/test_pipeline.py", "docs/evaluate.md", "docs/adapt.md", "docs/search.md", "docs/tune.md",
    "README.md", "tests/systems/test_every_preset.py",
    "tests/pipeline/test_default.py",
)  # fmt: skip
COLLECTED_AFTER = (20_000, 20, 50)  # objects, and rounds of the younger generations


def pytest_ignore_collect(collection_path, config) -> bool | None:
    """Do not import files without a slow test where only slow ones are wanted: it takes longer than some of them."""
    if config.option.markexpr == "slow" and collection_path.name.startswith("test_"):
        return "mark.slow" not in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_collection_modifyitems(items) -> None:
    """Begin with the longest files."""
    place = {ROOT / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


@pytest.fixture(scope="module", autouse=True)
def few_cycles() -> None:
    """Let the collector of cycles pass over what is there before a file's tests, and come less often.

    With all that tests import in memory a tenth of their time was its, and each ``gc.collect()`` took a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory) -> dict[str, Path]:
    """Folders of a tiny random BERT, which declares its length as most embedders do, and RoBERTa, which does not."""
    from tests.tiny import DECLARED, make_backbone_folder

    root = tmp_path_factory.mktemp("backbones")
    lengths = {"bert": DECLARED, "roberta": None}
    return {family: make_backbone_folder(root / family, family, max_length=n) for family, n in lengths.items()}


@pytest.fixture(scope="session")
def code_cache(tmp_path_factory):
    """Keep the copies of models' code, which transformers makes, out of the user's cache; one folder per process."""
    from transformers import dynamic_module_utils

    folder = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
        patch.setenv("HF_MODULES_CACHE", str(folder))  # of subprocesses
        yield folder


@pytest.fixture(scope="session")
def empty_banks(tiny_folders, tmp_path_factory) -> Callable[[str], Path]:
    """Banks of the tiny backbones without domains, by family; copy them."""
    from cse.export.bank import create_bank
    from cse.model.sentence_encoder import SentenceEncoder

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
    if importlib.util.find_spec("onnx") is None:  # as on a machine with few packages, see docs/results.md (On a GPU)
        yield
        return
    from cse.export import graph

    if hasattr(graph._export, "__wrapped__"):
        yield  # the pages' plugin has this fixture too, and a memory of a memory would wait for its own lock
        return
    from tests.export.memo import remembered
    from tests.pipeline.forking import GRAPHS

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "_export", remembered(graph, shared_folder / "graphs"))
        patch.setenv(GRAPHS, str(shared_folder / "graphs"))
        yield


@pytest.fixture(scope="session", autouse=True)
def open_streams() -> Iterator[None]:
    """Keep open what stderr was when absl was imported, pytest's: its handler closes it as logging is set up anew."""
    if importlib.util.find_spec("absl") is None:
        yield
        return
    from absl.logging import PythonHandler

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PythonHandler, "close", logging.StreamHandler.close)
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Draw the same weights in a test whatever ran before it: its models are then known from other tests."""
    import torch

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
def openvino_in_float32(monkeypatch) -> None:
    """OpenVINO as on a processor that does not multiply in bfloat16: exact enough to compare."""
    import openvino

    monkeypatch.setattr(openvino.Core, "get_property", lambda core, device, name: ["FP32", "INT8"])


@pytest.fixture
def traced_anew(monkeypatch) -> None:
    """Trace every model that this test exports."""
    from cse.export import graph

    monkeypatch.setattr(graph, "_export", graph._export.__wrapped__)


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
    from tests.parts import backbone_of

    return backbone_of(backbone_folder)


@pytest.fixture
def bert(tiny_folders) -> Backbone:
    from tests.parts import backbone_of

    return backbone_of(tiny_folders["bert"])


@pytest.fixture
def batch(backbone) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask ``(3, 7)`` with two padded rows."""
    import torch

    lengths = (7, 4, 2)
    mask_BL = torch.tensor([[1] * n + [0] * (7 - n) for n in lengths])
    ids_BL = torch.randint(4, 40, (3, 7), generator=torch.Generator().manual_seed(1))
    return torch.where(mask_BL == 1, ids_BL, backbone.pad_id), mask_BL
