"""Put domains into a bank and take them out, while others read it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cse.errors import CseError
from cse.outputs import check_file, publish_file
from cse.process import only_one
from cse.runtime.bank import Bank
from cse.runtime.bundle import file_of
from cse.runtime.domain import SUFFIX, Domain, check_name
from cse.runtime.domain_files import check_fit, is_domain

_LOCK = ".lock"
_WAIT = 30.0  # seconds for another writer of the bank, which takes milliseconds


def add_domain(folder: Path, domain: Domain, *, replace: bool = False) -> Path:
    """Put a domain into a bank by one rename, and return its file: readers see the bank's old state or its new one."""
    bank = Bank(folder, whole=False).of_many()
    path = _path(folder, domain.name)
    check_fit(path, domain.facts, domain.tensors(), bank.manifest.shape)
    with _writing(folder):
        if path.exists() and not replace:
            raise CseError(f"{folder}: has a domain {domain.name} already; choose another name, or replace it")
        check_file(path, is_domain)
        own = path.name
        for other in os.listdir(path.parent):  # noqa: PTH208 - thousands of names
            if other != own and other.lower() == own.lower():
                raise CseError(
                    f"{folder}: has a domain {other.removesuffix(SUFFIX)}, and {domain.name} differs from it by case "
                    "alone; choose another name"
                )
        with publish_file(path) as draft:
            domain.write(draft)
    return path


def remove_domain(folder: Path, name: str) -> None:
    """Remove a domain, damaged or not."""
    bank = Bank(folder, whole=False).of_many()
    path = _path(folder, name)
    with _writing(folder):
        if not path.is_file():
            bank.domain(name)  # raises, and names the nearest
        check_file(path, is_domain)
        path.unlink(missing_ok=True)


def _path(folder: Path, name: str) -> Path:
    return folder / file_of(check_name(name))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    with only_one(folder / _LOCK, f"{folder}: another process has been writing to it for {_WAIT:.0f} s", _WAIT):
        yield
