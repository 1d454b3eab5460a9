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

from cse.artifact import write_sealed
from cse.report.page import PAGE_FILE, as_html, make_report, write_report
from cse.report.systems import find_records, group
from tests.report.made_up import make_data, make_record, trained

VOID = {"meta", "br", "img", "input", "link", "hr", "use", "path", "image"}


class Page(HTMLParser):
    """Collects ids, links and tables, and refuses tags that do not nest."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.sources, self.open, self.tags = [], [], [], [], []
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
    return make_report(group(find_records([records])))


@pytest.fixture(scope="module")
def html(report):
    return as_html(report)


def test_the_page_needs_nothing_outside(html):
    page = Page(html)
    outside = [link for link in page.links if not link.startswith(("#", "data:"))]
    assert (outside, page.sources) == ([], [])
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


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
        facts["settings"]["prompt"] = {"length": number + 1, "init_checkpoint": f"{name}\n```\n{SCRIPT}"}
        evil["scores"]["sts"][name] = evil["scores"]["sts"].pop("own")
        evil["scores"]["missing"] = [name]
        copied = shutil.copytree(record.folder, folder / f"record-{number}")
        write_sealed(copied / "record.json", evil)
    shutil.rmtree(record.folder)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The folder of a report of hostile names."""
    folder = tmp_path_factory.mktemp("hostile")
    write_hostile_records(folder / "records")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning is a line on the user's terminal
        (folder / "report").mkdir()
        write_report(make_report(group(find_records([folder / "records"]))), folder / "report")
    return folder / "report"


def test_names_are_text_and_not_markup(hostile, html):
    written = (hostile / PAGE_FILE).read_text(encoding="utf-8")
    page = Page(written)
    assert [tag for tag, _ in page.tags if tag == "script"] == ["script"], "the page's own"
    assert {tag for tag, _ in page.tags} <= {"h3"} | {tag for tag, _ in Page(html).tags}, "no tag that the page has not"
    assert not [name for _, found in page.tags for name in found if name.startswith("on")]
    assert {link.partition(":")[0] for link in page.links if ":" in link} == {"data"}
    assert len(page.ids) == len(set(page.ids))
    assert "&lt;script&gt;document.title" in written
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", written)


def test_a_report_is_a_folder_with_page_and_pictures(report, tmp_path):
    write_report(report, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {PAGE_FILE, "pictures"}
    for picture in report.pictures:
        assert ElementTree.fromstring(picture.svg).tag.endswith("svg") and picture.png.startswith(b"\x89PNG")
        stored = list(csv.DictReader((tmp_path / f"pictures/{picture.name}.csv").open(encoding="utf-8")))
        assert stored == list(csv.DictReader(io.StringIO(picture.data))) != []
