"""The page opens from disk alone, its links lead somewhere, and its pictures are the data beside them."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from cse.report.ablations import Ablation, AblationCell
from cse.report.canvas import INK
from cse.report.page import PAGE_FILE, as_html, as_markdown, make_report, write_report
from cse.report.pictures import draw_ablation, draw_domain_shift
from cse.report.systems import find_records, group
from tests.report.made_up import BARE, make_data, make_record, trained

VOID = {"meta", "br", "img", "input", "link", "hr", "use", "path", "image"}


class Page(HTMLParser):
    """Collects ids, links and tables, and refuses tags that do not nest."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.sources, self.open, self.tags, self.heads = [], [], [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        if "id" in found:
            self.ids.append(found["id"])
        self.links += [value for name, value in attrs if name in ("href", "xlink:href") and value]
        self.sources += [value for name, value in attrs if name == "src"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def report(records):
    cells = tuple(AblationCell(f"length {n}", float(n), {42: {"Avg.": 80.0 + n}}) for n in (1, 2, 4))
    kinds = tuple(AblationCell(name, None, {1: {"own": 3.0}, 2: {"own": 4.0}}) for name in "ab")
    ablations = [
        Ablation("prompt-length", "prompt length", "tiny-bert", "rows", cells),
        Ablation("prompt-type", "kind of prompt", "tiny-bert", "rows", kinds),
    ]
    return make_report(group(find_records([records])), ablations)


@pytest.fixture(scope="module")
def html(report):
    return as_html(report)


def test_the_page_needs_nothing_outside(html):
    page = Page(html)
    outside = [link for link in page.links if not link.startswith(("#", "data:"))]
    assert (outside, page.sources) == ([], [])
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def test_links_lead_somewhere_and_ids_are_unique(html):
    page = Page(html)
    inside = [link[1:] for link in page.links if link.startswith("#")]
    assert len(inside) > 40
    assert set(inside) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_tables_sort_by_buttons_that_a_keyboard_reaches(html):
    tags = Page(html).tags
    heads = [index for index, (tag, _) in enumerate(tags) if tag == "th"]
    assert len(heads) > 100
    assert all(tags[index + 1][0] == "button" for index in heads)
    regions = [found for tag, found in tags if found.get("class") == "scroll"]
    assert regions and all(found["tabindex"] == "0" and found["aria-label"] for found in regions)


def test_drawings_take_the_colour_of_the_page(report, html):
    assert any(INK in picture.svg for picture in report.pictures)
    assert INK not in html.split("</style>")[1]
    assert "currentColor" in html


def test_every_picture_has_its_data_and_opens(report):
    names = [picture.name for picture in report.pictures]
    assert names == [
        "density-by-gold", "density-of-systems", "projection", "ablation-prompt-length", "ablation-prompt-type"
    ]  # fmt: skip
    for picture in report.pictures:
        assert ElementTree.fromstring(picture.svg).tag.endswith("svg")
        assert picture.png.startswith(b"\x89PNG")
        head, *table = csv.reader(io.StringIO(picture.data))
        assert table and all(len(row) == len(head) for row in table)


def test_the_data_of_a_picture_are_those_of_the_records(report, records):
    density = next(picture for picture in report.pictures if picture.name == "density-by-gold")
    rows = [row for row in csv.DictReader(io.StringIO(density.data)) if row["system"] == "backbone"]
    stored = list(csv.DictReader((records / "backbone/density.csv").open(encoding="utf-8")))
    assert [(row["group"], row["cosine"], row["density"]) for row in rows] == [
        (row["group"], row["cosine"], row["density"]) for row in stored
    ]


def test_the_same_records_give_the_same_report(report, records):
    again = make_report(group(find_records([records])), report.ablations)
    assert as_html(again) == as_html(report)


def test_names_are_text_and_not_markup(tmp_path):
    make_record(tmp_path, "evil", BARE | {"backbone": {"name": "x"}}, data=make_data(("STS12",)), measures=("sts",))
    path = tmp_path / "evil/record.json"
    path.write_text(path.read_text().replace('"name": "evil"', '"name": "<script>alert(1)</script> & $x_1$"'))
    html = as_html(make_report(group(find_records([tmp_path])), []))
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    Page(html)


def test_markdown_has_the_same_figures(report):
    text = as_markdown(report)
    prompts = next(system for system in report.systems if system.name == "prompts")
    mean = sum(record.scores["sts"]["STS13"]["all"] for record in prompts.records) / 3
    assert f"| **{mean:.2f} ± " in text
    assert "| 81.81<sup>4</sup> |" in text
    assert "4. printed 81.81; the mean of the printed scores is 81.66" in text
    for picture in report.pictures:
        assert f"(pictures/{picture.name}.svg)" in text


def test_a_report_is_a_folder_with_page_markdown_and_pictures(report, tmp_path):
    write_report(report, tmp_path)
    assert (tmp_path / PAGE_FILE).stat().st_size > 100_000
    written = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert written == sorted(f"{p.name}.{kind}" for p in report.pictures for kind in ("csv", "png", "svg"))


def test_domain_shift_is_drawn_where_both_sides_were_measured(tmp_path, records):
    systems = group(find_records([records]))
    assert draw_domain_shift(systems) is None
    shifted = []
    for seed in (1, 2):
        record = make_record(tmp_path, f"a-{seed}", trained(seed), seed=seed, measures=("sts",))
        record.scores["cxc"] = {"mean": 50.0 + seed, "std": 1.0, "setting": "some"}
        shifted.append(record)
    picture = draw_domain_shift([*systems, *group(shifted)])
    rows = list(csv.DictReader(io.StringIO(picture.data)))
    assert {row["system"] for row in rows} == {"a"}
    assert [float(row["spearman"]) for row in rows if row["measure"].startswith("CxC")] == [51.0, 52.0]
    assert [row["run"] for row in rows] == ["a-1", "a-2"] * 2


def test_margins_are_drawn_beside_the_published_curve():
    cells = [AblationCell("without the hinge", None, {1: {"Avg.": 80.0}})]
    cells += [AblationCell(f"margin {m}", m, {1: {"Avg.": 80 + m}}) for m in (0.1, 0.2)]
    picture = draw_ablation(Ablation("margin", "margin of the hinge", "tiny", "rows", tuple(cells)))
    words = "".join(ElementTree.fromstring(picture.svg).itertext())
    assert "published (PromCSE table 4), BERT-base" in words
    assert "without the hinge" in words
