"""Language models that write: against plain generation, one document at a time."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from cse.errors import CseError
from cse.model.writer import Sampling, load_writer, turns_of
from tests.model.writers import make_writer

TURNS = turns_of("the cat sits\n---\ncat\n---\nthe old {document} book", "x")
DOCUMENTS = ["two friends eats bread near the river", "rain", "a small bird sleeps on the sofa under the sun"]
GREEDY = Sampling(1, 8, 0.0, 1)


def load(folder, turns=TURNS, most=6):
    return load_writer(str(folder), turns, most_tokens=most, device=torch.device("cpu"), bf16=False, option="--model")


@pytest.mark.parametrize(("kind", "chat"), [("causal", False), ("causal", True), ("bloom", False), ("gpt2", False)])
def test_a_batch_writes_what_each_document_alone_would_get(tmp_path, kind, chat):
    folder = make_writer(tmp_path, kind, chat)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    expected = []
    for document in DOCUMENTS:
        cut = " ".join(document.split()[:6])
        turns = ["the cat sits", "cat", f"the old {cut} book"]
        if chat:
            roles = zip(("user", "assistant", "user"), turns, strict=True)
            messages = [{"role": role, "content": turn} for role, turn in roles]
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        else:
            text = "<s>" + "\n\n".join(turns)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        written = model.generate(ids, max_new_tokens=8, do_sample=False)
        expected.append([tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)])
    writer = load(folder)
    assert writer.write(DOCUMENTS, GREEDY, 0) == expected
    assert writer.write(DOCUMENTS, GREEDY, 0) == expected  # what is kept of the first batch stays as it is
    assert len({texts[0] for texts in expected}) >= (3 if kind == "causal" else 2)
    assert writer.lengths(DOCUMENTS) == [6, 1, 6]


def test_a_model_that_reads_apart_gets_the_whole_instruction_with_its_end(tmp_path):
    folder = make_writer(tmp_path, "sequence to sequence")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    expected = []
    for document in DOCUMENTS:
        text = f"the cat sits\n\ncat\n\nthe old {' '.join(document.split()[:6])} book"
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        expected.append([tokenizer.decode(model.generate(ids, max_new_tokens=8)[0], skip_special_tokens=True)])
    assert load(folder).write(DOCUMENTS, GREEDY, 0) == expected
    assert len({texts[0] for texts in expected}) == 3


@pytest.mark.parametrize("kind", ["causal", "sequence to sequence"])
def test_draws_repeat_with_their_seed_and_differ_for_a_document(tmp_path, kind):
    writer, sampling = load(make_writer(tmp_path, kind)), Sampling(3, 8, 1.0, 20)
    first = writer.write(DOCUMENTS, sampling, 1)
    assert first == writer.write(DOCUMENTS, sampling, 1) != writer.write(DOCUMENTS, sampling, 2)
    assert len(set(first[0])) == len(set(first[2])) == 3


def test_documents_of_one_token_and_an_instruction_that_is_the_document_alone(tmp_path):
    writer = load(make_writer(tmp_path), ["{document}"], most=1)
    assert len(writer.write(["cat", "dog"], Sampling(2, 4, 1.0, 5), 0)) == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("write a query", "must stand once, in the last turn"),
        ("{document} and {document}", "must stand once"),
        ("of {document}\n---\nyes\n---\nof {document}", "must stand once"),
        ("example\n---\n{document}", "x: 2 turns"),
        ("---\nyes\n---\n{document}", "x: 3 turns"),
    ],
)
def test_an_instruction_that_cannot_be_used_is_one_line(text, line):
    with pytest.raises(CseError, match=line):
        turns_of(text, "x")


def test_models_that_are_not_there(tmp_path, monkeypatch):
    with pytest.raises(CseError, match="--model: no folder"):
        load("./nothing")
    with pytest.raises(CseError, match=r"--model: no file .*model\.gguf"):
        load(tmp_path / "model.gguf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CseError, match="--model: cannot load"):
        load(tmp_path / "empty")
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(CseError, match=r"--model: cannot load .*model\.gguf: "):
        load(tmp_path / "model.gguf")
    monkeypatch.setattr("cse.model.gguf.is_gguf_available", lambda: False)
    with pytest.raises(CseError, match=r"--model: to read .*model\.gguf, pip install 'cse\[gguf\]'"):
        load(tmp_path / "model.gguf")
