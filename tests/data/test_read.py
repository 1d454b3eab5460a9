"""Reading the user's files: every supported layout, and a one-line error for every other file."""

import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cse.data import read
from cse.data.read import file_lines, find_data_file
from cse.data.shape import Row, read_rows
from cse.errors import CseError

TRIPLET = ("a man runs", "someone moves", "nobody runs")


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return path


def texts(path, view, **how):
    return [row.texts for row in read_rows(path, view, **how)]


def failure(path, view="triplets", **how):
    with pytest.raises(CseError) as caught:
        list(read_rows(path, view, **how))
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet", "txt"])
def test_the_same_triplet_from_every_kind_of_file(tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    names = ("sent0", "sent1", "hard_neg")
    if ending == "parquet":
        pq.write_table(pa.table({name: [text] for name, text in zip(names, TRIPLET, strict=True)}), path)
    elif ending == "jsonl":
        write(path, '{"sent0": "a man runs", "sent1": "someone moves", "hard_neg": "nobody runs", "id": 7}\n')
    else:
        mark = "," if ending == "csv" else "\t"
        write(path, f"{mark.join(names)}\n{mark.join(TRIPLET)}\n")
    assert texts(path, "triplets") == [TRIPLET]
    assert texts(path, "pairs") == [TRIPLET[:2]]
    if ending != "txt":
        assert texts(path, "sentences") == [TRIPLET[:1]]


@pytest.mark.parametrize(
    "header", ["sent0,sent1,hard_neg", "anchor,positive,negative", "id,premise,entailment,contradiction"]
)
def test_usual_names_of_triplets(tmp_path, header):
    row = ",".join(TRIPLET) if header.count(",") == 2 else ",".join(("7", *TRIPLET))
    assert texts(write(tmp_path / "a.csv", f"{header}\n{row}\n"), "triplets") == [TRIPLET]


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_a_column_that_stands_twice_is_refused_if_it_is_read(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_arrays([pa.array(["x"])] * 4, names=["text", "more", "text", "more"]), path)
    else:
        mark = "," if ending == "csv" else "\t"
        write(path, f"{mark.join(['text', 'more', 'text', 'rest', 'rest'])}\n{mark.join('abcde')}\n")
    assert "2 columns 'text'; give each its own name" in failure(path, "sentences")
    if ending != "parquet":
        assert texts(path, "sentences", columns=["more"]) == [("b",)]


def test_links_that_lead_nowhere_say_so(tmp_path):
    (tmp_path / "a.csv").symlink_to("b.csv")
    with pytest.raises(CseError, match=r"a.csv: a link to b.csv, which does not exist; fix it \(or change key\)"):
        find_data_file(tmp_path / "a.csv", "key")
    (tmp_path / "b.csv").symlink_to("a.csv")
    for path in (tmp_path / "a.csv", tmp_path / "a.csv/below"):
        with pytest.raises(CseError, match=r": circular links; fix them"):
            find_data_file(path, "key")


def test_a_line_ends_at_n_rn_and_r_only(tmp_path):
    path = write(tmp_path / "a.txt", "one\ntwo\r\nthree\rfour\u2028still four\u0085still\x0bfour\x0c\x1c!")
    assert texts(path, "sentences") == [
        ("one",),
        ("two",),
        ("three",),
        ("four\u2028still four\u0085still\x0bfour\x0c\x1c!",),
    ]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_what_separates_the_header_s_names_separates_fields(tmp_path, mark):
    lines = [f'"sent0"{mark}sent1{mark}"hard, neg"', f'a, b{mark}"c{mark}d"{mark}e', f"one{mark}two, three"]
    path = write(tmp_path / "a.csv", "\n".join(lines))
    assert texts(write(tmp_path / "two.csv", "\n".join(lines[:2])), "pairs") == [("a, b", f"c{mark}d")]
    name = {";": "semicolons", "\t": "tabs", "|": "bars"}[mark]
    assert failure(path, "pairs").endswith(
        f":3: 2 fields, but the header has 3; put quotes around fields that hold {name}"
    )


def test_quotes_are_ordinary_text_in_tsv(tmp_path):
    assert texts(write(tmp_path / "a.tsv", 'sent0\tsent1\n"a\tb "c"\n'), "pairs") == [('"a', 'b "c"')]


def test_long_fields_nul_and_byte_order_mark(tmp_path):
    long = "word " * 100_000
    path = write(tmp_path / "a.csv", b"\xef\xbb\xbfsent0,sent1\n" + long.encode() + b",a\x00b\n")
    assert texts(path, "pairs") == [(long, "a\0b")]


def test_blank_lines_and_missing_sentences_are_passed_on_with_their_line(tmp_path):
    rows = list(read_rows(write(tmp_path / "a.csv", "sent0,sent1,hard_neg\n\na,b,\n"), "triplets"))
    assert rows == [Row(2, (None, None, None)), Row(3, ("a", "b", ""))]
    rows = list(read_rows(write(tmp_path / "a.jsonl", '{"sent0": "a", "sent1": "b"}\n\n{"sent0": "c"}'), "pairs"))
    assert rows == [Row(1, ("a", "b")), Row(2, (None, None)), Row(3, ("c", None))]


def test_non_utf8_bytes_name_file_line_and_byte(tmp_path):
    message = failure(write(tmp_path / "a.txt", b"fine\r\nfine\rcaf\xe9 au lait\n"), "sentences")
    assert "a.txt:3: byte 0xe9 is not utf-8" in message
    assert "data.encoding" in message
    assert "a.csv:2: byte 0xff" in failure(write(tmp_path / "a.csv", b"sent0,sent1,hard_neg\n\xff,b,c\n"))
    assert "data.encoding" in failure(write(tmp_path / "b.txt", b"no mark"), "sentences", encoding="utf-16")
    for encoding in ("utf-16-le", "utf-16-be", "utf-32"):
        path = write(tmp_path / "c.csv", "sent0,sent1\na,b\n".encode(encoding))
        assert failure(path, "pairs").startswith(f"{path}: not utf-8; set data.encoding")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_file_with_nothing_but_a_mark_or_blank_lines(tmp_path, name):
    assert "no rows; add rows" in failure(write(tmp_path / name, b"\xef\xbb\xbf\n\n"))


def test_wrong_column_name_shows_the_nearest_and_all_there_are(tmp_path):
    path = write(tmp_path / "a.csv", "sent0,sent1,hard_ngs\na,b,c\n")
    assert "no column 'hard_neg'" in failure(path)
    assert "did you mean 'hard_ngs'?; the columns are sent0, sent1, hard_ngs" in failure(path)
    message = failure(path, columns=["sent0", "sent1", "hard"])
    assert "no column 'hard' (data.columns)" in message
    assert "the columns are sent0, sent1, hard_ngs" in message


def test_pairs_file_for_triplets_and_txt_for_pairs(tmp_path):
    assert "no column 'hard_neg' for data.view: triplets" in failure(write(tmp_path / "a.csv", "sent0,sent1\na,b\n"))
    assert "a.txt:2:" in failure(write(tmp_path / "a.txt", "a\tb\nonly one\n"), "pairs")
    assert "data.columns: null" in failure(tmp_path / "a.txt", "pairs", columns=["a", "b"])
    labelled = write(tmp_path / "b.txt", "sentence1\tsentence2\tlabel\na\tb\t0\nc\td\t1\n")
    found = [row.fault for row in read_rows(labelled, "pairs")]
    assert found == ["labelled_negative", ""], "a first line of usual names is that of a table"
    answers = write(tmp_path / "d.txt", "When?\tIn 1991.\t1990\nDoes it?\tIt does.\tno\nWho?\tHe.\tShe.\n")
    assert [row[2] for row in texts(answers, "triplets")] == ["1990", "no", "She."]
    assert [row[:2] for row in texts(answers, "pairs")][1:] == [("Does it?", "It does."), ("Who?", "He.")]
    assert "no rows" in failure(write(tmp_path / "f.txt", ""), "pairs")
    quoted = write(tmp_path / "g.csv", 'query,passage\nburnout,"[""Burnout"" in nurses]"\n')
    assert texts(quoted, "pairs") == [("burnout", '["Burnout" in nurses]')]


ROWS = [f"Text {n} is wrong.,{label}" for n, label in enumerate(["billing", "login", "shipping"] * 4)]


@pytest.mark.parametrize(("first", "last"), [(1, 6), (0, 11), (3, 4), (2, 4)])
def test_rows_between_two_stray_quotes_are_not_lost(tmp_path, first, last):
    """The csv dialect has them as one row with line breaks: so do DuckDB, pyarrow and datasets."""
    lines = list(ROWS)
    lines[first] = f'"{lines[first]}'
    lines[last] = lines[last].replace(",", '",')
    path = write(tmp_path / "a.csv", "\n".join(["text,label", *lines]))
    assert failure(path, "categories") == (
        f"{path}:{first + 2}: a quote opens here and closes in line {last + 2}, and each line between is a whole row; "
        'double stray quotes (""), or write texts with line breaks as jsonl'
    )


@pytest.mark.parametrize(
    "text", ["one\ntwo", "Dear all, hello,\nyours, me", "a\n\nb,c", "1,000 of\n2,000 or\n3,000", "first\nsecond, third"]
)
def test_line_breaks_of_a_text_are_its_own(tmp_path, text):
    lines = ["text,label", *ROWS[:2], f'"{text}",billing', *ROWS[2:4]]
    assert texts(write(tmp_path / "a.csv", "\n".join(lines)), "categories")[2] == (text,)


def test_a_text_whose_second_line_could_be_a_row_counts_where_texts_have_line_breaks(tmp_path):
    some = ['1,"a\nb"', '2,"one\ntwo,three"']
    assert len(texts(write(tmp_path / "a.csv", "\n".join(["n,text", *some])), "sentences")) == 2
    assert "a.csv:2: a quote opens" in failure(write(tmp_path / "a.csv", "\n".join(["n,text", some[1]])), "sentences")


def test_many_lines_that_are_rows_are_told_wherever_they_stand(tmp_path):
    lines = ["text,label", '"a\nb",x', *ROWS[:3], f'"{ROWS[3]}', *ROWS[4:6], 'end",login']
    message = failure(write(tmp_path / "a.csv", "\n".join(lines)), "categories")
    assert "a.csv:7: a quote opens here and closes in line 10" in message


@pytest.mark.parametrize(
    ("line", "mark"), [("sep=;", ";"), ('"sep=,"', ","), ("SEP=|", "|"), ("sep=\t", "\t"), ("sep=:", ":")]
)
def test_excels_first_line_names_the_separator(tmp_path, line, mark):
    path = write(tmp_path / "a.csv", f"{line}\r\ntext{mark}label\r\nwords{mark}x\r\n")
    assert list(read_rows(path, "categories")) == [Row(3, ("words",), "x")]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.GZ"])
@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_of_objects_is_read_object_by_object(tmp_path, name, indent):
    content = ("\ufeff " + json.dumps([{"text": "a", "n": [1, {"x": "]"}]}, {"text": "é"}], indent=indent)).encode()
    path = write(tmp_path / name, gzip.compress(content) if name.endswith(".GZ") else content)
    assert [(row.line, row.texts) for row in read_rows(path, "sentences")] == [(1, ("a",)), (2, ("é",))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"text": "a"}, 3]', ":2: expected a JSON object with named columns, found int"),
        ('[{"text": "a"} {"text": "b"}]', ":2: not valid JSON (Expecting ',' or, at the end, ']')"),
        ('[{"text": "a"},\n{"text": "b"', ":2: not valid JSON (Expecting ',' delimiter"),
        ("[]", ": no rows; add rows"),
        ("[", ":1: not valid JSON ("),
        ('[{"text": "a"},]', ":2: not valid JSON ("),
        ('[{"text": "a"}] x', ":2: not valid JSON ("),
        ("[1", ":1: expected a JSON object"),
    ],
)
def test_a_broken_array_names_the_object(tmp_path, text, said):
    assert failure(write(tmp_path / "a.json", text), "sentences").startswith(f"{tmp_path}/a.json{said}")


