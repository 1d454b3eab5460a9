"""The consumer without torch: output and errors; ``test_small_install.py`` runs it without any training package."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from cse.runtime.onnx_encoder import OnnxEncoder
from deploy import embed as consumer
from tests.deploy.bundles import LINES, write_bundle
from tests.runtime.conftest import DIMENSION


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("deploy") / "bundle")


@pytest.fixture(scope="module")
def expected(bundle) -> np.ndarray:
    return OnnxEncoder(bundle, provider="cpu").encode(LINES)


@pytest.fixture
def embed(capfdbinary, monkeypatch):
    """Run the script in this process, for speed: arguments and exit code in, standard output and error out."""

    def run(*arguments: object, code: int = 0) -> tuple[bytes, str]:
        monkeypatch.setattr(sys, "argv", ["embed.py", *map(str, arguments)])
        try:
            found = consumer.main()
        except SystemExit as stop:
            found = stop.code
        out, err = capfdbinary.readouterr()
        assert found == code, err
        return out, err.decode()

    return run


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\r\n".join(LINES), encoding="utf-8")
    return path


def test_lines_become_json_lines_and_a_file_an_array(embed, bundle, expected, file, tmp_path):
    out, err = embed(bundle, file, "--device", "cpu")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in rows] == LINES
    np.testing.assert_array_equal(np.array([row["embedding"] for row in rows], np.float32), expected)
    assert err == ""
    embed(bundle, file, "--out", tmp_path / "vectors.npy", "--batch-size", 2)
    vectors = np.load(tmp_path / "vectors.npy")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert {path.name for path in tmp_path.iterdir()} == {"lines.txt", "vectors.npy"}
    embed(bundle, file, "--raw", "--out", tmp_path / "raw.npy")
    assert np.abs(np.linalg.norm(np.load(tmp_path / "raw.npy"), axis=1) - 1).max() > 0.1


@pytest.mark.parametrize("out", ["vectors.npy", "vectors.jsonl"])
def test_only_an_earlier_output_is_replaced(embed, bundle, tmp_path, out):
    path, file = tmp_path / out, tmp_path / "in.txt"
    file.write_text("the cat\n", encoding="utf-8")
    for _ in range(2):
        embed(bundle, file, "--out", path)
    assert len(path.read_bytes()) > 20
    path.write_text("one sentence a line\n", encoding="utf-8")
    assert "is not an earlier output" in embed(bundle, file, "--out", path, code=2)[1]
    assert path.read_text(encoding="utf-8") == "one sentence a line\n"
    path.unlink()
    os.mkfifo(path)
    assert "is not a regular file" in embed(bundle, file, "--out", path, code=2)[1]
    assert path.is_fifo()
    assert sorted(found.name for found in tmp_path.iterdir()) == ["in.txt", out]


def test_nothing_in_is_nothing_out(embed, bundle, tmp_path):
    assert embed(bundle, os.devnull) == (b"", "")
    embed(bundle, os.devnull, "--out", tmp_path / "none.npy")
    assert np.load(tmp_path / "none.npy").shape == (0, DIMENSION)


@pytest.mark.parametrize(
    ("arguments", "text", "expected"),
    [
        (["nowhere", "FILE"], b"", "nowhere: no bundle here"),
        (["BUNDLE", "missing.txt"], b"", "No such file or directory: missing.txt"),
        (["BUNDLE", "FILE"], b"caf\xe9\n", "not UTF-8"),
        (["BUNDLE", "FILE"], b"the cat\nbad\n", "not finite"),
        (["BUNDLE", "FILE", "--batch-size", "0"], b"the", "batch_size: 0"),
        (["BUNDLE", "FILE", "--out", "no/such/folder/x.npy"], b"the", "No such file or directory"),
        ([], b"", "bundle"),
    ],
)
def test_a_mistake_is_one_line(embed, bundle, file, arguments, text, expected):
    file.write_bytes(text)
    names = {"BUNDLE": bundle, "FILE": file}
    _, message = embed(*(names.get(word, word) for word in arguments), code=2)
    assert message.startswith("error: "), message
    assert message.count("\n") == 1, message
    assert expected in message


def test_a_failed_run_leaves_the_old_file(embed, bundle, file):
    out = file.parent / "vectors.jsonl"
    out.write_text('{"text": "old"}')
    file.write_text("the cat\nbad\n")
    assert "not finite" in embed(bundle, file, "--out", out, code=2)[1]
    assert out.read_text() == '{"text": "old"}'
    assert sorted(file.parent.iterdir()) == [file, out]
