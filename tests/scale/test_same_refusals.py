"""`cse prepare` and `cse embed` read files alike: the same sentences, and the same line for what they refuse."""

from __future__ import annotations

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cse.data.read import find_data_file
from cse.data.shape import read_rows, read_texts
from cse.errors import CseError
from tests.scale.corpora import cut


def by_prepare(path):
    return [text for row in read_rows(find_data_file(path), "sentences") for text in row.texts if text is not None]


def by_embed(path):
    return [text for _, texts in cut(path, shard_rows=2)[1] for text in texts]


def refusal(read, path) -> str:
    with pytest.raises(CseError) as error:
        read(path)
    assert "\n" not in str(error.value)
    return str(error.value)


MARK = b"\xef\xbb\xbf"
DOUBLED = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", MARK + "a\r\nb\rc\u2028c\nd".encode(), ["a", "b", "c\u2028c", "d"]),
        ("a.txt", b"a\n" + MARK + b"b\n", ["a", "\ufeffb"]),
        ("a.txt", MARK + MARK + b"a\nb\nc\n", ["\ufeffa", "b", "c"]),
        ("a.csv", MARK + b'text,n\r\n"a\r\na",1\r\n\r\nb,2\rc,3\r\n', ["a\na", "b", "c"]),
        ("a.tsv", MARK + b'\n n\ttext \r\n1\t"a\r\n2\tb\r\n\r\n3\tc', ['"a', "b", "c"]),
        ("a.jsonl", MARK + b'\n{"text": "a"}\r\n \r\n{"n": 1, "text": "\\u00e9"}\r{"text": ""}', ["a", "é", ""]),
        ("a.ndjson", b'{"text": "a"}\n', ["a"]),
        ("a.txt", (b"a" * 8191 + b"\r\n") * 3, ["a" * 8191] * 3),
        ("a.parquet", pa.table({"n": [1, 2, 3], "text": ["a", "", "b"]}), ["a", "", "b"]),
        ("a.csv", b"sep=;\r\nn;text\r\n1;a, b\r\n2;c\r\n3;d\r\n", ["a, b", "c", "d"]),
        ("a.csv.gz", gzip.compress(b'n,text\n1,a\n\n2,"b\nc"\n3,d\n'), ["a", "b\nc", "d"]),
        ("a.txt.gz", gzip.compress(MARK + b"a\nb\n\nc\nd"), ["a", "b", "", "c", "d"]),
        ("a.csv", "text;n\na;1\né;2\nc;3\n".encode("utf-16"), ["a", "é", "c"]),
        ("a.json", b'[{"text": "a"}, {"text": "b"},\n {"text": "c"}]', ["a", "b", "c"]),
    ],
)
def test_the_same_sentences(tmp_path, name, content, expected):
    place(tmp_path / name, content)
    assert by_prepare(tmp_path / name) == by_embed(tmp_path / name) == expected


@pytest.mark.parametrize(("encoding", "name"), [("cp1252", "a.csv"), ("utf-16-le", "a.csv"), ("latin-1", "a.txt")])
def test_an_encoding_that_is_given(tmp_path, encoding, name):
    (tmp_path / name).write_bytes("text\né\nü\n".encode(encoding))
    expected = ["text", "é", "ü"][name == "a.csv" :]
    rows = read_rows(tmp_path / name, "sentences", encoding=encoding)
    assert [text for row in rows for text in row.texts] == expected
    _, pieces = cut(tmp_path / name, shard_rows=2, encoding=encoding)
    assert [text for _, texts in pieces for text in texts] == expected


