"""Reading the user's files: every supported layout, and a one-line error for every other file."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cse.data.readers import Row, find_data_file, read_rows
from cse.errors import CseError

TRIPLET = ("a man runs", "someone moves", "nobody runs")
SHARED = Path(__file__).parents[2].parent / "shared/data"


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


def test_columns_are_read_in_the_order_given(tmp_path):
    path = write(tmp_path / "a.csv", "x,y,z\n1,2,3\n")
    assert texts(path, "triplets", columns=["z", "x", "y"]) == [("3", "1", "2")]


def test_a_line_ends_at_n_rn_and_r_only(tmp_path):
    path = write(tmp_path / "a.txt", "one\ntwo\r\nthree\rfour\u2028still four\u0085still\x0bfour\x0c\x1c!")
    assert texts(path, "sentences") == [
        ("one",),
        ("two",),
        ("three",),
        ("four\u2028still four\u0085still\x0bfour\x0c\x1c!",),
    ]


def test_mixed_line_ends_in_csv_and_jsonl(tmp_path):
    assert texts(write(tmp_path / "a.csv", "text\na\u2028b\r\nc\rd\n"), "sentences") == [("a\u2028b",), ("c",), ("d",)]
    path = write(tmp_path / "a.jsonl", '{"text": "a\u0085b"}\r\n{"text": "c"}\r{"text": "d"}')
    assert texts(path, "sentences") == [("a\u0085b",), ("c",), ("d",)]


def test_line_breaks_quotes_and_commas_inside_quoted_fields(tmp_path):
    path = write(tmp_path / "a.csv", 'sent0,sent1\n"a\nb","say ""x"", y"\nc,d\n')
    rows = list(read_rows(path, "pairs"))
    assert [row.texts for row in rows] == [("a\nb", 'say "x", y'), ("c", "d")]
    assert [row.line for row in rows] == [2, 4]


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


def test_other_encodings(tmp_path):
    assert texts(write(tmp_path / "a.txt", "café".encode("latin-1")), "sentences", encoding="latin-1") == [("café",)]
    assert texts(write(tmp_path / "b.txt", "café\nolé".encode("utf-16")), "sentences", encoding="utf-16") == [
        ("café",),
        ("olé",),
    ]


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


@pytest.mark.parametrize("ending", ["txt", "csv", "tsv", "jsonl", "parquet"])
def test_empty_file(tmp_path, ending):
    expected = "not a parquet file" if ending == "parquet" else "no rows; add rows"
    assert expected in failure(write(tmp_path / f"a.{ending}", ""), "sentences")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_file_with_nothing_but_a_mark_or_blank_lines(tmp_path, name):
    assert "no rows; add rows" in failure(write(tmp_path / name, b"\xef\xbb\xbf\n\n"))


def test_header_without_rows(tmp_path):
    assert "no rows; add rows" in failure(write(tmp_path / "a.csv", "sent0,sent1,hard_neg\n"))


def test_wrong_column_name_shows_the_nearest_and_all_there_are(tmp_path):
    path = write(tmp_path / "a.csv", "sent0,sent1,hard_negs\na,b,c\n")
    assert "no column 'hard_neg'" in failure(path)
    assert "did you mean 'hard_negs'?; the columns are sent0, sent1, hard_negs" in failure(path)
    message = failure(path, columns=["sent0", "sent1", "hard"])
    assert "no column 'hard' (data.columns)" in message
    assert "the columns are sent0, sent1, hard_negs" in message


def test_pairs_file_for_triplets_and_txt_for_pairs(tmp_path):
    assert "no column 'hard_neg' for data.view: triplets" in failure(write(tmp_path / "a.csv", "sent0,sent1\na,b\n"))
    assert "a.txt:2:" in failure(write(tmp_path / "a.txt", "a\tb\nonly one\n"), "pairs")
    assert "data.columns: null" in failure(tmp_path / "a.txt", "pairs", columns=["a", "b"])


def test_broken_json_ragged_rows_and_open_quotes(tmp_path):
    assert "a.jsonl:2: not valid JSON" in failure(
        write(tmp_path / "a.jsonl", '{"text": "a"}\n{"text": \n'), "sentences"
    )
    assert "a.jsonl:1: expected a JSON object" in failure(write(tmp_path / "a.jsonl", '["a"]\n'), "sentences")
    assert "a.jsonl:1: expected text, found int" in failure(write(tmp_path / "a.jsonl", '{"text": 3}'), "sentences")
    assert "surrogate" in failure(write(tmp_path / "a.jsonl", '{"text": "\\ud800"}'), "sentences")
    assert "a.csv:3: 4 fields, but the header has 3" in failure(
        write(tmp_path / "a.csv", "sent0,sent1,hard_neg\na,b,c\na,b,c,d\n")
    )
    assert "a.csv:2: broken csv record" in failure(write(tmp_path / "a.csv", 'sent0,sent1,hard_neg\n"a,b,c\nd,e,f\n'))
    assert "a.tsv:2: 1 fields, but the header has 2" in failure(write(tmp_path / "a.tsv", "sent0\tsent1\na\n"), "pairs")
    assert "not a parquet file" in failure(write(tmp_path / "a.parquet", "text"), "sentences")


def test_missing_file_names_the_nearest(tmp_path):
    write(tmp_path / "train.csv", "x")
    with pytest.raises(CseError, match=r"no such file or folder; did you mean 'train.csv'\?"):
        find_data_file(tmp_path / "trian.csv")


def test_a_folder_must_hold_exactly_one_data_file(tmp_path):
    write(tmp_path / "README.md", "x")
    write(tmp_path / ".hidden.csv", "x")
    with pytest.raises(CseError, match=r"no .txt, .csv, .tsv, .jsonl, .ndjson, .parquet file in this folder"):
        find_data_file(tmp_path)
    first = write(tmp_path / "a.csv", "x")
    write(tmp_path / "a.csv.dvc", "x")
    assert find_data_file(tmp_path) == first
    write(tmp_path / "b.txt", "x")
    with pytest.raises(CseError, match=r"several data files \(a.csv, b.txt\); name one in data.train_path"):
        find_data_file(tmp_path)
    with pytest.raises(CseError, match=r"cannot read .dvc files"):
        find_data_file(tmp_path / "a.csv.dvc")


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data is not here")
def test_published_layouts_read_as_they_are():
    assert sum(1 for row in read_rows(SHARED / "nli/nli_for_simcse.csv", "triplets") if all(row.texts)) == 41_626
    assert sum(1 for row in read_rows(SHARED / "wiki/wiki_sentences.txt", "sentences") if all(row.texts)) == 228_566
