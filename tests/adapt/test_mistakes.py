"""Mistakes of `cse adapt` are one line, told before any work."""

import json

import pytest

MANY = "\n".join(f"a text with some words {n}" for n in range(30))
FILES = {
    "labels.csv": "text,category\na red cat,x\na small dog,x\nthe house,y\n", "one.csv": "text,label\na,x\nb,x\n",
    "none.csv": "text,label\na,\nb, \n", "both.csv": "text,label\na,x\nA!,y\nb,x\nb,y\n",
    "own.csv": "utterance,scenario\na,x\nb,x\nc,y\n", "names.txt": "red cat\nsmall dog\n", "name.txt": "card\n",
    "lines.txt": f"{MANY}\n", "docs/a.md": "text", "page.md": "# A title\n\nIts text.\n", "empty/readme.md": "",
    "numbers.csv": "id,price\n1,2\n", "apart.csv": "sentence1,sentence2,label\na,b,0\n",
    "headless.csv": "I have lost my card,card\nwhere is it?,card\n",
    "maybe.csv": "sentence1,sentence2,label\na,b,maybe\n",
    "pairs.csv": "sent0,sent1\n" + "".join(f"question {n},answer {n}\n" for n in range(70)),
    "titles.jsonl": (json.dumps({"title": "a title", "text": ""}) + "\n") * 3,
    "documents.jsonl": "".join(json.dumps({"title": f"t {n}", "text": f"Text {n}."}) + "\n" for n in range(3)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "nothing to adapt to: name a file or folder of text"),
        ("--labels labels.csv --task labels.csv", "--task and --labels: give one of them"),
        ("lines.txt -s train.parameters=none -s prompt.kind=none", "train.parameters: none leaves nothing to adapt"),
        ("lines.txt", "nothing to measure: give labelled texts with --labels, or name a task with --task"),
        ("pairs.csv --budget 0.01s -s prompt.length=4 -s train.max_length=16", "--budget: one training and its"),
        ("numbers.csv", "the columns id, price are not known; rename them to one of: title,text;"),
        ("empty", "0 tables and 0 files of text; name one of them"),
        ("apart.csv", "no pair belongs together by its label (1 labelled_negative)"),
        ("maybe.csv", "maybe.csv:2: label 'maybe' is not one of"),
        # labelled texts
        ("--labels one.csv", "all texts have the label 'x'; give texts of two labels or more"),
        ("--labels none.csv", "no text has a label; give texts of two labels or more"),
        ("--labels both.csv", "each of the 2 texts has two labels or more; give each text one label"),
        ("--labels name.txt", "the name of 1 label and no text; give two labels or more, or their texts"),
        ("--labels own.csv --text-column utterence", "no column 'utterence' (--text-column); did you mean 'utterance'"),
        ("--labels headless.csv", "give --text-column; if these are a row, give the file a first line with the names"),
        ("lines.txt --labels names.txt", "lines.txt: nothing is trained from names of labels alone"),
        ("--labels own.csv -s data.columns=[utterance]", "data.columns: a source's columns have usual names here"),
        # documents
        ("titles.jsonl", "none of the 3 documents has more than a title, so no sentence stands in for a query"),
        ("page.md", "page.md: 1 document with text; to be searched, name a folder or a table of two"),
        ("documents.jsonl lines.txt", "lines.txt: sentences beside documents; give more documents, or pairs"),
        ("lines.txt --dev-queries docs", "--dev-queries: judged queries are for documents"),
        ("documents.jsonl --dev-queries no", "no: no such file or folder; put data there (or change --dev-queries)"),
        ("documents.jsonl --dev-queries docs", "--dev-queries: docs: a folder of corpus.jsonl, queries"),
        # several backbones
        ("--labels labels.csv --backbone a a", "--backbone: a is named twice"),
        ("--labels labels.csv --backbone a -s backbone.name=b", "--backbone: -s backbone.name names one too"),
        ("--labels names.txt --backbone bert other", "several are compared on held-out rows or judged"),
        ("lines.txt --backbone bert other", "several are compared on held-out rows or judged"),
        ("--labels labels.csv --backbone bert ./missing", "no folder ./missing"),
    ],
)
def test_mistakes_are_one_line(cse, place, tiny_folders, words, says):
    for name, text in FILES.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    for name in ("bert", "other"):
        (place / name).symlink_to(tiny_folders["bert"])
    done = cse("adapt", *words.split(), "--out", "out")
    assert (done.code, says in done.err.splitlines()[-1]) == (2, True), done.err
    assert not (place / "out/bundle").exists()


def test_the_encoding_of_params_yaml_is_that_of_the_files(cse, place):
    (place / "params.yaml").write_text("data: {encoding: cp1252}\n", encoding="utf-8")
    (place / "labels.csv").write_bytes("text,label\ncafé,x\n".encode("cp1252"))
    assert "all texts have the label 'x'" in cse("adapt", "--labels", "labels.csv").err
