from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from cse.errors import CseError
from cse.runtime import session
from cse.runtime.bundle import MODEL
from cse.runtime.session import no_cuda_reason, open_graph, usable_cpus

NO_GPU = bool(no_cuda_reason())


@pytest.mark.parametrize("reason", ["no NVIDIA driver: libcuda.so.1 does not load", "the NVIDIA driver shows no GPU"])
def test_auto_falls_back_in_one_line_and_cuda_fails_in_one(bundle, monkeypatch, capfd, reason):
    monkeypatch.setattr(session, "no_cuda_reason", lambda: reason)
    attached = open_graph(bundle / MODEL, "auto", 2)
    assert (attached.provider, attached.note) == ("cpu", f"running on cpu ({reason}; 2 threads)")
    with pytest.raises(CseError, match=r"^provider cuda did not attach: .*set provider: cpu$") as caught:
        open_graph(bundle / MODEL, "cuda")
    assert reason in str(caught.value)
    assert capfd.readouterr() == ("", ""), "onnxruntime must not print its own errors"


def test_a_gpu_whose_libraries_do_not_load_is_reported_without_noise(bundle, monkeypatch, capfd):
    """The driver is there, but the CUDA provider does not attach: onnxruntime falls back without an exception."""
    monkeypatch.setattr(session, "no_cuda_reason", lambda: "")
    monkeypatch.setattr(session, "_CUDA", "CUDAExecutionProvider" if NO_GPU else "NoSuchExecutionProvider")
    with pytest.raises(CseError, match="could not load its CUDA libraries"):
        open_graph(bundle / MODEL, "cuda")
    assert open_graph(bundle / MODEL, "auto").provider == "cpu"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("choice", "expected"), [({}, "0"), ({"tf32": True}, "1")])
def test_a_gpu_multiplies_exactly_unless_tf32_is_chosen(bundle, monkeypatch, choice, expected):
    """From Ampere on onnxruntime's default is TF32: 1.4e-4 off torch on MiniLM, where parity allows 1e-5."""
    there = Mock(get_inputs=list, get_outputs=lambda: [SimpleNamespace(shape=["b", 8])])
    there.get_providers.return_value = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(session, "no_cuda_reason", lambda: "")
    monkeypatch.setattr(session.ort, "preload_dlls", lambda: None)
    monkeypatch.setattr(session.ort, "InferenceSession", asked := Mock(return_value=there))
    attached = open_graph(bundle / MODEL, "auto", 1, **choice)
    assert attached.provider == "cuda"
    assert ("TF32" in attached.note) == bool(choice)
    (given,) = asked.call_args_list
    assert given.kwargs["providers"] == [("CUDAExecutionProvider", {"use_tf32": expected}), "CPUExecutionProvider"]


def test_mistakes_are_one_line(bundle, tmp_path, capfd):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes((bundle / MODEL).read_bytes()[:100])
    with pytest.raises(CseError, match=r"broken\.onnx: onnxruntime cannot load it") as caught:
        open_graph(broken, "cpu")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_threads_follow_affinity_and_quota(monkeypatch, tmp_path):
    monkeypatch.setattr(session.os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    for text, expected in (("max 100000", 12), ("250000 100000", 3), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(text)
        files = {"/sys/fs/cgroup/cpu.max": tmp_path / "cpu.max"}
        monkeypatch.setattr(session, "Path", lambda name, files=files: files.get(name, tmp_path / "absent"))
        assert usable_cpus() == expected