def place(path, content):
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        pq.write_table(content, path, row_group_size=2)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"", ": no rows; add rows or name another file"),
        ("a.txt", MARK, ": no rows; add rows or name another file"),
        ("a.csv", b"", ": no rows; add rows or name another file"),
        ("a.csv", b"text\n", ": no rows; add rows or name another file"),
        ("a.jsonl", b"\n \n", ": no rows; add rows or name another file"),
        ("a.csv", b"text,n,text\na,1,b\n", ": 2 columns 'text'; give each its own name"),
        ("a.parquet", DOUBLED, ": 2 columns 'text'; give each its own name"),
        (
            "a.csv",
            b"text,n\na,1\nb,2,c\n",
            ":3: 3 fields, but the header has 2; put quotes around fields that hold commas",
        ),
        ("a.tsv", b"text\tn\na\t1\n\nb\n", ":4: 1 fields, but the header has 2; remove tabs and line breaks"),
        ("a.csv", b'n,text\n1,"a\n2,b\n3,c"\n', ":2: a quote opens here and closes in line 4, and each line between"),
        ("a.json", b'[{"text": "a"}, {"text": ]', ":2: not valid JSON (Expecting value"),
        ("a.csv", b'text\na\n"b\n', ":3: broken csv record (unexpected end of data); close every quoted field"),
        ("a.csv", b'text\n"a"b\n', ":2: broken csv record (',' expected after '\"'); close every quoted field"),
        ("a.jsonl", b'{"text": "a"}\n{"text"\n', ":2: not valid JSON (Expecting ':' delimiter"),
        ("a.jsonl", b"[" * 100_000, ":1: not valid JSON (maximum recursion depth"),
        ("a.jsonl", b'{"text": "a"}\r\n3\r\n', ":2: expected a JSON object with named columns, found int"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 3}\n', ":2: expected text, found int '3'; fix or drop the row"),
        ("a.jsonl", b'{"text": ["a"]}\n', ":1: expected text, found list \"['a']\"; fix or drop the row"),
        ("a.jsonl", b'{"text": "a \\ud83d"}\n', ":1: half of a surrogate pair; write the character in full"),
        ("a.parquet", pa.table({"text": [1, 2]}), ": column 'text' holds int64, not text; name another"),
        ("a.parquet", b"text", ": not a parquet file, or cut off; write it again"),
        ("a.parquet", b"", ": not a parquet file, or cut off; write it again"),
    ],
)
def test_the_same_refusals(tmp_path, name, content, expected):
    path = tmp_path / name
    place(path, content)
    line = refusal(by_prepare, path)
    assert line.startswith(f"{path}{expected}")
    assert line == refusal(by_embed, path)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", b"a\r\nb\rc\xe9\n", ":3: byte 0xe9 is not utf-8"),
        ("a.csv", b"text\n" + b"a\n" * 9000 + b"\xff\n", ":9002: byte 0xff is not utf-8"),
        ("a.jsonl", b'{"text": "a\xed\xa0\xbd"}', ":1: byte 0xed is not utf-8"),
        ("a.csv", b"id,txt\n1,a\n", ": no column 'text'"),
        ("a.jsonl", b'{"txt": "a"}\n', ": no column 'text'"),
        ("a.parquet", pa.table({"txt": ["a"]}), ": no column 'text'"),
    ],
)
def test_refusals_that_name_the_setting_of_each(tmp_path, name, content, expected):
    path = tmp_path / name
    place(path, content)
    lines = [refusal(by_prepare, path), refusal(by_embed, path)]
    assert all(line.startswith(f"{path}{expected}") for line in lines)
    if "column" in expected:
        assert all("; did you mean 'txt'?; the columns are " in line for line in lines)
        assert [line.count("data.") for line in lines] == [2, 0]
        assert "(--text-column)" in lines[1]
    else:
        advice = ["set data.encoding to the encoding of the file", "give the encoding of the file (--encoding"]
        assert [line.split("; ")[1].startswith(words) for line, words in zip(lines, advice, strict=True)] == [True] * 2


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", b'{"text": "a"}\n{"text": null}\n'), ("a.parquet", pa.table({"n": [1, 2], "text": ["a", None]}))],
)
def test_a_missing_sentence_is_a_row_to_drop_or_a_refusal(tmp_path, name, content):
    """`cse prepare` drops and counts such rows; a vector for each row is what `cse embed` and `cse encode` owe."""
    path = tmp_path / name
    place(path, content)
    assert [row.texts for row in read_rows(path, "sentences")] == [("a",), (None,)]
    if name == "a.jsonl":
        assert refusal(read_texts, path) == refusal(by_embed, path)
        assert refusal(by_embed, path) == f"{path}:2: no text in column 'text'; fill it in or drop the row"


def test_a_readme_beside_the_data_is_no_data(tmp_path):
    for name in ("README.txt", "readme.csv", ".hidden.txt"):
        (tmp_path / name).write_bytes(b"no row\n")
    only = "(only"
    assert only not in refusal(by_prepare, tmp_path)
    assert only not in refusal(by_embed, tmp_path)
    (tmp_path / "a.txt").write_bytes(b"a\n")
    assert by_prepare(tmp_path) == by_embed(tmp_path) == ["a"]
