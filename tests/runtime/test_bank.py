"""A bank's files: what a reader sees while domains are added, replaced, removed, damaged and half written; which files
are touched when, what stays in memory, and the nearest domain of a text.
"""

import dataclasses
import os
import random
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.numpy import save

from cse.errors import CseError
from cse.export.domains import add_domain, remove_domain
from cse.runtime import bank as banks
from cse.runtime import domain_files
from cse.runtime.bank import BadDomainError, Bank, NoDomainError
from cse.runtime.bundle import DOMAINS, FORMAT, MODEL, TOKENIZER, Manifest
from cse.runtime.domain import DOMAIN_FORMAT, SUFFIX, UPDATES, Domain, DomainFacts, Shape, hashes_of, update_shapes
from cse.runtime.domain_files import read_domain
from tests.parts import refusal
from tests.runtime.conftest import edit

LAYERS, HEADS, HEAD_SIZE = 2, 3, 5
WIDTH, WORDS = 12, 10  # of pooled vectors and of word vectors: neither is heads * head size in every model
POSITIONS, DECLARED = 30, 20  # the backbone declares fewer tokens than it has positions
BACKBONE = "ab" * 32
ROOT = Path(__file__).parents[2]


_TENSORS = {"cls", "projector_weight", "projector_bias", "map_mean", "map_matrix", "centres", *UPDATES}


def make_domain(name, value=0.5, length=3, **changes):
    """A domain whose prompt is all of one value."""
    tensors = {"prompt": np.full((2 * LAYERS, HEADS, length, HEAD_SIZE), value, np.float32)}
    tensors |= {key: changes.pop(key) for key in _TENSORS & changes.keys()}
    facts = {"format": DOMAIN_FORMAT, "name": name, "backbone": BACKBONE, "pooler": "mean", "normalize": True}
    facts |= {"position_shift": 2, "max_length": POSITIONS - 2, "width": WIDTH, "words": WORDS}
    facts |= {"hashes": hashes_of(tensors)}
    return Domain(DomainFacts(**(facts | changes)), **tensors)


@pytest.fixture
def bank(tmp_path):
    """A bank with the domains a and b; nothing here runs its graph."""
    folder = tmp_path / "bank"
    (folder / DOMAINS).mkdir(parents=True)
    for name in (MODEL, TOKENIZER):
        (folder / name).write_bytes(b"not read here")
    bare = DomainFacts(DOMAIN_FORMAT, "", BACKBONE, "mean", True, 0, DECLARED, WIDTH, WORDS, {})
    shape = Shape(BACKBONE, LAYERS, HEADS, HEAD_SIZE, WIDTH, WORDS, POSITIONS)
    Manifest(FORMAT, 0, bare, shape, only="").write(folder)
    add_domain(folder, make_domain("a", 1.0))
    add_domain(folder, make_domain("b", 2.0))
    return folder


def file_of(bank, name):
    return bank / DOMAINS / f"{name}{SUFFIX}"


def names_in(bank):
    return sorted(path.name for path in (bank / DOMAINS).iterdir())


def value_of(domain):
    """The value of a prompt; fails for a prompt put together from two."""
    (value,) = np.unique(domain.prompt)
    return value


def refused(bank, name, reason):
    """A domain is refused however it is asked for, and the others go on."""
    opened = Bank(bank)
    for ask in (opened.domain, opened.outline):
        with pytest.raises(BadDomainError, match=reason):
            ask(name)
    assert not opened.centres()
    usable = opened.domains().usable
    assert name not in usable and "b" in usable


def test_no_replacement_is_missed_however_fast_they_follow(bank):
    """A folder's time stamp is coarser than these changes."""
    opened = Bank(bank)
    for value in range(200):
        add_domain(bank, make_domain("a", value), replace=True)
        assert value_of(opened.domain("a")) == value


@pytest.mark.parametrize("name", ["", "..", "../a", "a b", ".hidden", "-rf", "x" * 65, "é", "a\n", "Auto"])
def test_names_that_no_file_should_have(bank, name):
    assert re.match(r"domain '.*: (not a valid name|the name stands for)", refusal(add_domain, bank, make_domain(name)))
    assert names_in(bank) == [f"a{SUFFIX}", f"b{SUFFIX}"]


