"""What cannot be a model, a part of one or a start of one: refused in one line that says what, where and what to do."""

import functools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from cse.model.checkpoint import describe, save_checkpoint
from cse.model.declared import declared_by
from cse.model.mlm_head import load_generator, load_mlm_head
from cse.model.post import LinearMap, fit_discriminant, fit_whitening
from cse.model.sentence_encoder import SentenceEncoder, load_checkpoint
from cse.model.static_words import find_words, load_words, read_words
from cse.settings.load import check_settings
from cse.training.encoder import encoder_from, start_from_checkpoint
from cse.training.fit_post import fit_linear
from tests.model.families import make_family_folder
from tests.model.test_declared import declare
from tests.model.test_post import anisotropic, labelled
from tests.parts import backbone_of, new_flow, new_prompt, new_template, refusal, sentence_encoder
from tests.rows import write_lines
from tests.tiny import make_backbone_folder


class Models:
    """The tiny BERT and models of other families, and a folder to write others into."""

    def __init__(self, folders: dict[str, Path], folder: Path) -> None:
        self.folders, self.folder = folders, folder

    @functools.cached_property
    def bert(self):
        return backbone_of(self.folders["bert"])

    def family(self, name, **changes):
        return backbone_of(make_family_folder(self.folder / name, name, **changes))

    def file(self, *lines):
        return write_lines(self.folder / "glove.txt", lines)

    def configured(self, file="config.json", **changes):
        """The tiny BERT whose configuration, or another file, says something else."""
        folder = shutil.copytree(self.folders["bert"], self.folder / "model")
        (folder / file).parent.mkdir(exist_ok=True)
        usual = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
        (folder / file).write_text(json.dumps(usual | changes))
        return backbone_of(folder)

    def reads(self, prompt, longest, **more):
        """An encoder to train on rows of so many tokens."""
        settings = check_settings({"prompt": {"length": prompt}, "train": {"max_length": longest}} | more, "test")
        return encoder_from(self.bert.use_as(max_length=settings.backbone.max_length, texts=None), settings)

    def sided(self, kind, dimension=32, side="query"):
        """A map of this kind behind one side."""
        encoder = SentenceEncoder(self.bert, side=side)
        encoder.post = LinearMap.of(kind, np.zeros(32), np.eye(32)[:, :dimension])
        return describe(encoder)

    def started(self, kind="key_value", *, length=5, of=None, **options):
        """A prompt that starts from a checkpoint of five vectors, and stays as it was where it is refused."""
        save_checkpoint(
            sentence_encoder(of or self.bert, new_prompt("key_value", of or self.bert, length=5)), self.folder
        )
        prompt = new_prompt(kind, self.bert, length=length, **options)
        before = prompt.values().clone()
        try:
            start_from_checkpoint(prompt, self.bert, self.folder)
        finally:
            assert (prompt.values() == before).all()


def alike(*sizes):
    """Vectors of labels of these sizes that differ by label alone."""
    vectors, labels = labelled([*sizes])
    return fit_discriminant(vectors[: len(sizes)][np.unique(labels, return_inverse=True)[1]], labels, 0.1)


def holed(fit):
    vectors = anisotropic(5000)
    vectors[4500, 3] = np.nan
    return fit(vectors)


