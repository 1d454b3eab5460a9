"""The bundle of the bare MiniLM that is written without torch: the same model as torch's export, to the bit."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from cse.export.bank import SENTENCES
from cse.export.bundle import write_bundle
from cse.model.declared import MINILM
from cse.model.sentence_encoder import SentenceEncoder
from cse.runtime.onnx_encoder import OnnxEncoder

INDEX = "import sys; sys.modules['torch'] = None; from cse.cli import main; main()"


@pytest.mark.slow
def test_the_first_index_needs_no_torch_and_finds_what_its_export_finds(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(filter(None, SENTENCES)))
    command = [sys.executable, "-c", INDEX, "index", "corpus.txt", "--out", "table"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with write_bundle(SentenceEncoder.load(MINILM), tmp_path / "exported", normalize=True, metrics={}):
        pass
    own, exported = tmp_path / "data/bare", tmp_path / "exported"
    one, other = (OnnxEncoder(folder, provider="cpu").encode(SENTENCES, normalize=True) for folder in (own, exported))
    np.testing.assert_allclose(one, other, atol=1e-6)
    facts = [json.loads((folder / "bundle.json").read_text()) for folder in (own, exported)]
    for each in facts:
        for name in ("files", "seal"):
            del each[name]
        del each["domain"]["versions"]
    assert facts[0] == facts[1], "an index of one is searched with the other, and with query sides on it"
