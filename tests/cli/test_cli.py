"""The command line: commands that write what they claim, one-line errors, and files of others that stay."""

import json
import os
import re
import shlex
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cse as library
from cse.cli.main import cli
from tests.cli.workspace import contents, full_disk
from tests.rows import write_lines, write_table
from tests.tiny import WORDS

SENTENCES = ["the cat sits on the mat", "dog", "two small birds eat red apple bread", "", "a woman reads"]


def commands(command=cli, path=()):
    """Every command of the tree that has none below it, by the words that call it."""
    if not isinstance(command, click.Group):
        return {path: command}
    return {k: v for name, child in command.commands.items() for k, v in commands(child, (*path, name)).items()}


COMMANDS = commands()


def test_help_shows_an_example_that_is_a_command(cse):
    for path, command in {(): cli, **COMMANDS}.items():
        shown = re.findall(rf"^ +(?:echo .*\| )?cse {' '.join(path)}.*$", cse(*path, "--help").out, re.MULTILINE)
        assert shown, f"no example line: {path}"
        for line in shown:
            words = line.split("cse ", 1)[1].split()
            assert COMMANDS.keys() & {tuple(words[:1]), tuple(words[:2])}, line
        assert all(option.help for option in command.params if isinstance(option, click.Option)), path


def test_what_lies_beside_an_output_bears_its_whole_name(cse, project, monkeypatch):
    """`runs/lr0.01` and `runs/lr0.02` share no file."""
    monkeypatch.setattr("cse.stages.train.train_stage", lambda settings, **given: places.append(given))
    places = []
    assert cse("train", "--out", "runs/lr0.01").code == cse("train", "--out", "runs/lr0.02").code == 0
    first, second = ({*map(str, given.values())} for given in places)
    assert first == {"runs/lr0.01", "runs/lr0.01.json", "runs/lr0.01.plots", "data/prepared"}
    assert first & second <= {"data/prepared"}


def test_unlabelled_text_from_prepare_to_checkpoint(cse, project):
    """`prepare` is told of the rows; `train` knows them from there and names the one key that has to change."""
    (project / "my.txt").write_text("".join(f"the cat {word} a dog\n" for word in WORDS[:16]), encoding="utf-8")
    rows = ("-s", "data.source=files", "-s", "data.view=sentences", "-s", "data.train_path=my.txt", "--out", "mine")
    problem = "objective.energy_hinge.weight: needs hard negatives, but data.view is 'sentences'; set the weight to 0"
    told = cse("prepare", *rows).out.splitlines()[-1]
    assert told.startswith(f"note        `cse train` will refuse these rows with the current settings: {problem}")
    train = ("train", "--data", "mine", "--out", "trained")
    assert cse(*train).refused().startswith(f"mine holds sentences: {problem}")
    assert cse(*train, "-s", "data.view=pairs").refused().startswith("data.view: mine holds sentences, not pairs; run")
    assert cse(*train, "-s", "objective.energy_hinge.weight=0").code == 0
    assert "sentences" in (project / "trained/checkpoint.json").read_text()


def test_encode_standard_input_raw_and_with_foreign_line_ends(cse, project):
    found = []
    for ends in ("\n", "\r\n"):
        assert cse("encode", "data/bundle", "--out", "x.npy", "--raw", stdin=ends.join(SENTENCES).encode()).code == 0
        found.append(np.load(project / "x.npy"))
    unix, windows = found
    assert unix.shape == (5, 32), "a last line without an end counts too"
    np.testing.assert_array_equal(unix, windows)
    assert np.abs(np.linalg.norm(unix, axis=1) - 1).max() > 0.1
    latin = "a cat\nein Kätzchen\n".encode("latin-1")
    told = cse("encode", "data/bundle", "--out", "x.npy", stdin=latin).refused()
    assert "<stdin>:2: byte 0xe4 is not utf-8; save the file as UTF-8" in told


