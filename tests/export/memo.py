"""A graph is traced once in a test run: tracing takes longer than anything else that tests do with a model.

The key is all that its module holds, and the code, but of a weight only its shape and what a tracer may see in it:
where each number of the graph is one weight's, models that differ in numbers share a trace. A module that cannot be
pickled is traced anew.
"""

import fcntl
import functools
import hashlib
import io
import json
import pickle
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from torch import nn

from cse.runtime.tokens import Tokenizers

Export = Callable[[nn.Module, dict[str, Any], Path], None]
# what no pass over ids and mask reads: what a model, its configuration or a backbone says of itself, and an encoder of
# texts, rates of dropout and training
UNSEEN = {
    "PreTrainedConfig": ("_name_or_path", "architectures"),
    "PreTrainedModel": ("name_or_path",),
    "Backbone": ("declared", "pooling", "tokenizer", "around", "special_ids"),
    "Encoder": ("texts", "widths", "max_length", "tokenizer", "text_tokenizers", "bare", "loss_pooler"),
    "Prompt": ("dropout",),
}
PLACES = "places.json"  # of weights in a graph that other weights can be put into


def remembered(graph: ModuleType, folder: Path) -> Export:
    """Return the exporter's ``_export`` with a memory in a folder: for a module equal to an earlier one, the same."""
    export: Export = graph._export
    assert not hasattr(export, "__wrapped__"), "a memory of a memory waits for its own lock"
    project = Path(graph.__file__ or "").parents[1]
    code = [path.read_bytes() for part in ("export", "model") for path in sorted((project / part).rglob("*.py"))]
    folder.mkdir(parents=True, exist_ok=True)

    @functools.wraps(export)
    def once(module: nn.Module, given: dict[str, Any], path: Path) -> None:
        thing = (module, given, path.name, graph.EXTERNAL_DATA_BYTES, code)
        weights = _weights(module)
        try:
            kind = folder / _digest(thing, _traits(weights))
        except Exception:
            export(module, given, path)
            return
        with kind.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # who comes meanwhile waits for the trace
            kept = kind if kind.is_dir() else folder / _digest(thing, {})
            if not kept.is_dir():
                export(module, given, path)
                places = _places(path, weights) if weights else None
                _keep(path, kept if places is None else kind, places)
                return
            for file in kept.glob("*.onnx*"):
                shutil.copyfile(file, path.with_name(file.name))
            if (kept / PLACES).is_file():
                _put(weights, json.loads((kept / PLACES).read_text()), path)

    return once


def _weights(module: nn.Module) -> dict[str, torch.Tensor]:
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: tensor.detach() for name, tensor in named if tensor.is_floating_point()}


def _traits(weights: dict[str, torch.Tensor]) -> dict[Any, Any]:
    """What a tracer may see in a weight, by its address: equal ones become one, and zeros and ones may go."""
    first: dict[bytes, str] = {}
    found = {}
    for name, tensor in weights.items():
        content = tensor.numpy().tobytes()
        constant = tensor.flatten()[0].item() if tensor.numel() and (tensor == tensor.flatten()[0]).all() else None
        found[tensor.data_ptr(), tuple(tensor.shape)] = (tuple(tensor.shape), first.setdefault(content, name), constant)
    return found


class _Pickler(pickle._Pickler):
    """Writes what is equal to equal bytes: pickle's own depend on which equal texts, tuples and dicts are one object.

    A tensor is written as its values, torch's own form has addresses in it, or as ``traits`` has it; of a path that
    there is one, of a backbone's files nothing; a set in order; a tokenizer without its copies, which the first text
    makes; a model and its configuration without what no pass reads; and a function inside another as what it closes
    over.
    """

    def __init__(self, stream: io.BytesIO, traits: dict[Any, Any]) -> None:
        super().__init__(stream)
        self.traits = traits

    def memoize(self, thing: Any) -> None:
        if not isinstance(thing, str | bytes | tuple | list | dict | set | frozenset):
            super().memoize(thing)

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            value = thing.detach().numpy()
            return tuple, ((type(thing).__name__, self.traits.get((thing.data_ptr(), tuple(thing.shape)), value)),)
        if isinstance(thing, Path | threading.local):
            return type(thing), ()
        if type(thing).__name__ == "BackboneFiles":  # by name: a test of this memory has no cse/model of ours
            return tuple, ()
        unseen = [name for kind in type(thing).__mro__ for name in UNSEEN.get(kind.__name__, ())]
        if unseen:
            return tuple, ((type(thing), {k: v for k, v in vars(thing).items() if k not in unseen}),)
        if isinstance(thing, Tokenizers):
            return Tokenizers, (thing._tokenizer,)
        if isinstance(thing, FunctionType) and "<locals>" in thing.__qualname__:
            return tuple, ((thing.__qualname__, [cell.cell_contents for cell in thing.__closure__ or ()]),)
        if isinstance(thing, set | frozenset):  # each process has an order of its own
            return tuple, (sorted(thing, key=repr),)
        if isinstance(thing, OrderedDict) and all(isinstance(key, int) for key in thing):  # hooks, counted by process
            return tuple, (list(thing.values()),)
        return NotImplemented


def _digest(thing: Any, traits: dict[Any, Any]) -> str:
    _Pickler(stream := io.BytesIO(), traits).dump(thing)
    return hashlib.sha256(stream.getvalue()).hexdigest()


def _places(path: Path, weights: dict[str, torch.Tensor]) -> dict[str, tuple[str, bool]] | None:
    """Return for each constant of a graph which weight it is, and whether turned; None if one is no weight."""
    found = {}
    for constant in onnx.load(str(path)).graph.initializer:
        numbers = numpy_helper.to_array(constant).ravel()
        if numbers.dtype.kind != "f" or numbers.size == 1:
            continue
        for name, weight in sorted(weights.items(), key=lambda one: one[0] != constant.name):
            if weight.numel() == numbers.size and constant.raw_data:
                ways = [turned for turned in (False, True) if (_numbers(weight, turned) == numbers).all()]
                if ways:
                    found[constant.name] = (name, ways[0])
                    break
        else:
            return None
    return found


def _numbers(weight: torch.Tensor, turned: bool) -> Any:
    """A weight's numbers in a row, or those of what the graph keeps of it: a matrix transposed, a prompt by columns."""
    return (weight.transpose(0, 1) if turned and weight.ndim > 1 else weight).contiguous().numpy().ravel()


def _put(weights: dict[str, torch.Tensor], places: dict[str, tuple[str, bool]], path: Path) -> None:
    model = onnx.load(str(path), load_external_data=False)
    for constant in model.graph.initializer:
        if constant.name in places:
            name, turned = places[constant.name]
            content = _numbers(weights[name], turned).tobytes()
            beside = {entry.key: entry.value for entry in constant.external_data}
            if beside:
                with path.with_name(beside["location"]).open("r+b") as file:
                    file.seek(int(beside["offset"]))
                    file.write(content)
            else:
                constant.raw_data = content
    onnx.save(model, str(path))


def _keep(path: Path, kept: Path, places: dict[str, tuple[str, bool]] | None) -> None:
    draft = kept.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for file in (path, path.with_name(f"{path.name}.data")):
        if file.exists():
            shutil.copyfile(file, draft / file.name)
    if places is not None:
        (draft / PLACES).write_text(json.dumps(places))
    draft.rename(kept)
