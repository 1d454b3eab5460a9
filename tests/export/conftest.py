import functools
from collections.abc import Callable

import pytest

from tests.export.exports import Exported, export
from tests.export.systems import PARTS, ROWS, make_encoder
from tests.parts import backbone_of


def build(tiny_folders, row):
    family, kind, options = (ROWS | PARTS)[row]
    return make_encoder(backbone_of(tiny_folders[family]), kind, **options)


@pytest.fixture(scope="session")
def exports(tiny_folders, tmp_path_factory) -> Callable[[str], Exported]:
    """Export a row, once."""

    @functools.cache
    def get(row: str) -> Exported:
        return export(build(tiny_folders, row), tmp_path_factory.mktemp("export") / "bundle")

    return get


@pytest.fixture(scope="session", params=ROWS)
def exported(request, exports) -> Exported:
    """Each row's encoder beside its bundle; do not change either."""
    return exports(request.param)


@pytest.fixture(scope="session", params=ROWS | PARTS)
def either(request, exports) -> Exported:
    """Each row's or part's encoder beside its bundle; do not change either."""
    return exports(request.param)
