"""The page opens from disk, its links work, and its figures match their data."""

from __future__ import annotations

import copy
import csv
import io
import json
import re
import shutil
import warnings
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from cse.files import write_sealed
from cse.report.ablations import Ablation, AblationCell
from cse.report.canvas import INK
from cse.report.page import PAGE_FILE, as_html, as_markdown, make_report, write_report
from cse.report.pictures import draw_ablation, draw_domain_shift
from cse.report.systems import find_records, group
from tests.report.made_up import make_data, make_record, trained

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


SCRIPT = "<script>document.title = 'x'</script>"
HOSTILE = (
    SCRIPT, "\"'><img src=x onerror=alert(1)>", "</style></svg></title>" + SCRIPT, "$\\frac{$ 100% &amp; `x` *b* _i_",
    "new\nline\r\n# heading | pipe", "\u202edlrow\u2066", "\x00\x1b[31mred", "[x](javascript:alert(1))", "../../up",
    "_hidden", "\u540d\u524d", "x" * 300, "\udcff", "",
)  # fmt: skip


def write_hostile_records(folder):
    """Records in which everything that a user can name bears a hostile name, one name each."""
    record = make_record(folder, "record", trained(1), data=make_data(("STS12", "own")), measures=("sts",))
    tree = json.loads((record.folder / "record.json").read_text(encoding="utf-8"))
    for number, name in enumerate(HOSTILE):
        evil = copy.deepcopy(tree) | {"name": name, "environment": {name: name}}
        evil["model"]["backbone"]["name"] = f"models/{name}"
        facts = evil["model"]["facts"]
        facts["data"]["source"] = name
        facts["settings"]["prompt"] = {"length": number + 1, "init_text": f"{name}\n```\n{SCRIPT}"}
        evil["scores"]["sts"][name] = evil["scores"]["sts"].pop("own")
        evil["scores"]["missing"] = [name]
        copied = shutil.copytree(record.folder, folder / f"record-{number}")
        write_sealed(copied / "record.json", evil)
    shutil.rmtree(record.folder)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A report of hostile names, written to disk: its folder and itself."""
    folder = tmp_path_factory.mktemp("hostile")
    write_hostile_records(folder / "records")
    ablations = [
        Ablation(name, f"{name} {SCRIPT}", name, name, (AblationCell(name, None, {1: {name: 3.0}}),))
        for name in (SCRIPT, "../../up", "a/b", "a-b")
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning is a line on the user's terminal
        made = make_report(group(find_records([folder / "records"])), ablations)
        (folder / "report").mkdir()
        write_report(made, folder / "report")
    return folder, made


def test_names_are_text_and_not_markup(hostile, html):
    folder, _ = hostile
    written = (folder / "report" / PAGE_FILE).read_text(encoding="utf-8")
    page = Page(written)
    assert [tag for tag, _ in page.tags if tag == "script"] == ["script"], "the page's own"
    assert {tag for tag, _ in page.tags} <= {"h3"} | {tag for tag, _ in Page(html).tags}, "no tag that the page has not"
    assert not [name for _, found in page.tags for name in found if name.startswith("on")]
    assert {link.partition(":")[0] for link in page.links if ":" in link} == {"data"}
    assert len(page.ids) == len(set(page.ids))
    assert "&lt;script&gt;document.title" in written
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", written)


def test_pictures_show_every_name(hostile):
    folder, _ = hostile
    texts = ElementTree.parse(folder / "report/pictures/density-of-systems.svg").getroot().itertext()
    words = " ".join(texts)
    for name in ("_hidden", "$\\frac{$ 100% &amp; `x` *b* _i_", "new line # heading | pipe", "x" * 39 + "…"):
        assert name in words
    assert "x" * 40 not in words
    for path in (folder / "report/pictures").glob("*.svg"):
        ElementTree.parse(path)


def test_hostile_names_stay_in_the_folder_and_lose_no_picture(hostile):
    folder, made = hostile
    assert sorted(path.name for path in folder.iterdir()) == ["records", "report"]
    names = [picture.name for picture in made.pictures]
    assert len([name for name in names if name.startswith("ablation-")]) == 4
    written = sorted(path.name for path in (folder / "report/pictures").iterdir())
    assert written == sorted(f"{name}.{kind}" for name in names for kind in ("csv", "png", "svg"))


def test_markdown_takes_no_markup_from_names(hostile):
    folder, _ = hostile
    lines = (folder / "report/report.md").read_text(encoding="utf-8").splitlines()
    outside, fence = [], ""
    for line in lines:
        mark = re.match("`{3,}", line)
        if mark and fence in ("", line):
            fence = "" if fence else mark[0]
        elif not fence:
            outside.append(line)
    assert fence == "", "a name opened a block"
    plain = [re.sub(r"\\.", "", line) for line in outside]  # what is escaped is text
    assert {tag for line in plain for tag in re.findall(r"<[^>]*>", line)} <= {"<sup>", "</sup>"}
    assert all(target.startswith("pictures/") for line in plain for target in re.findall(r"\]\(([^)]*)\)", line))
    table = outside[outside.index("### Systems") + 4 :]
    rows = [line for line in table[: table.index("")] if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {9}


def test_long_names_break_and_wide_tables_scroll_in_their_frame(html):
    """What keeps the page inside a narrow window; seen in a browser at 500 and 1,280 pixels, light and dark."""
    style = html.partition("<style>")[2].partition("</style>")[0].partition("@media (max-width")[0]
    rules = dict(re.findall(r"^([^{}]+) \{([^{}]*)\}$", style, flags=re.M))
    assert "overflow-wrap: anywhere" in rules["body"]
    assert "overflow-x: auto" in rules[".scroll"]
    assert "minmax(0, 1fr)" in rules["dl"], "a column of words is no wider than the page"
    framed = [found for tag, found in Page(html).tags if found.get("class") == "scroll"]
    assert len(framed) == html.count("<table>")


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
