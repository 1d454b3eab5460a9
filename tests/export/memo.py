"""A graph is traced once in a test run: tracing takes longer than anything else that tests do with a model.

What determines a graph is all that its module holds, and the code: these are the key. A module that cannot be pickled,
or that pickles to other bytes, is traced anew.
"""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from cse.runtime.tokens import Tokenizers

Export = Callable[[nn.Module, dict[str, Any], Path], None]


def remembered(graph: ModuleType, folder: Path) -> Export:
    """Return the exporter's ``_export`` with a memory: what it wrote for a module, it copies for an equal one.

    Args:
        graph: ``cse.export.graph``, of whichever copy of the project.
        folder: where graphs are kept.
    """
    export: Export = graph._export
    code = [path.read_bytes() for part in ("export", "model") for path in _sources(Path(graph.__file__ or ""), part)]

    @functools.wraps(export)
    def once(module: nn.Module, given: dict[str, Any], path: Path) -> None:
        try:
            content = _content((module, given, path.name, graph.EXTERNAL_DATA_BYTES, code))
        except Exception:
            export(module, given, path)
            return
        kept = folder / hashlib.sha256(content).hexdigest()
        if not kept.is_dir():
            export(module, given, path)
            _keep([file for file in (path, path.with_name(f"{path.name}.data")) if file.exists()], kept)
        else:
            for file in kept.iterdir():
                shutil.copyfile(file, path.with_name(file.name))

    return once


def _sources(graph: Path, part: str) -> list[Path]:
    found = sorted((graph.parents[1] / part).rglob("*.py"))
    assert found, f"no code in {part} beside {graph}"
    return found


class _Pickler(pickle._Pickler):
    """Writes what is equal to equal bytes: pickle's own depend on which equal texts, tuples and dicts are one object.

    A tensor is written as its values, torch's own form has addresses in it; of a path that there is one; a tokenizer
    without its copies, which the first text makes; and a model's configuration without the folder that it came from.
    """

    def memoize(self, thing: Any) -> None:
        if not isinstance(thing, str | bytes | tuple | list | dict | set | frozenset):
            super().memoize(thing)

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            return tuple, ((type(thing).__name__, thing.detach().numpy()),)
        if isinstance(thing, Path):
            return Path, ()
        if isinstance(thing, PretrainedConfig):
            return tuple, ((type(thing), {k: v for k, v in vars(thing).items() if k != "_name_or_path"}),)
        if isinstance(thing, Tokenizers):
            return Tokenizers, (thing._tokenizer,)
        return NotImplemented


def _content(thing: Any) -> bytes:
    _Pickler(stream := io.BytesIO()).dump(thing)
    return stream.getvalue()


def _keep(files: list[Path], kept: Path) -> None:
    kept.parent.mkdir(exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=kept.parent))
    for file in files:
        shutil.copyfile(file, draft / file.name)
    try:
        draft.rename(kept)
    except OSError:  # another process was faster
        shutil.rmtree(draft)
