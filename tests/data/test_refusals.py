"""Every file that is refused: one line, which begins with the file and the place and says what to do."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cse.data.documents import read_documents
from cse.data.shape import read_rows
from cse.data.tasks.read import read_scored, read_task
from tests.parts import refusal

READERS = {"task": read_task, "scored": read_scored, "documents": lambda path: list(read_documents(path))}
NLI, PAIR, SCORE = "premise,hypothesis,label\n", "sentence1,sentence2,label\n", "sentence1,sentence2,score\n"
PACKED = gzip.compress(b"text\n" + b"a\n" * 9000, mtime=0)


def labelled(head, *labels):
    return head + "".join(f"one {n},two {n},{label}\n" for n, label in enumerate(labels))


# what it is read as, its name, its content, what is said behind its path
BYTES = [
    ("sentences", "a.txt", b"fine\r\nfine\rcaf\xe9 au lait\n", ":3: byte 0xe9 is not utf-8; set data.encoding"),
    ("pairs", "a.csv", "sent0,sent1\na,b\n".encode("utf-16-le"), ": not utf-8; set data.encoding"),
    ("sentences", "a.csv.gz", b"text\na\n", ": not gzip, or cut off; pack it again"),
    ("sentences", "a.csv.gz", PACKED[:-9], ": not gzip, or cut off; pack it again"),
    ("sentences", "a.parquet", b"PAR1", ": not a parquet file, or cut off; write it again"),
    ("documents", "a.html", b"\xff", ":1: byte 0xff is not utf-8; set data.encoding"),
]
RECORDS = [
    ("sentences", "a.txt", "", ": no rows; add rows"),
    ("triplets", "a.csv", "\ufeff\n\n", ": no rows; add rows"),
    ("triplets", "a.jsonl", "\n", ": no rows; add rows"),
    ("sentences", "a.json", "[]", ": no rows; add rows"),
    ("documents", "a.csv", "text\n", ": no rows"),
    ("pairs", "a.csv", "sent0,sent1\na,b\nc,d,e\n", ":3: 3 fields, but the header has 2; put quotes around"),
    ("pairs", "a.tsv", "sent0\tsent1\na\n", ":2: 1 fields, but the header has 2; remove tabs and line breaks from the"),
    ("pairs", "a.csv", 'sent0,sent1\n"a,b\n', ":2: broken csv record (unexpected end of data); close every quoted"),
    ("sentences", "a.jsonl", '{"text": "a"}\n{', ":2: not valid JSON (Expecting property name"),
    ("sentences", "a.jsonl", '{"text": "a"}\n3', ":2: expected a JSON object with named columns, found int"),
    ("sentences", "a.json", '[{"text": "a"}, 3]', ":2: expected a JSON object with named columns, found int"),
    ("sentences", "a.json", '[{"text": "a"},\n{"text": "b"', ": not valid JSON (Expecting ',' delimiter: line 2"),
    ("sentences", "a.json", '[{"text": "a"}] x', ": not valid JSON (Extra data"),
    ("sentences", "a.jsonl", '{"text": 3}', ":1: expected text, found int '3'; fix or drop the row"),
    ("sentences", "a.jsonl", '{"text": "half \\ud83d"}', ":1: half of a surrogate pair; write the character in full"),
    ("sentences", "a.parquet", pa.table({"text": [7]}), ":1: expected text, found int '7'; fix or drop the row"),
    ("triplets", "a.csv", "query,pos,neg\nq,a,x\nq,\"['a', 'b']\",x\n", ":3: a list of texts written as text; write"),
]  # fmt: skip
TWICE = pa.Table.from_arrays([pa.array(["x"])] * 3, names=["text", "more", "text"])
COLUMNS = [
    ("triplets", "a.csv", "sent0,sent1,hard_ngs\na,b,c\n",
     ": no column 'hard_neg' for data.view: triplets; did you mean 'hard_ngs'?; the columns are sent0, sent1, "
     "hard_ngs; name yours in data.columns"),
    ("triplets", "a.txt", "a\tb\tc\nd\te\tf\n", ": no column 'sent0' for data.view: triplets; the columns are a, b, c"),
    ("categories", "a.jsonl", '{"data": {"text": "a"}}', ": no column 'text' for data.view: categories; did you mean "
     "'data.text'?; the columns are data.text"),
    ("sentences", "a.parquet", TWICE, ": 2 columns 'text'; give each its own name"),
    ("documents", "a.csv", "title,words\nx,y\n", ": no column text, body, content, abstract, nor question and answer"),
    ("pairs", "a.csv", "sentence1,sentence2,label,score\n1,2,3,4\n", ": the columns score, label may each be the"),
    ("task", "a.csv", "a,b\n1,2\n", ": the columns a, b are those of no task; give one of: a folder with corpus"),
    ("task", "a.csv", "text,category,label\nx,y,z\n", ": the columns category and label both fit; remove or rename"),
    ("task", "a.csv", "text,label,sentence1,sentence2\na,b,c,d\n",
     ": the columns fit pairs (sentence1, sentence2, label) and labelled texts (text, label); rename or"),
    ("scored", "a.csv", "sentence1,sentence2,scores\na,b,1\n", ": no column 'score'; did you mean 'scores'?; the"),
    ("scored", "a.md", "x", ": cannot read columns from a .md file; use one of .csv"),
]  # fmt: skip
LABELS = [
    ("pairs", labelled(PAIR, 0, 1, 2), ": the labels 0, 1, 2 in column 'label' may be classes of NLI or scores; write"),
    ("pairs", labelled(NLI, 0, 1), ": the labels 0, 1 in column 'label' may mean entailment and neutral, or no"),
    ("labelled", labelled("question1,question2,is_duplicate\n", 0, 1, "", -1), ": the labels 0, 1 in column 'is_dupl"),
    ("labelled", labelled(NLI, 0, "yes"), ":3: label 'yes' is not one of entailment, neutral"),
    ("pairs", labelled(PAIR, "+1", "-1"), ": labels 1 and -1: -1 may mean a negative or no label; write 0, or"),
    ("pairs", labelled(PAIR, 1, 0, "maybe"), ":4: label 'maybe' is not one of 0, 1, true, false, yes, no, duplicate"),
    ("pairs", labelled(PAIR, 0, 5, 7), ":4: score '7' is not a number from 0 to 5; fix it or set data.score_range"),
    ("task", labelled(PAIR, 1), ": 1 pair; a task needs at least 2, add some"),
    ("task", labelled(PAIR, 1, 1), ": all 2 pairs have the label 1; add pairs with the other one"),
    ("task", labelled(SCORE, 2, 2), ": 2 pairs with the score 2; Spearman needs"),
    ("task", "anchor,positive,negative\na,b,c\nd,e, \n", ":3: no text in column 'negative'"),
    ("task", "text,label\na,x\nb,x\n", ": all texts have the label 'x'; add texts with another label"),
    ("task", "text,label\na,x\nb,x\nc,y\n", ":4: the only text with the label 'y'; add another or remove"),
    ("task", "text,label\na,x\nb,\n", ":3: no label; fill it in or drop the row"),
    ("task", "text,label\na,x\n,x\n", ":3: no text in column 'text'; fill it in or drop the row"),
    ("task", "text,label\na,x\nb,x\nc,y\nd,y\n", ": no label has two test rows, so no text has another"),
    ("scored", f"{SCORE}{'x' * 100_001},b,1\n", ":2: 100,001 characters in column 'sentence1'; split the text"),
    ("scored", f"{SCORE}a,b,1\nc,d,2\na,b,1\nb,a,4\n",
     ":5: score 4 for the pair that has 1 in line 2; keep one of them"),
    *(("scored", labelled(SCORE, value), f":2: score {value!r} is not a number from 0 to 5; fix it or set data.score_")
      for value in ("nan", "", "high", "5.1", "-1", "1_0e0", "\u0663")),
]  # fmt: skip
OBJECTS = [
    ("categories", {"text": "a", "label": ["x"]}, ":1: label \"['x']\" is neither text nor a number"),
    *(("scored", {"sentence1": "a", "sentence2": "b", "score": value}, ":1: score ")
      for value in (None, True, "x", 10**400, float("nan"))),
]  # fmt: skip


TABLES = [(what, "a.csv", content, said) for what, content, said in LABELS]
TABLES += [(what, "a.jsonl", json.dumps(content), said) for what, content, said in OBJECTS]


@pytest.mark.parametrize(("what", "name", "content", "said"), BYTES + RECORDS + COLUMNS + TABLES)
def test_a_file_that_is_refused_is_one_line(tmp_path, what, name, content, said):
    path = tmp_path / name
    if isinstance(content, pa.Table):
        pq.write_table(content, path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refusal(READERS[what] if what in READERS else lambda path: list(read_rows(path, what)), path)
    assert message.startswith(f"{path}{said}"), message
