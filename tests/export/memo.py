"""A graph is traced once in a test run: tracing takes longer than anything else that tests do with a model.

What determines a graph is all that its module holds, so that is the key. A module that cannot be pickled, or that
pickles to other bytes, is traced anew.
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
from typing import Any

import torch
from torch import nn

from cse.export import graph

Export = Callable[[nn.Module, dict[str, Any], Path], None]


def remembered(export: Export, folder: Path) -> Export:
    """Return ``export`` with a memory: what it wrote for a module, it copies when an equal one comes."""

    @functools.wraps(export)
    def once(module: nn.Module, given: dict[str, Any], path: Path) -> None:
        try:
            content = _content((module, given, path.name, graph.EXTERNAL_DATA_BYTES))
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


class _Pickler(pickle.Pickler):
    """Writes a tensor as its values: torch's own form has addresses in it."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            return tuple, ((type(thing).__name__, thing.detach().numpy()),)
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
