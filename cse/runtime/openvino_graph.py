"""Run a graph with OpenVINO, which multiplies in bfloat16 on processors that can."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from cse.errors import CseError, error_line

_OPENING = threading.Lock()


@cache
def _core() -> Any:
    """Return OpenVINO's core, one for the process.

    On its first use it gives the thread a stack for signals of its own, and a core that ends takes it away without
    giving back the one before (2026.4): Python's next signal would end the process without a word. Its table of numpy's
    types is made here, by one thread: two that want it at the same moment wait for each other for ever (2026.4).
    """
    try:
        import openvino
    except ModuleNotFoundError:
        raise CseError("provider openvino: OpenVINO is not installed: pip install 'cse[cpu,openvino]'") from None
    openvino.Type.i64.to_dtype()
    return openvino.Core()


class OpenvinoGraph:
    """A graph that several threads may run at once, each batch on its share of the CPUs.

    Attributes:
        shape: of its output; a size that may vary is -1.
        precision: of matrix products, ``bf16``, or ``fp32`` on a CPU that does not multiply in it.
    """

    # of tokens, to which batches are padded: a new shape takes up to five times as long, and odd lengths are slower
    multiple: ClassVar[int] = 4

    def __init__(self, path: Path, threads: int, at_once: int = 1) -> None:
        with _OPENING:
            core = _core()
        half = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        self.precision = "bf16" if half else "fp32"
        options = {
            "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": at_once,
            "ENABLE_CPU_PINNING": False,  # every process would pin its threads to the same CPUs
        }
        try:
            self._compiled = core.compile_model(core.read_model(os.fspath(path)), "CPU", options)
        except Exception as error:  # its exceptions are RuntimeErrors with a stack
            raise CseError(
                f"{path}: OpenVINO cannot load it: {error_line(error)[:300]}; use provider: cpu, or export again"
            ) from None
        self.inputs = {each.get_any_name() for each in self._compiled.inputs}
        self.shape = [
            size.get_length() if size.is_static else -1 for size in self._compiled.outputs[0].get_partial_shape()
        ]
        self._idle: deque[Any] = deque()

    def run(self, given: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the vectors (b, d) for inputs by name."""
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        try:
            return [request.infer(dict(given), share_inputs=True)[0]]
        finally:
            self._idle.append(request)