def test_a_name_that_is_taken(bank):
    said = refusal(add_domain, bank, make_domain("a", 9.0))
    assert "has a domain a already; choose another name, or replace it" in said
    assert "has a domain a, and A differs from it by case alone" in refusal(add_domain, bank, make_domain("A", 9.0))
    assert value_of(Bank(bank).domain("a")) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"backbone": "cd" * 32}, "another backbone"),
        ({"pooler": "cnn"}, "pooler 'cnn' is not one of cls, mean"),
        ({"width": 15}, "made for vectors of 15 numbers, and word vectors of 10, where the backbone has 12 and 10"),
        ({"max_length": POSITIONS}, "max_length is 30, not between 3 and 28"),
        ({"position_shift": -1}, "position_shift is -1"),
        ({"hashes": {"prompt": "0" * 64}}, "SHA-256 differs"),
        ({"cls": np.zeros(WIDTH, np.float32)}, r"cls is float32 \(12,\), the backbone needs float32 \(10,\)"),
        ({"cls": np.full(WORDS, np.inf, np.float32)}, "cls holds values that are not finite"),
        ({"projector_weight": np.zeros((WIDTH, WIDTH), np.float32)}, "its tensors are not those"),
        ({"map_matrix": np.zeros((WIDTH, 2), np.float32)}, "its tensors are not those"),
        (
            {"map_mean": np.zeros(WIDTH, np.float32), "map_matrix": np.zeros((WIDTH, WIDTH + 1), np.float32)},
            r"map_matrix is float32 \(12, 13\), the backbone needs float32 \(12, 12\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_on_the_way_in_and_out(bank, changes, reason):
    assert re.search(reason, refusal(add_domain, bank, make_domain("c", **changes)))
    make_domain("c", **changes).write(file_of(bank, "c"))  # as somebody else's tool might
    opened = Bank(bank)
    assert re.search(reason, refusal(opened.domain, "c"))
    assert list(opened.domains().usable) == ["a", "b"]


def test_a_sealed_file_of_wrong_types_is_refused_in_one_line(bank):
    for changes, reason in (
        ({"texts": {"query": ["a"]}}, r"'texts' should be dict\[str, str\], found {'query': \['a'\]}"),
        ({"max_length": True}, "'max_length' should be int, found bool"),
    ):
        make_domain("c", **changes).write(file_of(bank, "c"))
        refused(bank, "c", rf"^[^\n]*c\.safetensors: key {reason}[^\n]*$")


def updates(rank):
    """Tensors of biases and LoRA for a bank whose manifest has ``ADAPTERS``."""
    shapes = update_shapes(ADAPTERS["updates"], rank)
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


ADAPTERS = {"updates": dict(zip(UPDATES, (4, 5, 2), strict=True)), "adapters": ["all"]}


def test_a_rank_beyond_that_of_the_weights_is_refused_on_the_way_in_and_out(bank):
    edit(bank, **ADAPTERS)
    add_domain(bank, make_domain("c", adapters=["all"], **updates(rank=WIDTH)))
    wide, reason = make_domain("d", adapters=["all"], **updates(rank=20_000)), "rank 20000, .* have 12 at most"
    assert re.search(reason, refusal(add_domain, bank, wide))
    wide.write(file_of(bank, "d"))
    refused(bank, "d", reason)
    assert Bank(bank).outline("c") and Bank(bank).domain("c")


HUGE = save({"centres": np.zeros((1, WIDTH), np.float32)}, {"cse": "{}"})  # centres that take what is left
NUMBER = b'{"__metadata__":{"cse":5}}'  # where a domain has its facts as text


@pytest.mark.parametrize(
    ("put", "reason"),
    [
        (lambda path: path.write_bytes(len(NUMBER).to_bytes(8, "little") + NUMBER), "not a domain of"),
        (os.mkfifo, "a pipe, a device"),
        (Path.mkdir, "Is a directory"),
        (
            lambda path: path.write_bytes(HUGE) and os.truncate(path, 2**40),
            f"{2**40} bytes, and all domains in memory may have",
        ),
        (lambda path: path.symlink_to("/proc/self/mem"), "truncated|cannot be read"),
        (lambda path: path.symlink_to(path.name), "cannot be read"),
    ],
)
def test_what_is_no_file_is_neither_waited_for_nor_read(bank, put, reason):
    put(file_of(bank, "c"))
    refused(bank, "c", reason)


def test_a_copy_under_another_name_and_a_damaged_bank_are_refused(bank):
    file_of(bank, "c").write_bytes(file_of(bank, "a").read_bytes())
    assert "holds domain 'a', so it was copied or renamed" in refusal(Bank(bank).domain, "c")
    (bank / MODEL).write_bytes(b"other")
    assert "model.onnx" in refusal(Bank, bank)


@pytest.mark.parametrize("content", [b"my notes", save({"prompt": np.zeros(3, np.float32)}, {"cse2": "?"})])
def test_a_file_of_somebody_else_is_neither_replaced_nor_removed(bank, content):
    file_of(bank, "mine").write_bytes(content)
    for touch in (lambda: add_domain(bank, make_domain("mine"), replace=True), lambda: remove_domain(bank, "mine")):
        assert "exists and is not an earlier output" in refusal(touch)
        assert file_of(bank, "mine").read_bytes() == content


@pytest.mark.parametrize("share", [0, 0.3, 0.9, 0.999, 1.001])
def test_a_truncated_domain_is_refused_replaced_and_removed(bank, share):
    path = file_of(bank, "a")
    for touch in (lambda: add_domain(bank, make_domain("a", 4.0), replace=True), lambda: remove_domain(bank, "a")):
        whole = path.read_bytes()
        path.write_bytes((whole + b"?" * 99)[: int(share * len(whole))])
        refused(bank, "a", "truncated or not a domain")
        touch()
    assert not path.exists()


WRITER = """
import itertools, sys
from pathlib import Path
from tests.runtime.test_bank import make_domain
from cse.export.domains import add_domain
bank, name = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
for value in itertools.cycle((5.0, 6.0)):
    add_domain(bank, make_domain(name, value, length=400), replace=True)
    print("added", flush=True)
"""


def writer(bank, name, script=WRITER):
    return subprocess.Popen(
        [sys.executable, "-c", script, str(bank), name], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_killed_writers_leave_the_old_domain_or_the_new_one(bank):
    """SIGKILL, many times over, at random moments, under the eyes of a reader."""
    opened, moments = Bank(bank), random.Random(1)
    add_domain(bank, make_domain("a", 5.0, length=400), replace=True)
    for _ in range(6):
        process = writer(bank, "a")
        process.stdout.readline()
        until = time.monotonic() + moments.uniform(0.0, 0.06)
        while time.monotonic() < until:
            assert value_of(opened.domain("a")) in (5, 6)
        process.kill()
        process.communicate()
        usable, refused = Bank(bank).domains()
        assert value_of(usable["a"]) in (5, 6)
        assert (sorted(usable), dict(refused)) == (["a", "b"], {})
    add_domain(bank, make_domain("a", 8.0), replace=True)  # the dead hold no lock
    assert names_in(bank) == [f"a{SUFFIX}", f"b{SUFFIX}"], "drafts of the dead are gone"


def test_of_two_who_add_one_name_one_is_refused(bank):
    script = WRITER.replace("replace=True", "").replace("length=400", "length=200")
    processes = [writer(bank, "new", script) for _ in range(2)]
    said = [process.communicate()[1].decode() for process in processes]
    assert all("has a domain new already" in text for text in said)  # the winner's second round, and the loser's first
    assert value_of(Bank(bank).domain("new")) == 5


def test_an_identity_changes_with_the_vectors_alone():
    domain = make_domain("a")
    scored = dataclasses.replace(domain, facts=dataclasses.replace(domain.facts, metrics={"dev": 80.0}))
    assert scored.identity() == domain.identity() == make_domain("a").identity()
    assert len({domain.identity(), make_domain("a", 0.6).identity(), make_domain("a", normalize=False).identity()}) == 3


# ---- many domains ----------------------------------------------------------------------------------------------------


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
