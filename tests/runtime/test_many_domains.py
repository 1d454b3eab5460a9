"""A bank of many domains: which files are touched when, what stays in memory, and the nearest domain of a text."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest

from cse.errors import CseError
from cse.export.domains import add_domain, remove_domain
from cse.runtime import bank as banks
from cse.runtime import domain_files
from cse.runtime.bank import DOMAINS, BadDomainError, Bank, NoDomainError
from cse.runtime.domain_files import read_domain
from tests.parts import refusal
from tests.runtime import test_bank
from tests.runtime.test_bank import WIDTH, file_of, make_domain, value_of

bank = test_bank.bank  # a fixture


@pytest.fixture
def settled(monkeypatch):
    """A file system whose time stamps are fine, so that nothing is looked at again for having changed just now."""
    for module in (banks, domain_files):
        monkeypatch.setattr(module, "COARSE_NS", -1)


def test_the_longest_unused_domain_gives_way(bank, settled, monkeypatch):
    noted = Mock(side_effect=read_domain)
    monkeypatch.setattr(banks, "read_domain", noted)
    add_domain(bank, make_domain("c", 3.0))
    size = make_domain("c").prompt.nbytes
    opened = Bank(bank, kept_bytes=2 * size + file_of(bank, "a").stat().st_size % size)
    for name in "abacab":
        opened.domain(name)
    read = [call.args[0].name[0] for call in noted.call_args_list]
    assert read == ["a", "b", "c", "b"], "c took the place of b, and b that of c"
    add_domain(bank, make_domain("wide", 4.0, length=300))
    with pytest.raises(BadDomainError, match=r"\d+ bytes, and all domains in memory may have \d+; allow"):
        opened.domain("wide")


def test_a_file_that_is_replaced_while_it_is_read_gives_one_version_and_then_the_other(bank, settled, monkeypatch):
    opened = Bank(bank)

    def slowly(path, *given):
        found = read_domain(path, *given)
        if value_of(found) == 1:
            add_domain(bank, make_domain("a", 9.0), replace=True)
        return found

    monkeypatch.setattr(banks, "read_domain", slowly)
    assert [value_of(opened.domain("a")) for _ in range(3)] == [1, 9, 9]


def test_a_file_that_is_written_over_while_it_is_read_is_right_or_refused(bank):
    """As `cp` does it, which cuts the file first; were it mapped into memory, this would end the process."""
    add_domain(bank, make_domain("a", 1.0, length=4000), replace=True)
    whole, over = file_of(bank, "a").read_bytes(), threading.Event()

    def write():
        while not over.is_set():
            file_of(bank, "a").write_bytes(whole)

    opened, refused = Bank(bank), 0
    with ThreadPoolExecutor(1) as pool:
        pool.submit(write)
        for _ in range(300):
            try:
                assert value_of(opened.domain("a")) == 1
            except CseError:
                refused += 1
        over.set()
    assert refused, "some were read half written"
    assert value_of(opened.domain("a")) == 1


@pytest.mark.parametrize("name", ["../a", "x/../a", "a\0", "a" * 300, "", ".", "a.safetensors", "é", "\udcff", None, 3])
def test_no_name_leads_out_of_the_folder(bank, name):
    make_domain("outside").write(bank / "outside.safetensors")
    with pytest.raises(NoDomainError, match="no domain"):
        Bank(bank).domain(name)


def test_a_folder_that_is_gone_is_told_from_a_domain_that_is(bank):
    opened = Bank(bank)
    (bank / DOMAINS).rename(bank / "away")
    for ask in (opened.names, opened.domains, opened.centres, lambda: opened.domain("a"), lambda: opened.outline("a")):
        assert "domains: cannot read the domains of the bank" in refusal(ask)
    (bank / "away").rename(bank / DOMAINS)
    remove_domain(bank, "a")
    with pytest.raises(NoDomainError, match="no domain 'a'; it has b"):
        opened.domain("a")


def test_an_outline_tells_what_the_domain_would(bank):
    matrix = {"map_mean": np.zeros(WIDTH, np.float32), "map_matrix": np.ones((WIDTH, 5), np.float32)}
    add_domain(bank, make_domain("c", centres=np.eye(2, WIDTH, dtype=np.float32), side="query", **matrix))
    opened = Bank(bank)
    for name in "abc":
        found, whole = opened.outline(name), opened.domain(name)
        assert found == (
            whole.dimension, whole.max_length, whole.facts.normalize, "query" in whole.texts,
            whole.facts.side, whole.centres is not None,
        )  # fmt: skip


def centred(name, *places, **changes):
    """A domain whose centres are axes."""
    return make_domain(name, centres=np.eye(WIDTH, dtype=np.float32)[list(places)], **changes)


def nearest(opened, *places):
    return [one.name for one in opened.nearest(2 * np.eye(WIDTH, dtype=np.float32)[list(places)])]


def test_the_nearest_of_many_is_that_of_all_cosines(bank):
    random = np.random.default_rng(0)
    texts, best = random.normal(size=(500, WIDTH)).astype(np.float32), []
    for number in range(200):
        rows = random.normal(size=(number % 4 + 1, WIDTH)).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        make_domain(f"d{number}", centres=rows).write(file_of(bank, f"d{number}"))
        best.append((texts @ rows.T).max(axis=1))
    expected = [f"d{number}" for number in np.argmax(best, axis=0)]
    assert [one.name for one in Bank(bank).nearest(texts)] == expected
    assert len(set(expected)) > 100


@pytest.fixture
def axes(bank):
    """The bank with domains of one axis each: c, d and e."""
    for place, name in enumerate("cde"):
        add_domain(bank, centred(name, place))
    return bank


def test_domains_come_change_and_go(axes, settled):
    opened = Bank(axes)
    assert nearest(opened, 0, 1) == ["c", "d"]
    add_domain(axes, centred("d", 3, 0), replace=True)
    add_domain(axes, centred("f", 1))
    assert nearest(opened, 1, 3) == ["f", "d"]
    remove_domain(axes, "f")
    assert nearest(opened, 3) == ["d"]


def test_a_domain_that_went_or_broke_since_the_last_look_is_passed_over(bank):
    for place, name in enumerate("cde"):
        add_domain(bank, centred(name, place, place + 3))
    opened = Bank(bank)
    opened.centres()
    remove_domain(bank, "c")
    file_of(bank, "d").write_bytes(file_of(bank, "d").read_bytes()[:-1])
    both = np.eye(2, WIDTH, dtype=np.float32)
    assert [one.name for one in opened.nearest(both, age=60)] == ["e", "e"]
    remove_domain(bank, "e")
    with pytest.raises(NoDomainError, match="domain auto needs domains that were added with their text"):
        opened.nearest(both, age=60)


def test_every_damaged_byte_is_noticed(axes):
    """Whatever byte changes, the file is refused and its centres are not compared; the other domains go on."""
    opened, path = Bank(axes), file_of(axes, "c")
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
        os.utime(path.parent)  # as a rename would
        assert "c.safetensors" in refusal(opened.domain, "c")
        assert list(opened.domains().usable) == ["a", "b", "d", "e"]
        assert nearest(Bank(axes), 0)[0] in "de"
    path.write_bytes(whole)
    os.utime(path.parent)
    assert value_of(opened.domain("c")) == 0.5


def test_a_held_bank_chooses_among_what_it_holds(axes):
    opened = Bank(axes)
    opened.hold(["c", "d"])
    remove_domain(axes, "c")
    assert nearest(opened, 0, 1) == ["c", "d"]
    assert nearest(opened, 2)[0] in ("c", "d")
    assert opened.names() == ("c", "d")