def test_a_gzipped_file_that_is_none_or_holds_far_too_much(tmp_path, monkeypatch):
    packed = gzip.compress(b"text\n" + b"a\n" * 9000)
    for content in (b"text\na\n", packed[:-9], packed[:40]):
        assert "a.csv.gz: not gzip, or cut off; pack it again" in failure(
            write(tmp_path / "a.csv.gz", content), "sentences"
        )
    monkeypatch.setattr(read, "_EXPANDED", 1000)
    monkeypatch.setattr(read, "_RATIO", 3)
    assert "a.csv.gz: holds over 1,000 bytes, 3 for each of its own" in failure(
        write(tmp_path / "a.csv.gz", packed), "sentences"
    )


def test_utf_16_by_its_mark(tmp_path):
    for encoding in ("utf-16", "utf-16-be"):
        content = ("\ufeff" if encoding != "utf-16" else "") + "text,label\r\né,x\r\n"
        path = write(tmp_path / "a.csv", content.encode(encoding))
        assert list(read_rows(path, "categories")) == [Row(2, ("é",), "x")]


def test_a_key_within_an_object(tmp_path):
    row = {"data": {"text": "a", "more": {"deep": "b"}}, "label": "x", "a.b": "c"}
    lines = write(tmp_path / "a.jsonl", json.dumps(row) + '\n{"data": 3}\n')
    pq.write_table(pa.table({name: [value] for name, value in row.items()}), tmp_path / "a.parquet")
    for path in (lines, tmp_path / "a.parquet"):
        for name, text in (("data.text", "a"), ("data.more.deep", "b"), ("a.b", "c")):
            assert texts(path, "sentences", columns=[name])[0] == (text,)
        assert "did you mean 'data.text'?; the columns are data, data.text" in failure(path, "categories")
    assert texts(lines, "sentences", columns=["data.text"])[1] == (None,)


