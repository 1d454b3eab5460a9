"""The classifier of a model made of labelled texts: a linear layer on its unit vectors, with calibrated probabilities.

Of a bundle, and of a folder for sentence-transformers, it is a file; of a bank's domain it is in the domain's.
``classifier.safetensors`` holds ``weight (c, d)`` and ``bias (c,)``, float32, and in its metadata the labels and what
held-out rows said: ``p(label | v) = softmax(weight v + bias)``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cse.artifact import check_limits, fields_of, short
from cse.errors import CseError, counted

CLASSIFIER = "classifier.safetensors"
_FACTS, _AGAIN = "cse", "export the bundle again"


class Told(NamedTuple):
    """What a classifier says of a text.

    Attributes:
        label: the likeliest.
        probability: of that label, from 0 to 1.
        known: False: below the threshold, so the text may well have none of the labels; ask a person.
    """

    label: str
    probability: float
    known: bool


@dataclass(frozen=True)
class ClassifierFacts:
    """What held-out rows said of a classifier.

    Attributes:
        names: whether the labels' own names were rows too.
        rows: those that calibrated it, each as a classifier told it that had not seen it; 0: there were none.
        accuracy: share of these that got their own label.
        calibration_error: expected calibration error on them (Naeini et al. 2015), in 15 bins or fewer.
        threshold: probability below which a text is told as unknown.
        false_alarms: share of these that the threshold calls unknown though they have one of the labels.
        temperature: of its logits, for a weight of norm 1.
        unmeasured: labels that none of these rows has.
    """

    labels: list[str]
    names: bool
    rows: int = 0
    accuracy: float = 0.0
    calibration_error: float = 0.0
    threshold: float = 0.0
    false_alarms: float = 0.0
    temperature: float = 0.0
    unmeasured: int = 0

    def __str__(self) -> str:
        labels = f"{len(self.labels):,} labels{' and their names' if self.names else ''}"
        if not self.rows:
            return f"{labels}; nothing told what its probabilities are worth: not calibrated"
        none = f"; of {counted(self.unmeasured, 'label')} no such row says anything" if self.unmeasured else ""
        return (
            f"{labels}: {100 * self.accuracy:.1f} % of {self.rows:,} unseen rows right, calibration error "
            f"{100 * self.calibration_error:.1f} %; below {self.threshold:.2f} a text is unknown, as "
            f"{100 * self.false_alarms:.0f} % of these rows are{none}"
        )


@dataclass(frozen=True, eq=False)
class Classifier:
    """A linear layer on unit vectors ``(n, d)``; labels are in alphabetical order."""

    facts: ClassifierFacts
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]

    def logits(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what softmax makes probabilities of ``(n, c)``."""
        return vectors @ self.weight.T + self.bias

    def probabilities(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the probability of each label ``(n, c)``."""
        logits = self.logits(vectors)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def classify(self, vectors: NDArray[np.float32]) -> list[Told]:
        """Return the likeliest label of each text, given its unit vector."""
        found = self.probabilities(vectors)
        return [
            Told(self.facts.labels[best], chance, chance >= self.facts.threshold)
            for best, chance in zip(found.argmax(axis=1).tolist(), found.max(axis=1).tolist(), strict=True)
        ]

    def write(self, folder: Path) -> None:
        """Write the classifier into the folder of a model."""
        tensors = {"weight": np.ascontiguousarray(self.weight, "<f4"), "bias": np.ascontiguousarray(self.bias, "<f4")}
        (folder / CLASSIFIER).write_bytes(save(tensors, {_FACTS: json.dumps(asdict(self.facts))}))


def read_facts(tree: object, path: Path, again: str) -> ClassifierFacts:
    """Return the facts of a classifier from JSON."""
    if not isinstance(tree, dict):
        raise CseError(f"{path}: no classifier: its facts are no object; {again}")
    facts = fields_of(ClassifierFacts, tree, path, again)
    shares = dict.fromkeys(("accuracy", "calibration_error", "threshold", "false_alarms"), (0, 1))
    check_limits({name: getattr(facts, name) for name in shares}, shares, path, again)
    return facts


def read_classifier(folder: Path | str, dimension: int) -> Classifier | None:
    """Return the classifier of a bundle for vectors of so many dimensions; None where it has none."""
    path = Path(folder) / CLASSIFIER
    if not path.is_file():
        return None
    try:
        with safe_open(path, "numpy") as file:
            tree = json.loads((file.metadata() or {})[_FACTS])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise CseError(f"{path}: no classifier: {short(str(error))}; {_AGAIN}") from None
    facts = read_facts(tree, path, _AGAIN)
    wanted = {"weight": (len(facts.labels), dimension), "bias": (len(facts.labels),)}
    found = {name: tensors[name].shape for name in wanted if name in tensors}
    if found != wanted or any(tensors[name].dtype != np.float32 for name in wanted):
        raise CseError(f"{path}: its tensors are not those of {len(facts.labels)} labels in {dimension} dimensions")
    return Classifier(facts, tensors["weight"], tensors["bias"])