def test_vectors_stand_beside_their_texts_in_a_file_that_has_room(cse, project):
    texts = ["the cat sits", "", 'He said "no".', "Grüße"]
    (project / "text.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    for _ in range(2):  # an earlier output is replaced
        for kind in ("npy", "parquet", "jsonl"):
            assert cse("encode", "data/bundle", "text.txt", "--out", f"vectors.{kind}").code == 0
    expected = np.load(project / "vectors.npy")
    table = pq.read_table(project / "vectors.parquet")
    assert table["text"].to_pylist() == texts
    np.testing.assert_array_equal(np.stack(table["embedding"].to_numpy()), expected)
    rows = [json.loads(line) for line in (project / "vectors.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["text"] for row in rows] == texts
    np.testing.assert_array_equal(np.array([row["embedding"] for row in rows], np.float32), expected)
    pq.write_table(pa.table({"text": texts}), project / "own.parquet")
    before = (project / "own.parquet").read_bytes()
    assert "not an earlier output" in cse("encode", "data/bundle", "own.parquet", "--out", "own.parquet").refused()
    assert (project / "own.parquet").read_bytes() == before


def test_encode_a_table_has_one_vector_a_row(cse, project):
    texts = ["My card, the new one,\nis not here.", 'He said "no".', "", "the cat sits"]
    write_table(project / "bank.csv", ("text", "category"), ((text, "x") for text in texts))
    write_table(project / "bank.jsonl", ("id", "body"), ((1, text) for text in texts))
    write_table(project / "bank.parquet", ("sentence",), ((text,) for text in texts))
    expected = library.OnnxEncoder("data/bundle").encode(texts)
    for name, options in (("bank.csv", ()), ("bank.jsonl", ("--column", "body")), ("bank.parquet", ())):
        done = cse("encode", "data/bundle", name, "--out", "x.npy", *options)
        assert (done.code, done.err.splitlines()[-1]) == (0, "x.npy: 4 vectors of 32 dimensions")
        np.testing.assert_allclose(np.load(project / "x.npy"), expected, atol=1e-6)
    told = cse("encode", "data/bundle", "--out", "y.npy", "bank.jsonl").refused()
    assert told == "bank.jsonl: no column 'text'; the columns are id, body; name yours in --column"


def test_post_puts_whitening_behind_a_checkpoint_and_leaves_that_as_it_was(cse, project):
    before = contents(project / "data/checkpoint")
    done = cse("post", "data/checkpoint", "--kind", "whitening", "-s", "post.dimension=8", "--out", "data/whitened")
    assert done.code == 0, done.err
    assert contents(project / "data/checkpoint") == before
    assert library.SentenceEncoder.load("data/whitened").encode(SENTENCES).shape == (5, 8)
    again = cse("post", "data/whitened", "--kind", "flow", "--out", "data/both").refused()
    assert again == "post.kind: the encoder already has whitening; use one without"
    assert not (project / "data/both").exists()


def test_checkpoint_and_bundle_score_the_same_and_the_backbone_differs(cse, project, tiny_folders):
    bare = str(tiny_folders["bert"])
    done = cse("evaluate", "data/checkpoint", "data/bundle", bare, "--json", "scores/all.json")
    assert done.code == 0
    table, reads, _ = done.out.split("\n\n")
    assert [line.split()[-2] for line in reads.splitlines()] == ["36", "36", "37"], "a prompt of 4 leaves 36 of 40"
    checkpoint, bundle, backbone = (re.split(r" {2,}", line)[1:] for line in table.splitlines()[1:])
    assert list(map(float, checkpoint)) == pytest.approx(list(map(float, bundle)), abs=0.011)
    assert checkpoint != backbone
    scores = json.loads((project / "scores/all.json").read_text())
    assert list(scores) == ["data/checkpoint", "data/bundle", bare]
    assert f"{scores['data/bundle']['sts']['near']['all']:.2f}" == bundle[0]


def test_evaluate_on_a_task_of_ones_own_alone_and_with_the_rest(cse, project):
    lines = ["sentence1,sentence2,label", "a cat sits,the cat sits,1", "a dog,the river,0", "red apple,blue apple,true"]
    write_lines(project / "own/twins.csv", lines)
    write_lines(project / "triplets.csv", ["anchor,positive,negative", "a cat,the cat,a dog", "a dog,the dog,rain"])
    done = cse("evaluate", "data/bundle", "--task", "own", "--task", "triplets.csv", "--json", "s.json", "--out", "rec")
    first, second, *_ = done.out.split("\n\n")
    assert first.startswith("twins (times 100; binary pairs: 3 pairs, 2 of them mean the same; "), done.err
    assert second.startswith("triplets (times 100; triplets: 2; ")
    scores = json.loads((project / "s.json").read_text())["data/bundle"]
    assert set(scores) == {"pooling", "reads", "tasks"}, "without --data and --suite, nothing else"
    assert (project / "rec/data-bundle/items.npz").is_file()
    both = cse("evaluate", "data/bundle", "--suite", "sts", "--task", "own").out
    assert "STS (Spearman * 100)" in both and "twins (times 100" in both


def test_training_stopped_by_a_full_disk_ends_as_if_it_had_not_been(cse, project):
    alone = contents(project / "data/checkpoint")["weights.safetensors"]
    with full_disk(5000):
        assert "no space left" in cse("train", "-s", "train.save_seconds=0").err
    assert list((project / ".cse/resume").iterdir())
    assert cse("train", "-s", "train.save_seconds=0").code == 0
    assert contents(project / "data/checkpoint")["weights.safetensors"] == alone
    assert not list((project / ".cse/resume").iterdir()), "scratch of a finished run is left"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("evaluate a/b=data/checkpoint 'a b=data/bundle' --out records",
         "--out records: a/b and a b would both be written to records/a-b; rename one with NAME=MODEL"),
        ("report nothing", "no records in it; create one with `cse evaluate MODEL --suite full --out nothing`"),
        ("evaluate a=data/checkpoint a=data/bundle", "a: given twice; write NAME=MODEL with a different name for each"),
        ("evaluate --suite stss", "suite 'stss': choose full, or some of sts,"),
        ("evaluate --suite full --data data", "no SentEval evaluation data"),
        ("evaluate data/checkpoint --cxc cxc.csv", "--cxc: needs its measure; add --suite cxc or --suite full"),
        ("evaluate --task data/empty", "--task data/empty: an empty folder; put a task into it"),
        ("encode data/bundle --out x.npy", "<stdin>: no rows; add rows or name another file"),
        ("encode data/bundle --out x.npy --column text", "--column text: <stdin> is read line by line"),
        ("export --format peft", "--format peft: name a folder to write with --out"),
        ("export --format peft data/bundle --out x", "data/bundle: this is an ONNX bundle"),
        ("post data/bundle --kind flow --out x", "data/bundle: this is an ONNX bundle"),
        ("post data/checkpoint --out x", "post.kind: none adds nothing; give --kind"),
        ("post data/checkpoint --kind whitening -s post.dimension=33 --out x", "post.dimension"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_one_line(cse, project, line, says):
    Path("data/empty").mkdir()
    assert says in cse(*shlex.split(line)).refused()
    assert not Path("x.npy").exists() and not Path("x").exists()


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("prepare", ["-s", "data.max_rows=40"]),
        ("train", []),
        ("post", ["data/checkpoint", "--kind", "whitening"]),
        ("export", []),
        ("evaluate", ["x=data/checkpoint"]),
        ("report", []),
        ("index", ["lines.txt"]),
    ],
)
def test_out_never_replaces_what_is_not_ours(cse, project, monkeypatch, command, options):
    """Refused in one line, before work starts, whatever the command; a folder, a file and a pipe stay as they were."""
    for module, work in (("cse.stages.train", "open_training"), ("cse.data.sources", "clean_rows")):
        monkeypatch.setattr(f"{module}.{work}", lambda *_, **__: pytest.fail("work has started"))
    for name in ("lines.txt", "mine/deep/thesis.txt", "file"):
        write_lines(project / name, ["a cat"])
    before, listing = contents(project), sorted(project.iterdir())
    os.mkfifo(project / "pipe")
    said = "did not put there|is not a folder|a file; name a folder|the working folder|is inside the|another folder"
    for out in ("mine", "file", "pipe", "."):
        line = cse(command, *options, "--out", out).refused()
        assert line.startswith(f"{out}: ") or out == "."
        assert re.search(said, line)
    assert contents(project) == before
    assert sorted(project.iterdir()) == sorted([*listing, project / "pipe"]) and (project / "pipe").is_fifo()


def test_a_file_of_somebody_else_is_not_replaced(cse, project):
    texts = {"notes.txt": "a cat\n", "own.jsonl": '{"text": "mine"}\n', "run.json": '{"name": "a package"}'}
    for name, text in texts.items():
        (project / name).write_text(text, encoding="utf-8")
    os.mkfifo(project / "pipe")
    for line in (
        "encode data/bundle notes.txt --out notes.txt", "encode data/bundle own.jsonl --out own.jsonl",
        "encode data/bundle notes.txt --out pipe", "train --out run", "evaluate --json run.json",
    ):  # fmt: skip
        said = cse(*line.split()).refused()
        assert re.search("not an earlier output of this command|not a regular file", said), line
    assert {name: (project / name).read_text(encoding="utf-8") for name in texts} == texts
    assert (project / "pipe").is_fifo() and not (project / "run").exists()