def test_a_line_without_end_is_not_read_whole(monkeypatch):
    monkeypatch.setattr(read, "_LONGEST", 10_000)

    class Endless(io.RawIOBase):
        taken = 0

        def readable(self):
            return True

        def readinto(self, buffer):
            self.taken += len(buffer)
            assert self.taken < 1_000_000
            buffer[:] = b"x" * len(buffer)
            return len(buffer)

    with pytest.raises(CseError, match=r"a.txt:1: a line of over 10,000 characters; break it into several"):
        list(file_lines(io.BufferedReader(Endless()), "a.txt"))


@pytest.mark.parametrize("repeats", ["a column", "a struct"])
def test_a_parquet_file_that_stands_for_far_more_text_than_it_holds(tmp_path, monkeypatch, repeats):
    monkeypatch.setattr(read, "_EXPANDED", 10_000_000)
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 300_000, pa.int32()), pa.array(["a b " * 500]))
    path = tmp_path / "a.parquet"
    column = long if repeats == "a column" else pa.StructArray.from_arrays([long], ["text"])
    pq.write_table(pa.table({"text" if repeats == "a column" else "data": column}), path)
    assert path.stat().st_size < 100_000
    name = "text" if repeats == "a column" else "data.text"
    assert "bytes hold over 10,000,000 of equal texts; keep each of them once" in failure(
        path, "sentences", columns=[name]
    )
    short = pa.table({"text": ["yes", None, "no"] * 10_000, "n": range(30_000)})
    pq.write_table(short, path)
    assert texts(path, "sentences")[-3:] == [("yes",), (None,), ("no",)]


def test_a_folder_must_hold_exactly_one_data_file(tmp_path):
    write(tmp_path / "README.md", "x")
    write(tmp_path / ".hidden.csv", "x")
    with pytest.raises(CseError, match=r"no .txt, .csv, .tsv, .jsonl, .ndjson, .json, .parquet file in this folder"):
        find_data_file(tmp_path)
    first = write(tmp_path / "a.csv", "x")
    write(tmp_path / "a.csv.dvc", "x")
    assert find_data_file(tmp_path) == first
    write(tmp_path / "b.txt", "x")
    with pytest.raises(CseError, match=r"several data files \(a.csv, b.txt\); name one in data.train_path"):
        find_data_file(tmp_path)
    with pytest.raises(CseError, match=r"cannot read .dvc files"):
        find_data_file(tmp_path / "a.csv.dvc")
