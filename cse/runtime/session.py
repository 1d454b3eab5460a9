"""What runs a graph: onnxruntime's execution providers, verified to attach, or OpenVINO, in bfloat16 if it can."""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import os
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, get_args

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from cse.choices import Provider
from cse.errors import CseError, error_line, nearest

_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_FATAL, _WARNING = 4, 2
# onnxruntime 1.31's fused Add + LayerNormalization is several times slower on CPU than the two nodes
# (measured: 12 of them take 9 % of MiniLM's time fused, 2 % unfused); on a GPU the fusion pays off.
_SLOW_ON_CPU = ["SkipLayerNormFusion"]
_OPENING = threading.Lock()


class Graph(Protocol):
    """What computes the vectors of a batch; several threads may run it at once.

    Attributes:
        multiple: of tokens, to which batches are padded.
        prompts: whether it is given prompts; else they are its constants.
    """

    multiple: int
    prompts: bool

    def run(self, given: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return vectors (b, d) for inputs by name."""


class OnnxruntimeGraph(Graph):
    """A graph in onnxruntime.

    Args:
        device: whose memory inputs and output are bound to, which takes one copy each way; None: no binding.
    """

    multiple = 1

    def __init__(self, session: ort.InferenceSession, device: str | None = None) -> None:
        self.session, self.device = session, device
        self.prompts = any(value.name == "prompt" for value in session.get_inputs())

    def run(self, given: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return vectors, see ``Graph``."""
        if self.device is None:
            return self.session.run(None, dict(given))[0]
        binding = self.session.io_binding()
        for name, array in given.items():
            value = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), self.device, 0)
            binding.bind_ortvalue_input(name, value)
        for output in self.session.get_outputs():
            binding.bind_output(output.name, self.device)
        self.session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()[0]


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


class OpenvinoGraph(Graph):
    """A graph in OpenVINO, each batch on its share of the CPUs.

    Attributes:
        precision: of matrix products, ``bf16``, or ``fp32`` on a CPU that does not multiply in it.
    """

    multiple = 4  # a new shape takes up to five times as long, and odd lengths are slower

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
        self.prompts = any(each.get_any_name() == "prompt" for each in self._compiled.inputs)
        self._idle: deque[Any] = deque()

    def run(self, given: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Return vectors, see ``Graph``."""
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        try:
            return request.infer(dict(given), share_inputs=True)[0]
        finally:
            self._idle.append(request)


@dataclass(frozen=True)
class Attached:
    """A graph, its provider (``cpu``, ``cuda`` or ``openvino``), and a line on why it was chosen."""

    graph: Graph
    provider: str
    note: str


def open_graph(
    path: Path, provider: str = "auto", threads: int | None = None, *, at_once: int = 1, tf32: bool = False
) -> Attached:
    """Load a graph on the requested provider.

    Args:
        provider: ``cpu``, ``cuda`` (which must attach), ``auto`` (CUDA if it attaches, else the CPU) or ``openvino``.
        at_once: batches that run side by side on the CPU, each on its share of the threads.
        tf32: whether CUDA may multiply in TF32, onnxruntime's default on NVIDIA Ampere and later.
    """
    names = get_args(Provider)
    if provider not in names:
        raise CseError(f"provider: {provider!r} is not one of {', '.join(names)}{nearest(provider, names)}")
    threads = usable_cpus() if threads is None else threads
    if threads < 1:
        raise CseError(f"threads: {threads} is too few; give 1 or more, or leave it out")
    on_threads = f"{threads} thread{'s' if threads > 1 else ''}"
    if provider == "openvino":
        graph = OpenvinoGraph(path, threads, at_once)
        return Attached(graph, "openvino", f"running on openvino ({graph.precision}; {on_threads})")
    reason = "requested" if provider == "cpu" else no_cuda_reason()
    if provider != "cpu" and not reason:
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()
        session = _session(path, [(_CUDA, {"use_tf32": "1" if tf32 else "0"}), _CPU], threads)
        if session.get_providers()[0] == _CUDA:
            note = f"running on cuda{' in TF32' if tf32 else ''}{_clash()}"
            return Attached(OnnxruntimeGraph(session, "cuda"), "cuda", note)
        reason = "the GPU is there, but onnxruntime could not load its CUDA libraries (CUDA 12 or 13 and cuDNN 9)"
    if provider == "cuda":
        raise CseError(f"provider cuda did not attach: {reason}; fix that or set provider: cpu{_clash()}")
    session = _session(path, [_CPU], max(1, threads // at_once))
    return Attached(OnnxruntimeGraph(session), "cpu", f"running on cpu ({reason}; {on_threads}){_clash()}")


def no_cuda_reason() -> str:
    """Return why CUDA is unavailable, or ``""``; asks the driver, to keep onnxruntime from logging errors."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver: libcuda.so.1 does not load"
    if _CUDA not in ort.get_available_providers():
        return "this onnxruntime has no CUDA provider; install onnxruntime-gpu"
    code = driver.cuInit(0)
    if code != 0:
        return f"the NVIDIA driver does not start: cuInit returned {code}"
    count = ctypes.c_int(0)
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the NVIDIA driver shows no GPU"
    return ""


def usable_cpus() -> int:
    """Return the number of CPUs this process may use: its affinity, limited by the container's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    for limit, period in (
        ("/sys/fs/cgroup/cpu.max", None),
        ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
    ):
        with contextlib.suppress(OSError, ValueError):
            words = (Path(limit).read_text() + (" " + Path(period).read_text() if period else "")).split()
            quota = int(words[0])  # "max" without a quota; int() then raises ValueError
            if quota > 0:
                cpus = min(cpus, math.ceil(quota / int(words[1])))
    return max(1, cpus)


def _clash() -> str:
    """Return a warning if two distributions of onnxruntime have written over each other's files."""
    try:
        metadata.version("onnxruntime"), metadata.version("onnxruntime-gpu")
    except metadata.PackageNotFoundError:
        return ""
    return "; onnxruntime and onnxruntime-gpu are both installed and overwrite each other: uninstall one"


def _session(path: Path, providers: list[str | tuple[str, dict[str, str]]], threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL  # errors are raised; the log would only repeat them
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # threads that wait for the next batch would take the core that brings it (measured: a fifth more requests/s)
    options.add_session_config_entry("session.force_spinning_stop", "1")
    disabled: dict[str, Any] = {"disabled_optimizers": _SLOW_ON_CPU} if providers == [_CPU] else {}
    ort.set_default_logger_severity(_FATAL)
    try:
        return ort.InferenceSession(str(path), options, providers=providers, **disabled)
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise CseError(
            f"{path}: onnxruntime cannot load it: {error_line(error)[:300]}; export the bundle again"
        ) from None
    finally:
        ort.set_default_logger_severity(_WARNING)
