"""The plan covers every row of a corpus once, in order, whatever the files look like."""

from __future__ import annotations

import csv
import gzip
import json

import pytest
from fsspec.implementations.local import LocalFileOpener
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cse.data import read as tables
from cse.data.read import text_lines
from cse.data.shape import read_rows, read_texts
from cse.errors import CseError
from cse.scale.corpus.plan import CorpusPlan, difference
from tests.scale.corpora import cut, sentences, write_jsonl, write_parquet, write_txt

# ---- txt ----------------------------------------------------------------------------------------------------------

TEXTS = st.lists(st.text(st.sampled_from("aé\u2028 "), max_size=4), min_size=1, max_size=12)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


@pytest.fixture(scope="module", autouse=True)
def all_rows_say_something():
    """How rows are cut does not depend on what they say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cse.scale.corpus.pieces.is_blank", lambda text: False)
        yield


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.lists(ENDS, min_size=12, max_size=12), st.booleans(), st.booleans(), st.integers(1, 5))
def test_every_line_once_whatever_ends_it(tmp_path_factory, texts, ends, last_end, mark, rows):
    path = tmp_path_factory.mktemp("corpus") / "lines.txt"
    content = "".join(text + end for text, end in zip(texts, ends, strict=False))
    content = content if last_end else content.rstrip("\r\n") + "x"
    path.write_bytes(("\ufeff" if mark else "").encode() + content.encode())
    plan, pieces = cut(path, shard_rows=rows)
    expected = list(text_lines(path))
    assert [text for _, texts in pieces for text in texts] == expected
    assert [row for ids, _ in pieces for row in ids] == list(range(len(expected)))
    assert all(len(ids) == rows for ids, _ in pieces[:-1])
    assert plan.rows == len(expected)


def test_pieces_know_their_bytes_and_lines(tmp_path):
    plan, _ = cut(write_txt(tmp_path / "a.txt", ["aa", "b", "", "dddd", "e"]), shard_rows=2)
    assert [
        (piece.shard, piece.start, piece.end, piece.rows, piece.line, piece.first_row) for piece in plan.pieces()
    ] == [
        ("part-000000.parquet", 0, 5, 2, 1, 0),
        ("part-000001.parquet", 5, 11, 2, 3, 2),
        ("part-000002.parquet", 11, 13, 1, 5, 4),
    ]
    assert CorpusPlan.from_json(plan.to_json(), "plan.json") == plan


# ---- jsonl and parquet --------------------------------------------------------------------------------------------


def test_jsonl_with_blank_lines_and_ids(tmp_path):
    rows = [json.dumps({"key": f"k{n}", "body": f"text {n}", "more": [n]}) for n in range(7)]
    path = write_txt(tmp_path / "a.jsonl", [*rows[:2], "", *rows[2:5], "   ", "", *rows[5:]])
    _, pieces = cut(path, shard_rows=3, text_column="body", id_column="key")
    assert [len(ids) for ids, _ in pieces] == [3, 3, 1]
    assert [key for ids, _ in pieces for key in ids] == [f"k{n}" for n in range(7)]
    assert [text for _, texts in pieces for text in texts] == [f"text {n}" for n in range(7)]


FIELDS = st.lists(st.text(st.sampled_from('a",é\u2028 \n'), max_size=5), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
@given(
    FIELDS,
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.integers(1, 4),
)
def test_every_record_of_a_csv_once_as_prepare_reads_it(tmp_path_factory, texts, end, quoting, rows):
    # lines that are rows, too, are refused: tests/data/test_read.py
    assume(not any("," in line for text in texts for line in text.split("\n")[1:]))
    path = tmp_path_factory.mktemp("corpus") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=quoting, lineterminator=end)
        writer.writerows([["n", "text"], *enumerate(texts)])
    _, pieces = cut(path, shard_rows=rows, id_column="n")
    assert [text for _, part in pieces for text in part] == texts == [text for (text,) in read_texts(path, "text")]
    assert [key for ids, _ in pieces for key in ids] == [str(n) for n in range(len(texts))]
    assert all(len(ids) == rows for ids, _ in pieces[:-1])


def test_a_quote_that_is_never_closed_is_found_without_reading_on_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_LONGEST", 1000)
    taken = []

    def lines():
        for line in ["text", "a", '"b', *["c"] * 10_000]:
            taken.append(line)
            yield line

    with pytest.raises(CseError, match=r"a.csv:3: broken csv record \(field larger than field limit \(1000\)\)"):
        list(tables.delimited_records(lines(), "csv", "a.csv"))
    assert len(taken) < 1000


@pytest.mark.parametrize(
    ("name", "content", "encoding", "expected"),
    [
        ("a.csv", b"sep=;\r\nn;text\r\n1;a, b\r\n2;c\r\n3;d\r\n", "utf-8", ["a, b", "c", "d"]),
        ("a.csv", b'n,text\n1,"a\nb"\n2,c\n3,"one\ntwo,three"\n', "utf-8", ["a\nb", "c", "one\ntwo,three"]),
        ("a.csv.gz", gzip.compress(b'n,text\n1,a\n\n2,"b\nc"\n3,d\n', mtime=0), "utf-8", ["a", "b\nc", "d"]),
        ("a.txt.gz", gzip.compress(b"\xef\xbb\xbfa\nb\n\nc\nd", mtime=0), "utf-8", ["a", "b", "", "c", "d"]),
        ("a.csv", "text;n\na;1\né;2\nc;3\n".encode("utf-16"), "utf-8", ["a", "é", "c"]),
        ("a.csv", "text\né\nü\n".encode("cp1252"), "cp1252", ["é", "ü"]),
        ("a.txt", "é\nü\n".encode("utf-16-le"), "utf-16-le", ["é", "ü"]),
        ("a.json", b'[{"text": "a"}, {"text": "b"},\n {"text": "c"}]', "utf-8", ["a", "b", "c"]),
        ("a.jsonl", b'{"body": {"text": "a"}, "text": "b"}', "utf-8", ["b"]),
    ],
)
def test_a_file_in_any_form_as_prepare_reads_it(tmp_path, name, content, encoding, expected):
    (tmp_path / name).write_bytes(content)
    _, pieces = cut(tmp_path / name, shard_rows=2, encoding=encoding)
    assert [text for _, part in pieces for text in part] == expected
    assert [row for ids, _ in pieces for row in ids] == list(range(len(expected)))
    rows = read_rows(tmp_path / name, "sentences", encoding=encoding)
    assert [text for row in rows for text in row.texts if text is not None] == expected


@pytest.mark.parametrize("rows_per_group", [1, 7, 100])
@pytest.mark.parametrize("shard_rows", [3, 10])
def test_parquet_with_any_row_groups(tmp_path, rows_per_group, shard_rows):
    texts = sentences(23)
    path = write_parquet(tmp_path / "a.parquet", {"text": texts, "n": list(range(100, 123))}, rows_per_group)
    plan, pieces = cut(path, shard_rows=shard_rows, id_column="n")
    assert [text for _, part in pieces for text in part] == texts
    assert [row for ids, _ in pieces for row in ids] == list(range(100, 123))
    assert plan.rows == 23


# ---- which files --------------------------------------------------------------------------------------------------


def test_rows_are_numbered_through_the_files_of_a_folder(tmp_path):
    for name, texts in (("b.txt", ["3"]), ("a.txt", ["0", "1", "2"]), ("sub/a.txt", ["4", "5"]), ("c.txt", [])):
        write_txt(tmp_path / name, texts)
    for name in ("README.txt", ".hidden.txt", "_temporary/x.txt", "notes.md"):
        write_txt(tmp_path / name, ["no row"])
    _, pieces = cut(tmp_path, shard_rows=2)
    assert pieces == [([0, 1], ["0", "1"]), ([2], ["2"]), ([3], ["3"]), ([4, 5], ["4", "5"])]


# ---- what is refused ----------------------------------------------------------------------------------------------


def refused(corpus, **changes) -> str:
    with pytest.raises(CseError) as error:
        cut(corpus, **changes)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"a\nb\n\xff\n", "a.txt:3: byte 0xff is not utf-8"),
        ("a.txt", b"", "a.txt: no rows; add rows"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "a.jsonl:2: not valid JSON"),
        ("a.jsonl", b'{"text": "a"}\n\n["a"]\n', "a.jsonl:3: expected a JSON object"),
        ("a.jsonl", b'{"text": "a"}\n{"txt": "a"}', "a.jsonl:2: no text in column 'text'; fill it in"),
        ("a.jsonl", b'{"txt": "a"}', "a.jsonl: no column 'text' (--text-column); did you mean 'txt'?"),
        ("a.jsonl", b'{"text": null}\n', "a.jsonl:1: no text in column 'text'; fill it in"),
        ("a.jsonl", b'{"text": 3}\n', "a.jsonl:1: expected text, found int '3'; fix or drop"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "a.jsonl:1: half of a surrogate pair"),
        ("a.parquet", b"text", "a.parquet: not a parquet file"),
        ("a.xml", b"text\na\n", "no .txt, .csv, .tsv, .jsonl, .ndjson, .json, .parquet file here (only a.xml)"),
        ("a.csv", b"txt\na\n", "a.csv: no column 'text' (--text-column); did you mean 'txt'?"),
        ("a.csv", b"text,text\na,b\n", "a.csv: 2 columns 'text'; give each its own name"),
        ("a.csv", b'text,n\na,1\n"b\nc",2,3\n', "a.csv:3: 3 fields, but the header has 2; put quotes around"),
        ("a.csv", b'text\na\n"b\nc\n', "a.csv:3: broken csv record"),
        ("a.tsv", b"text\tn\na\n", "a.tsv:2: 1 fields, but the header has 2; remove tabs"),
        ("a.jsonl.zst", b"", "a.jsonl.zst: compressed; unpack it"),
        ("a.csv.gz", b"text\na\n", "a.csv.gz: not gzip, or cut off; pack it again"),
        ("a.csv.gz", gzip.compress(b"text\na\n", mtime=0)[:-9], "a.csv.gz: not gzip, or cut off; pack it again"),
    ],
)
def test_a_file_that_does_not_do(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    assert expected in refused(tmp_path / name)


@pytest.mark.parametrize(
    ("columns", "changes", "expected"),
    [
        ({"texts": ["a"]}, {}, "no column 'text' (--text-column); did you mean 'texts'?; the columns are texts"),
        ({"text": [1]}, {}, "column 'text' holds int64, not text"),
        ({"text": ["a", None, "b"]}, {}, "1 nulls in column 'text', in rows 1 to 3"),
        ({"text": ["a"], "key": [0.5]}, {"id_column": "key"}, "id column 'key' holds double"),
        ({"text": ["a"]}, {"id_column": "txet"}, "no column 'txet' (--id-column); did you mean 'text'?"),
    ],
)
def test_a_parquet_file_that_does_not_do(tmp_path, columns, changes, expected):
    assert expected in refused(write_parquet(tmp_path / "a.parquet", columns), **changes)


@pytest.mark.parametrize("values", [["a", 1], [1, "a"], [1, None], [1, True], [1, 2**63]])
def test_ids_of_jsonl_have_one_type(tmp_path, values):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a", "key": value} for value in values])
    assert "a.jsonl:2: id column 'key'" in refused(path, id_column="key")


def test_folders_that_do_not_do(tmp_path):
    assert "nothing: no such file or folder" in refused(tmp_path / "nothing")
    write_txt(tmp_path / "corpus/a.txt", ["a"])
    assert refused(tmp_path / "corpsu").endswith("no such file or folder; did you mean 'corpus'?")
    write_jsonl(tmp_path / "corpus/a.jsonl", [{"text": "a"}])
    assert "several formats (jsonl, txt)" in refused(tmp_path / "corpus")
    assert "no file matches" in refused(f"{tmp_path}/*.txt")
    assert "cannot be opened" in refused("nosuch://bucket/a.txt")


@pytest.mark.parametrize("rows_per_group", [1 << 20, 333], ids=["pyarrow's default", "borders of groups within pieces"])
def test_each_row_group_of_a_parquet_file_is_read_once(tmp_path, monkeypatch, rows_per_group):
    texts = sentences(20_000)
    path = write_parquet(tmp_path / "a.parquet", {"text": texts, "other": texts}, rows_per_group)
    read = []
    plain = LocalFileOpener.read
    monkeypatch.setattr(LocalFileOpener, "read", lambda self, *size: read.append(plain(self, *size)) or read[-1])
    _, pieces = cut(path, shard_rows=100)
    assert len(pieces) == 200
    assert [text for _, part in pieces for text in part] == texts
    column, ends = path.stat().st_size / 2, 2 * 2**16  # pyarrow reads so much to find the metadata: plan, rows
    assert column * 0.9 < sum(map(len, read)) < column * 1.1 + ends


def test_what_differs_is_named():
    old = {"model": {"files": 1}, "files": [["a.txt", 3, "1"], ["b.txt", 3, "1"]], "batch_size": 64}
    assert difference(old, dict(old)) is None
    assert difference(old, old | {"batch_size": 32}) == "batch_size was 64, now 32"
    assert difference(old, old | {"model": {}}) == "the model is different"
    assert difference(old, old | {"files": [["a.txt", 3, "1"], ["b.txt", 4, "1"]]}) == "b.txt has changed"
    assert difference(old, old | {"files": old["files"][:1]}) == "b.txt is gone"
    assert difference(old, old | {"files": [*old["files"], ["c.txt", 0, ""]]}) == "c.txt is new"
