"""The page opens from disk, its links work, and its figures match their data."""

import copy
import csv
import io
import json
import re
import shutil
import warnings
from xml.etree import ElementTree

import lxml.html
import pytest

from cse.artifact import write_sealed
from cse.report.page import PAGE_FILE, as_html, make_report, write_report
from cse.report.systems import find_records, group
from tests.report.made_up import make_data, make_record, trained


@pytest.fixture(scope="module")
def report(records):
    return make_report(group(find_records([records])))


def parts(text: str) -> tuple[set[str], list[tuple[str, str]]]:
    """The tags of a page, and the names and values of all attributes."""
    elements = [element for element in lxml.html.document_fromstring(text).iter() if isinstance(element.tag, str)]
    return {element.tag for element in elements}, [pair for element in elements for pair in element.items()]


def test_the_page_needs_nothing_outside(report):
    html = as_html(report)
    addresses = [value for name, value in parts(html)[1] if name.rpartition(":")[2] in ("href", "src")]
    assert addresses and all(one.startswith(("#", "data:")) for one in addresses)
    assert not re.search(r"@import|url\((?!#)", html)


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


def test_names_are_text_and_not_markup(report, tmp_path):
    write_hostile_records(tmp_path / "records")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning is a line on the user's terminal
        write_report(make_report(group(find_records([tmp_path / "records"]))), tmp_path)
    written = (tmp_path / PAGE_FILE).read_text(encoding="utf-8")
    (tags, attributes), (usual, _) = parts(written), parts(as_html(report))
    assert written.count("<script") == 1, "the page's own"
    assert tags <= usual | {"h3"}, "no tag that the page has not"
    assert not [name for name, _ in attributes if name.startswith("on")]
    schemes = {value.partition(":")[0] for name, value in attributes if name.endswith("href") and ":" in value}
    assert schemes <= {"data"}
    assert "&lt;script&gt;document.title" in written
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", written)


def test_a_report_is_a_folder_with_page_and_pictures(report, tmp_path):
    write_report(report, tmp_path)
    for picture in report.pictures:
        assert ElementTree.fromstring(picture.svg).tag.endswith("svg") and picture.png.startswith(b"\x89PNG")
        stored = list(csv.DictReader((tmp_path / f"pictures/{picture.name}.csv").open(encoding="utf-8")))
        assert stored == list(csv.DictReader(io.StringIO(picture.data))) != []
