"""Reading the user's files, and those of the hub: every supported layout, and a one-line error for every other."""

import gzip
import json
import time
from unittest.mock import Mock

import huggingface_hub
import pyarrow as pa
import pytest
from huggingface_hub import constants

from cse.data import read
from cse.data.read import file_lines, find_data_file
from cse.data.shape import Row, read_rows
from cse.data.sources import open_sources
from cse.errors import OfflineError
from cse.settings.data import DataSettings
from tests.parts import refusal
from tests.rows import write_lines, write_parquet, write_table

TRIPLET = ("a man runs", "someone moves", "nobody runs")


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return path


def texts(path, view, **how):
    return [row.texts for row in read_rows(path, view, **how)]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "txt"])
def test_the_same_triplet_from_every_kind_of_file(tmp_path, ending):
    path, names = tmp_path / f"rows.{ending}", ("id", "sent0", "sent1", "hard_neg")
    if ending in ("tsv", "txt"):
        write_lines(path, map("\t".join, (names, ("7", *TRIPLET))))
    else:
        write_table(path, names, [("7", *TRIPLET)])
    assert texts(path, "triplets") == [TRIPLET]
    assert texts(path, "pairs") == [TRIPLET[:2]]
    if ending != "txt":
        assert texts(path, "sentences") == [TRIPLET[:1]]


LONG, LINES = "word " * 100_000, "four\u2028still four\u0085still\x0bfour\x0c\x1c!"
READ = [
    ("a.txt", f"one\ntwo\r\nthree\r{LINES}", "sentences",
     [Row(1, ("one",)), Row(2, ("two",)), Row(3, ("three",)), Row(4, (LINES,))]),
    *(("a.csv", f'"sent0"{mark}sent1{mark}"hard, neg"\na, b{mark}"c{mark}d"{mark}e', "pairs",
       [Row(2, ("a, b", f"c{mark}d"))]) for mark in ";\t|"),
    *(("a.csv", f"{line}\r\ntext{mark}label\r\nwords{mark}x\r\n", "categories", [Row(3, ("words",), "x")])
      for line, mark in (("sep=;", ";"), ('"sep=,"', ","), ("SEP=|", "|"), ("sep=\t", "\t"), ("sep=:", ":"))),
    ("a.tsv", 'sent0\tsent1\n"a\tb "c"\n', "pairs", [Row(2, ('"a', 'b "c"'))]),
    ("a.csv", f"\ufeffsent0,sent1\n{LONG},a\0b\n", "pairs", [Row(2, (LONG, "a\0b"))]),
    ("a.csv", 'query,passage\nx,"[""Burnout"" in nurses]"\n', "pairs", [Row(2, ("x", '["Burnout" in nurses]'))]),
    *(("a.csv", f"{mark}text,label\r\né,x\r\n".encode(codec), "categories", [Row(2, ("é",), "x")])
      for mark, codec in (("", "utf-16"), ("\ufeff", "utf-16-be"))),
    ("a.csv", "sent0,sent1,hard_neg\n\na,b,\n", "triplets", [Row(2, (None, None, None)), Row(3, ("a", "b", ""))]),
    ("a.jsonl", '{"sent0": "a", "sent1": "b"}\n\n{"sent0": "c"}', "pairs",
     [Row(1, ("a", "b")), Row(2, (None, None)), Row(3, ("c", None))]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "view", "rows"), READ)
def test_rows_and_their_lines(tmp_path, name, content, view, rows):
    """Line ends, separators, quotes, byte order marks, encodings and blank lines."""
    assert list(read_rows(write(tmp_path / name, content), view)) == rows


def test_a_txt_file_is_lines_or_a_table_as_excel_saves_it(tmp_path):
    path = write(tmp_path / "a.txt", "sentence1\tsentence2\tlabel\r\na\tb\t0\r\nc\td\t1\r\n")
    assert [row.fault for row in read_rows(path, "pairs")] == ["labelled_negative", ""]
    assert texts(path, "sentences", columns=["sentence2"]) == [("b",), ("d",)]
    assert texts(path, "sentences")[1] == ("a\tb\t0",)
    path = write(tmp_path / "a.csv", "text,more,text\na,b,c\n")
    assert texts(path, "sentences", columns=["more"]) == [("b",)], "though another column stands twice"


ROWS = [f"Text {n} is wrong.,{label}" for n, label in enumerate(["billing", "login", "shipping"] * 4)]


def test_rows_between_two_stray_quotes_are_not_lost_and_line_breaks_of_a_text_are_its_own(tmp_path):
    """The csv dialect has them as one row with line breaks: so do DuckDB, pyarrow and datasets."""
    for first, last in ((1, 6), (0, 11)):
        lines = list(ROWS)
        lines[first] = f'"{lines[first]}'
        lines[last] = lines[last].replace(",", '",')
        path = write_lines(tmp_path / "a.csv", ["text,label", *lines])
        said = f"{path}:{first + 2}: a quote opens here and closes in line {last + 2}, and each line between is a whole"
        assert refusal(texts, path, "categories").startswith(said)
    write_lines(path, ["text,label", '"a\nb",x', *ROWS[:3], f'"{ROWS[3]}', *ROWS[4:6], 'end",login'])
    said = "a.csv:7: a quote opens here and closes in line 10"
    assert said in refusal(texts, path, "categories"), "wherever they stand"
    for text in ("Dear all, hello,\nyours, me", "a\n\nb,c", "1,000 of\n2,000 or\n3,000"):
        write_lines(path, ["text,label", *ROWS[:2], f'"{text}",billing', *ROWS[2:4]])
        assert texts(path, "categories")[2] == (text,)
    write_lines(path, ["n,text", '1,"a\nb"', '2,"one\ntwo,three"'])  # the second line could be a row
    assert len(texts(path, "sentences")) == 2


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.GZ"])
@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_of_objects_is_read_object_by_object(tmp_path, name, indent):
    content = ("\ufeff " + json.dumps([{"text": "a", "n": [1, {"x": "]"}]}, {"text": "é"}], indent=indent)).encode()
    path = write(tmp_path / name, gzip.compress(content) if name.endswith(".GZ") else content)
    assert [(row.line, row.texts) for row in read_rows(path, "sentences")] == [(1, ("a",)), (2, ("é",))]


