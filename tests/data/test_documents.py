"""The view ``documents``: tables and files, their titles, passages and the rows made of them."""

import time

import pytest

from cse.data.documents import document_rows, passages_of, read_documents
from cse.data.markup import html_document, markdown_document
from cse.data.store import PreparedData
from tests.data.conftest import dropped
from tests.parts import refusal
from tests.rows import write_lines, write_objects

BODY = "Dr. Smith lives in Rome. He has a cat. The cat sleeps all day! Does it eat? It does."


@pytest.fixture
def rows_of(prepared):
    """Prepare documents, and return the rows and the report."""

    def call(path, **more) -> tuple[list[dict], dict]:
        data = prepared(path, view="documents", **more)
        return data.train.to_pylist(), data.report

    return call


def test_passages_are_whole_sentences_up_to_the_limit():
    passages = ["Dr. Smith lives in Rome. He has a cat.", "The cat sleeps all day! Does it eat?", "It does."]
    assert passages_of([BODY], "en", 9) == passages
    assert passages_of([BODY], "en", 1)[:2] == ["Dr. Smith lives in Rome.", "He has a cat."], "never half a sentence"
    assert passages_of(["one\ntwo", "  ", "three"], "en", 60) == ["one two three"]
    cat, dog = "\u732b\u5728\u7761\u89c9\u3002", "\u72d7\u5728\u8dd1\u3002"
    assert passages_of([cat + dog], "zh", 3) == [cat, dog]


def test_a_folder_of_beir_works_as_it_is(rows_of, tmp_path):
    whole = "Cats in Rome. They sleep."
    documents = [{"_id": "7", "title": "Cats in Rome", "text": whole, "metadata": {}}, {"_id": "8", "text": " "}]
    write_objects(tmp_path / "beir/corpus.jsonl", documents)
    write_objects(tmp_path / "beir/queries.jsonl", [{"_id": "1", "text": "who has a cat?"}])
    rows, report = rows_of(tmp_path / "beir")
    assert [tuple(row.values()) for row in rows] == [
        ("Cats in Rome", whole, "1"), ("Cats in Rome.", whole, "1"), ("They sleep.", whole, "1"),
    ]  # fmt: skip
    assert dropped(report["train"]) == {"empty_document": (1, "beir:2")}


def test_questions_and_answers_of_a_table(rows_of, tmp_path):
    path = write_lines(tmp_path / "faq.csv", ["question,answer", "How do I pay,By card. Or cash.", "When?,", ",Never."])
    rows, report = rows_of(path, pairs="question_answer")
    assert rows == [{"sent0": "How do I pay", "sent1": "By card. Or cash.", "group": "2"}]
    assert dropped(report["train"]) == {"empty_document": (2, "faq.csv:3")}
    rows, _ = rows_of(write_lines(path, ["q,a", "Cats,They sleep."]), pairs="question_answer", columns=["q", "a"])
    assert [*rows[0].values()][:2] == ["Cats", "They sleep."]


def test_a_folder_of_files_is_a_document_each(rows_of, tmp_path):
    for name, text in {
        "a.md": "# Cats\n\nCats sleep.\n\n## Do they eat?\n\nThey do.\n",
        "deep/b.html": "<title>Dogs</title><h1>Dogs</h1><p>Dogs run.</p><p>They bark.</p>",
        "c.txt": "First paragraph\ngoes on.\n\nSecond one.\n",
        "README.md": "# Not this\n\nNo.\n",
        ".hidden/d.txt": "Nor this.\n",
        "picture.png": "",
    }.items():
        write_lines(tmp_path / "docs" / name, [text])
    rows, report = rows_of(tmp_path / "docs", pairs="sentences")
    assert (report["view"], [tuple(row.values()) for row in rows]) == ("sentences", [
        ("Cats sleep.", "a.md"), ("They do.", "a.md"), ("First paragraph goes on.", "c.txt"), ("Second one.", "c.txt"),
        ("Dogs run.", "deep/b.html"), ("They bark.", "deep/b.html"),
    ])  # fmt: skip
    rows, _ = rows_of(tmp_path / "docs", pairs="question_answer")
    assert [tuple(row.values()) for row in rows] == [("Do they eat?", "They do.", "a.md")]


def test_markdown_is_read_without_code_tables_and_marks():
    title, sections = markdown_document(
        '---\ntitle: "Front"\ntags: [x]\n---\nIntro *with* a [link](http://x) and `code`\nand more.\n\n'
        "Ask me?\n-------\n\n- one\n- two\n\n```\nno code\n```\n\n| a | b |\n|---|---|\n| c | d |\n"
    )
    assert title == "Front"
    assert [(part.heading, list(part.paragraphs), part.asked) for part in sections] == [
        ("", ["Intro with a link and code and more."], False),
        ("Ask me?", ["one", "two"], True),
    ]


PAGE = """<html><head><title>Refunds - ACME Help</title></head><body>
<div id="cookie-banner"><p>We use cookies to improve your experience. By going on you accept our policy.</p></div>
<header><div class="topnav"><a href="/">Home</a> <a href="/a">Products</a> <a href="/b">Pricing</a></div></header>
<div class="sidebar"><h3>More help</h3><ul><li><a href="/1">Getting started</a></li><li><a href="/2">Bills</a></li></ul>
</div>
<div id="content"><h1>Refunds</h1><p>You can ask for a refund within thirty days of your purchase. Write to our support
team and name the number of the invoice.</p><h2>How long does it take?</h2><p>The bank needs five working days. We send
you a message when the money has left our account.</p><ul><li>Cards: five days</li></ul><pre>no code</pre></div>
<div class="footer"><p>Copyright ACME. All rights reserved. Subscribe to our newsletter.</p></div></body></html>"""