NINE = [str(row % 9) for row in range(5000)]
TEMPLATE = "the man reads {sentence} near {mask} ."
BERTS = "bert, roberta, electra, distilbert, mpnet, albert, modernbert, nomic_bert, gte, eurobert, llama, qwen3, gemma3"
POOLS = "1_Pooling/config.json"
NOT_LAST = ("Transformer", "Pooling", "Normalize", "Dense")
REPEATED = {"augment": {"repeat_words": 0.32, "repeat_rule": "paper"}}
# what is said, and what it is said of
REFUSED = [
    ("no folder ./nowhere", lambda m: backbone_of("./nowhere")),
    ("no folder a/b/c", lambda m: backbone_of("a/b/c")),
    (f"backbone.name: .*; did you mean 'modernbert'.*{BERTS}", lambda m: m.configured(model_type="modern-bert")),
    ("needs code of its own, which is not run", lambda m: m.configured(model_type="new", auto_map={"AutoModel": "x"})),
    ("pad_token_id is None; set it to any token, padding is masked", lambda m: m.family("qwen3", pad_token_id=None)),
    ("pooling_mode_max_tokens", lambda m: m.configured(POOLS, pooling_mode_max_tokens=True)),
    ("pools by max", lambda m: m.configured(POOLS, pooling_mode="max")),
    # a folder's declarations
    ("transformers.models.LSTM is not", lambda m: declared_by(declare(m.folder, modules=("Transformer", "LSTM")))),
    ("modules in another order", lambda m: declared_by(declare(m.folder, modules=NOT_LAST))),
    ("leaves the task text out of the mean",
     lambda m: declared_by(declare(m.folder, pooling={"pooling_mode": "mean", "include_prompt": False}))),
    # tokens
    ("^prompt.length: 100 leaves 0 of the 40 positions",
     lambda m: sentence_encoder(m.bert, new_prompt("key_value", m.bert, length=100))),
    ("declared for 12; lower it or raise backbone.max_length", lambda m: m.reads(4, 20, backbone={"max_length": 12})),
    ("prompt.length: 12 leaves 28 of the 40 .*, fewer than train.max_length 29", lambda m: m.reads(12, 29)),
    ("repeat_words: 0.32 makes rows of 42 tokens .* room for 36", lambda m: m.reads(4, 32, **REPEATED)),
    # what a family has not
    ("has no begin, end and mask token, which", lambda m: new_template("{sentence} means {mask}", m.family("qwen3"))),
    (r"a trained .CLS.", lambda m: sentence_encoder(m.family("qwen3"), cls=True)),
    ("'input' prompt needs learned positions alone", lambda m: new_prompt("input", m.family("qwen3"), length=3)),
    ("^a: .* family electra, whose MLM head is not read", lambda m: load_mlm_head(m.family("electra"), wanted_by="a")),
    ("^a: .*bert has no MLM head; .*bert-base-uncased.*roberta-large", lambda m: load_mlm_head(m.bert, wanted_by="a")),
    ("tokens.generator: .* has no MLM head", lambda m: load_generator(str(m.folders["bert"]), m.bert, dropout=False)),
    (r"^objective.replaced_tokens.generator: .* has another vocabulary \(.*take a generator of the same family",
     lambda m: load_generator(str(make_backbone_folder(m.folder, "roberta", head=True)), m.bert, dropout=False)),
    ("set .*.generator: unigram$", lambda m: load_generator("no-such-owner/no-such-model", m.bert, dropout=False)),
    # a query side
    ("train.parameters is biases; set prompts, or", lambda m: SentenceEncoder(m.bert, trained="biases", side="query")),
    ("prompt.side: query takes no template, whose words stand in one tokenizer for all texts; set both",
     lambda m: sentence_encoder(m.bert, pooler="mask", templates=[new_template(TEMPLATE, m.bert)], side="query")),
    ("prompt.side: query takes a deep prompt, and prompt.kind is input; choose key_value",
     lambda m: SentenceEncoder(m.bert, new_prompt("input", m.bert, length=2), side="query")),
    ("prompt.side: query takes projector tanh, and pooler.projector is batch_norm",
     lambda m: sentence_encoder(m.bert, mlp="always", projector="batch_norm", side="query")),
    ("query pools as its documents do, by cls, and", lambda m: sentence_encoder(m.bert, pooler="mean", side="query")),
    ("prompt.side: query takes post.kind query_map, and whitening maps documents too", lambda m: m.sided("whitening")),
    ("takes a map to the width of documents, 32, and this one gives 8", lambda m: m.sided("query_map", dimension=8)),
    ("post.kind: query_map maps queries alone; set prompt.side: query", lambda m: m.sided("query_map", side="both")),
    ("prompt.side: query needs a language model, and .* holds word vectors",
     lambda m: SentenceEncoder(SentenceEncoder.load(m.file("cat 1 2")).backbone, side="query")),
    # word vectors
    (r"txt:2: ragged row, found 2 numbers, .* 3", lambda m: read_words(m.file("the 1 2 3", "cat 1 2"), {"the", "cat"})),
    (r"glove\.txt:2: not 3 numbers", lambda m: read_words(m.file("the 1 2 3", "cat 1 x 3"), {"the", "cat"})),
    ("no word of the data", lambda m: read_words(m.file("dog 1 2 3"), {"the", "cat"})),
    ("use no prompt and set pooler.kind: mean",
     lambda m: sentence_encoder(load_words(find_words(str(m.file("cat 1 2"))), None), pooler="cls")),
    # a start from a checkpoint
    ("prompt.init_checkpoint: .*no checkpoint here", lambda m: start_from_checkpoint(
        new_prompt("key_value", m.bert, length=5), m.bert, m.folder)),
    ("has shape", lambda m: m.started(length=6)),
    ("is key_value, separate, but this one is hidden_state, separate", lambda m: m.started("hidden_state")),
    ("starts at random", lambda m: m.started(reparametrize="mlp")),
    (r"trained on .* \(SHA-256 ", lambda m: m.started(
        of=backbone_of(make_backbone_folder(m.folder / "other", "bert", seed=1)))),  # of the same shapes
    (r"no checkpoint here \(checkpoint.json is missing\); `cse train` writes", lambda m: load_checkpoint(m.folder)),
    # fits of vectors
    ("post.dimension: 17 is not between 1 and 16", lambda m: fit_whitening(anisotropic(50), 17)),
    ("distinct sentences, found 10; .* to 9 or less", lambda m: fit_whitening(np.repeat(anisotropic(10), 30, axis=0))),
    ("tells labels apart, found 1; prepare texts of at least 2", lambda m: fit_discriminant(*labelled([9]), 0.1)),
    ("a label of at least 2 texts, each of the 3 has 1; prepare", lambda m: fit_discriminant(*labelled([1] * 3), 0.1)),
    ("the texts of each label have one vector", lambda m: alike(9, 5)),
    ("the labels have the same mean vector",
     lambda m: fit_discriminant(np.tile(anisotropic(5), (2, 1)), ["a"] * 5 + ["b"] * 5, 0.1)),
    ("width 12 is not divisible by 8", lambda m: new_flow(anisotropic(50, 12))),
    ("set post.kind: whitening", lambda m: new_flow(anisotropic(200), learning_rate=1e4)),
    (r"the 40 .* same vector", lambda m: new_flow(np.repeat(anisotropic(1), 40, axis=0), batch_size=64)),
    ("prepare more distinct rows", lambda m: new_flow(anisotropic(5)[:0])),
    *(("vector of sentence 4500 ", lambda m, fit=fit: holed(fit)) for fit in (
        fit_whitening, new_flow, lambda vectors: fit_discriminant(vectors, NINE, 0.1),
        lambda vectors: fit_linear(vectors, NINE, 0.1, None, seed=1),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("said", "call"), REFUSED)
def test_it_is_one_line(tiny_folders, tmp_path, monkeypatch, said, call):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = refusal(call, Models(tiny_folders, tmp_path))
    assert re.search(said, message), message
