"""What replicas tell each other, so that each of them can answer for all: counters, drift and health."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client import Metric

from cse.runtime.sketch import Sketch

SILENT_SECONDS = 10.0  # without news, after which a replica counts as gone
_FORGET_SECONDS = 600.0  # after which only the sum of what it counted is kept
_COUNTING = ("counter", "histogram")
_LARGEST = "cse_model_info"  # 1 in every replica
OF_ALL = "cse_drift_distance"  # measured over all replicas by the one that is asked


@dataclass(frozen=True)
class Snapshot:
    """What a replica knows at one moment.

    Attributes:
        metrics: all its series.
        alive: whether every thread that computes still runs.
        ready: whether it would take a request.
        sketches: of the vectors that each model has given, by name and version.
    """

    metrics: list[Metric]
    alive: bool = True
    ready: bool = False
    sketches: dict[tuple[str, str], Sketch] = field(default_factory=dict)


class Alone:
    """The only replica there is.

    Attributes:
        told: the series that this replica told the others last; they cannot repeat an answer with newer ones.
    """

    told: list[Metric] | None = None

    def start(self, own: Callable[[], Awaitable[Snapshot]]) -> None:
        """Begin to tell the others what ``own`` returns. Called in the event loop."""

    def stop(self) -> None:
        """Tell them nothing more."""

    async def others(self) -> list[Snapshot]:
        """Return what the others have told last."""
        return []


class Board:
    """Where each replica leaves what it knows and reads what the others left.

    What a replica has counted stays when it is gone, so that no sum falls.
    """

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, Snapshot]] = {}
        self._gone: list[Metric] = []

    def tell(self, replica: str, snapshot: Snapshot | None) -> list[Snapshot]:
        """Take what a replica knows, None when it ends, and return what is known of the others."""
        now = time.monotonic()
        if snapshot is not None:
            self._told[replica] = now, snapshot
        elif replica in self._told:
            self._told[replica] = now - SILENT_SECONDS, self._told[replica][1]
        for name, (when, last) in list(self._told.items()):
            if now - when >= _FORGET_SECONDS:
                self._gone = summed([self._gone, _counted(last.metrics)])
                del self._told[name]
        found = [self._now(*told, now) for name, told in self._told.items() if name != replica]
        return [*found, Snapshot(self._gone)] if self._gone else found

    def _now(self, when: float, last: Snapshot, now: float) -> Snapshot:
        return last if now - when < SILENT_SECONDS else Snapshot(_counted(last.metrics))


def summed(parts: Iterable[Sequence[Metric]]) -> list[Metric]:
    """Return the sum of each series over the replicas; the asked one's own drift, and 1 for what any has in service."""
    every = list(parts)
    found: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for index, part in enumerate(every):
        for metric in part:
            found.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            series = values.setdefault(metric.name, {})
            for sample in metric.samples if metric.name != OF_ALL or index == 0 else ():
                key = sample.name, tuple(sample.labels.items())
                before = series.get(key, 0.0)
                series[key] = max(before, sample.value) if metric.name == _LARGEST else before + sample.value
    for name, metric in found.items():
        for (series_name, labels), value in values[name].items():
            metric.add_sample(series_name, dict(labels), value)
    return list(found.values())


def _counted(metrics: Iterable[Metric]) -> list[Metric]:
    return [metric for metric in metrics if metric.type in _COUNTING]