def test_a_gzipped_file_that_holds_far_too_much(tmp_path, monkeypatch):
    packed = gzip.compress(b"text\n" + b"a\n" * 9000)
    monkeypatch.setattr(read, "_EXPANDED", 1000)
    monkeypatch.setattr(read, "_RATIO", 3)
    said = refusal(texts, write(tmp_path / "a.csv.gz", packed), "sentences")
    assert "a.csv.gz: holds over 1,000 bytes, 3 for each of its own" in said


def test_a_key_within_an_object(tmp_path):
    row = {"data": {"text": "a", "more": {"deep": "b"}}, "label": "x", "a.b": "c"}
    lines = write(tmp_path / "a.jsonl", json.dumps(row) + '\n{"data": 3}\n')
    write_parquet(tmp_path / "a.parquet", {name: [value] for name, value in row.items()})
    for path in (lines, tmp_path / "a.parquet"):
        for name, text in (("data.text", "a"), ("data.more.deep", "b"), ("a.b", "c")):
            assert texts(path, "sentences", columns=[name])[0] == (text,)
    assert texts(lines, "sentences", columns=["data.text"])[1] == (None,)


def test_a_line_without_end_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "_LONGEST", 10_000)
    with write(tmp_path / "a.txt", "x" * 3_000_000).open("rb") as stream:
        said = refusal(lambda: list(file_lines(stream, "a.txt")))
        assert "a.txt:1: a line of over 10,000 characters; break it into several" in said and stream.tell() < 1_000_000


def test_a_parquet_file_that_stands_for_far_more_text_than_it_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "_EXPANDED", 10_000_000)
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 300_000, pa.int32()), pa.array(["a b " * 500]))
    for name, column in (("text", long), ("data.text", pa.StructArray.from_arrays([long], ["text"]))):
        path = write_parquet(tmp_path / "a.parquet", {name.split(".")[0]: column})
        assert path.stat().st_size < 100_000
        said = refusal(texts, path, "sentences", columns=[name])
        assert "bytes hold over 10,000,000 of equal texts; keep each of them once" in said
    write_parquet(path, {"text": ["yes", None, "no"] * 10_000, "n": range(30_000)})
    assert texts(path, "sentences")[-3:] == [("yes",), (None,), ("no",)]


def test_a_folder_must_hold_exactly_one_data_file(tmp_path):
    for name in ("README.md", ".hidden.csv"):
        write(tmp_path / name, "x")
    said = "no .txt, .csv, .tsv, .jsonl, .ndjson, .json, .parquet file in this folder"
    assert said in refusal(find_data_file, tmp_path)
    first = write(tmp_path / "a.csv", "x")
    write(tmp_path / "a.csv.dvc", "x")
    assert find_data_file(tmp_path) == first
    write(tmp_path / "b.txt", "x")
    several = refusal(find_data_file, tmp_path)
    assert "several data files (a.csv, b.txt); name one in data.train_path" in several
    assert "cannot read .dvc files" in refusal(find_data_file, tmp_path / "a.csv.dvc")
    (tmp_path / "link.csv").symlink_to("c.csv")
    said = refusal(find_data_file, tmp_path / "link.csv", "key")
    assert said.endswith("link.csv: a link to c.csv, which does not exist; fix it (or change key)")


HUB_ID = "princeton-nlp/datasets-for-simcse"


def rows_of(view, file, **how):
    return open_sources(DataSettings(source="hub", view=view, hub_file=file, **{"hub_id": HUB_ID, **how}))[0].rows


def test_an_unreachable_hub_is_asked_once_and_a_cached_file_is_read_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(time, "sleep", pytest.fail)
    with pytest.raises(OfflineError, match=rf"^{HUB_ID}.*data\.source: files, or set HF_HOME to a cache that has it$"):
        rows_of("sentences", "wiki1m_for_simcse.txt")
    assert constants.HF_HUB_OFFLINE is False
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    commit, folder = "0" * 40, tmp_path / "datasets--princeton-nlp--datasets-for-simcse"
    write(folder / "refs/main", commit)
    write_lines(folder / "snapshots" / commit / "wiki1m_for_simcse.txt", ["one", "two"])
    assert [row.texts for row in rows_of("sentences", "wiki1m_for_simcse.txt")] == [("one",), ("two",)]
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", Mock(side_effect=RuntimeError("first line\nsecond line")))
    assert refusal(rows_of, "pairs", "c.csv", hub_id="a/b").endswith("a/b/c.csv: RuntimeError: first line")
