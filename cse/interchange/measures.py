"""The measures of a model for its card, with their spread where it is known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from cse.errors import CseError
from cse.evaluation.dev_facts import START, dev_of
from cse.interchange.model_folder import ModelFolder
from cse.outputs import Kind

_BARE = "backbone"  # name of the bare backbone in data/metrics/evaluation.json


class Measure(NamedTuple):
    """One number, and the standard deviation where repetitions or seeds gave one."""

    value: float
    spread: float | None = None

    def __str__(self) -> str:
        return f"{self.value:.2f}" if self.spread is None else f"{self.value:.2f} ± {self.spread:.2f}"


class Measures(NamedTuple):
    """Measures by name, of the model and of its bare backbone, and what their spread is over."""

    model: dict[str, Measure]
    backbone: dict[str, Measure]
    spread_over: str = ""


def find_measures(model: ModelFolder, files: Sequence[Path]) -> Measures:
    """Return what is known of a model's quality.

    Args:
        model: the model; its manifest may hold scores.
        files: ``record.json`` of evaluations, or ``data/metrics/evaluation.json``; several are taken as seeds of one
            system, and the spread is over them.
    """
    if not files:
        return _recorded(model)
    runs = [_read(path) for path in files]
    if len(runs) == 1:
        drawn = any(measure.spread is not None for measure in runs[0].model.values())
        return runs[0]._replace(spread_over="the drawn samples of the task" if drawn else "")
    over = f"{len(runs)} evaluations"
    return Measures(_joined([run.model for run in runs]), _joined([run.backbone for run in runs]), over)


def _joined(runs: Sequence[Mapping[str, Measure]]) -> dict[str, Measure]:
    """Return mean and standard deviation over runs of the measures that all of them have."""
    names = [name for name in runs[0] if all(name in run for run in runs)]
    values = {name: [run[name].value for run in runs] for name in names}
    return {name: Measure(fmean(found), pstdev(found)) for name, found in values.items()}


def _recorded(model: ModelFolder) -> Measures:
    """Return the measures in a model's manifest."""
    facts: Any = model.manifest.get("facts") if model.kind == Kind.CHECKPOINT else model.manifest.get("metrics")
    if not isinstance(facts, dict):
        return Measures({}, {})
    train = facts if model.kind == Kind.CHECKPOINT else facts.get("train")
    known = train if isinstance(train, dict) else {}
    scores = [(dev_of(known), ""), (dev_of(known, START), " before training")]
    found = _numbers({f"{score.label}{when}": score.value for score, when in scores if score is not None})
    tables = facts.get("evaluation") if model.kind == Kind.BUNDLE else None
    scored = _from_table(tables) if isinstance(tables, dict) else Measures({}, {})
    return Measures(found | scored.model, scored.backbone)


def _read(path: Path) -> Measures:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CseError(f"--metrics {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise CseError(
            f"--metrics {path}: not valid JSON; give a record.json or data/metrics/evaluation.json"
        ) from None
    found = Measures({}, {})
    if isinstance(tree, dict) and isinstance(tree.get("scores"), dict):
        found = Measures(_from_record(tree["scores"]), {})
    elif isinstance(tree, dict) and all(isinstance(value, dict) for value in tree.values()):
        found = _from_table(tree)
    if not found.model:
        raise CseError(f"--metrics {path}: holds no measures; give a record.json or data/metrics/evaluation.json")
    return found


def _from_table(tree: Mapping[str, Any]) -> Measures:
    """Read ``{model: {measure: number}}``; the bare backbone is one of the models."""
    models = {name: _numbers(scores) for name, scores in tree.items() if isinstance(scores, dict)}
    trained = next((scores for name, scores in models.items() if name != _BARE), {})
    return Measures(trained, models.get(_BARE, {}))


def _from_record(scores: Mapping[str, Any]) -> dict[str, Measure]:
    """Read the scores of a record: Spearman times 100 by task, CxC-STS with its deviation, own tasks, accuracies."""
    tasks = scores.get("sts")
    found = _numbers({name: _part(score, "all") for name, score in _items(tasks)})
    found |= _numbers({name: _part(score, "all") for name, score in scores.items() if name.startswith("Avg.")})
    cxc = scores.get("cxc")
    if isinstance(cxc, dict) and _numbers(cxc).keys() >= {"mean", "std"}:
        found["CxC-STS"] = Measure(float(cxc["mean"]), float(cxc["std"]))
    transfer = scores.get("transfer")
    own = [(name, _part(score, "main"), _part(score, "values")) for name, score in _items(scores.get("tasks"))]
    found |= _numbers({f"{name} ({main})": _part(values, main) for name, main, values in own})
    accuracies = _items(transfer.get("transfer")) if isinstance(transfer, dict) else ()
    return found | _numbers({f"{name} (accuracy)": _part(score, "accuracy") for name, score in accuracies})


def _items(tree: Any) -> Iterable[tuple[str, Any]]:
    return tree.items() if isinstance(tree, dict) else ()


def _part(tree: Any, key: str) -> Any:
    return tree.get(key) if isinstance(tree, dict) else None


def _numbers(tree: Mapping[str, Any]) -> dict[str, Measure]:
    return {name: Measure(float(value)) for name, value in tree.items() if type(value) in (int, float)}