def test_html_is_read_without_menus_scripts_and_code():
    title, (part,) = html_document(
        "<html><head><style>p {}</style></head><body><nav>Home</nav><h2>What is\n it?</h2>text <b>in</b> a\n\nblock"
        "<div>Next<br>line</div><script>x()</script><pre>code</pre><footer>(c)</footer></body></html>"
    )
    assert title == part.heading == "What is it?" and part.asked
    assert part.paragraphs == ["text in a block", "Next", "line"]
    title, sections = html_document(PAGE)
    assert title == "Refunds - ACME Help"
    shape = [(part.heading, len(part.paragraphs), part.asked) for part in sections]
    assert shape == [("Refunds", 1, False), ("How long does it take?", 2, True)]
    assert sections[0].paragraphs[0].startswith("You can ask for a refund within thirty days")
    short = PAGE.replace("You can ask for a refund within thirty days of your purchase. Write", "Write")
    assert "cookies" not in str(html_document(short)[1])


# some of these took minutes, or never ended
SLOW = {
    "comments.html": "<!--" * 100_000,
    "open.html": "<a " * 100_000,
    "blocks.html": "<div>a b</div>" * 10_000,
    "comments.md": "<!--" * 100_000,
    "runs.md": " ".join("`" * (1 + i % 50) for i in range(4000)),
    "title.md": "---\ntitle: a" + " " * 100_000 + "b\n---\n",
    "one.txt": "`" * 500_000,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", SLOW)
def test_hostile_text_is_read_in_time(tmp_path, name):
    (tmp_path / name).write_text(SLOW[name], encoding="utf-8")
    start = time.process_time()
    rows = list(document_rows(read_documents(tmp_path / name), "sentences", language="en"))
    assert time.process_time() - start < 10
    assert rows


@pytest.mark.parametrize("tag", ["div", "ul><li", "b"])
def test_a_page_nested_too_deep_is_named(tmp_path, tag):
    path = write_lines(tmp_path / "deep.html", [f"<{tag}>" * 20_000 + "text"])
    said = "deep.html: its elements are nested more than 256 deep"
    assert said in refusal(lambda: list(read_documents(path)))
    assert "256 deep" in refusal(html_document, "<html>" + f"<{tag}>" * 300 + "text")
    assert html_document(f"<{tag}>" * 50 + "text")[1][0].paragraphs == ["text"]


def test_an_input_without_documents_is_one_line(rows_of, tmp_path):
    for name, text, said in (
        ("a.png", "", "file in this folder (only a.png)"),
        ("a.txt", " \n", "docs: all 1 rows were dropped: 1 empty_document (first docs:a.txt)"),
        ("a.csv", "text\nx", "docs: both files of text and tables (a.csv); name one file"),
    ):
        write_lines(tmp_path / "docs" / name, [text])
        assert said in refusal(rows_of, tmp_path / "docs")


def test_stand_ins_are_the_title_and_sentences_at_even_intervals_each_with_the_document(rows_of, tmp_path):
    texts = [("Cats in Rome", BODY), ("A title alone", ""), ("", "One sentence only."), ("", " ")]
    path = write_objects(tmp_path / "corpus.jsonl", [{"title": title, "text": text} for title, text in texts])
    rows, report = rows_of(path, pairs="stand_ins", stand_ins=3)
    whole = f"Cats in Rome {BODY}"
    assert [(row["sent0"], row["sent1"]) for row in rows] == [
        ("Cats in Rome", whole), ("Dr. Smith lives in Rome.", whole), ("The cat sleeps all day!", whole),
        ("A title alone", "A title alone"), ("One sentence only.", "One sentence only."),
    ]  # fmt: skip
    assert report["train"]["dropped"]["empty_document"]["count"] == 1
    assert PreparedData(tmp_path / "out").made_from == "stand_ins"
    write_objects(path, [{"title": "Cats", "text": BODY}, {"title": "Long", "text": "word " * 2000}])
    rows, _ = rows_of(path, pairs="stand_ins", stand_ins=100, max_words=5000)
    assert [row["sent0"] for row in rows[1:6]] == passages_of([BODY], "en", 1), "all, where there is room"
    assert len(rows[-1]["sent1"].split()) == 1000


def test_a_paragraph_with_very_many_marks_is_read_as_plain_text():
    for mark in ("![", "![a](", "![x][", "**a*"):
        _, (part,) = markdown_document(f"# Title\n\n{mark * 20_000}\n\n*The* end.")
        assert (part.paragraphs[0][:30], part.paragraphs[-1]) == ((mark * 30)[:30], "The end.")
    links = "".join(f"- [word {n}](https://example.com/{n}_x)\n" for n in range(3000))
    assert "word 2999" in markdown_document(links)[1][0].paragraphs[-1]


@pytest.mark.parametrize("between", [" ", "/", '="x" ', '="x"', "='>' "])
def test_a_tag_with_very_many_attributes_is_refused_at_once(between):
    page = f"<p {''.join(f'a{n}{between}' for n in range(100_000))}>hello</p>"
    assert "its tags have too many attributes" in refusal(html_document, page)
    script = f"<script>if (a <b && {' '.join(f'v{n}' for n in range(20_000))})</script>"
    assert html_document(f"{script}<p {' '.join(f'a{n}' for n in range(500))}>hello</p>")[1][0].paragraphs == ["hello"]
