"""Prepared data on disk: the same bytes for the same rows, and clear errors for damaged files."""

from itertools import cycle, islice

import pyarrow as pa
import pytest

from cse.data.sample import sample_pairs, sample_rows
from cse.data.store import (
    BATCH_ROWS,
    GROUP,
    MappedTexts,
    PreparedData,
    map_table,
    open_rows,
    view_of,
    write_rows,
    write_table,
)
from cse.data.tasks.store import TASKS_FILE, open_dev, write_tasks
from tests.parts import refusal


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("view", ["sentences", "triplets", "labelled"])
def test_rows_come_back_and_tell_their_view(tmp_path, view, grouped):
    rows = [(*texts, *(["a group"] * grouped)) for texts in islice(cycle(sample_rows(view)), BATCH_ROWS + 5)]
    assert write_rows(tmp_path / "train.arrow", view, iter(rows), grouped=grouped) == len(rows)
    found = open_rows(tmp_path / "train.arrow")
    assert (view_of(found), found.column_names[-1] == GROUP) == (view, grouped)
    assert [tuple(row.values()) for row in found.to_pylist()] == rows


def test_a_cut_file_at_any_length_is_refused(tmp_path):
    path = tmp_path / "train.arrow"
    write_rows(path, "pairs", islice(sample_rows("pairs"), 50))
    whole = path.read_bytes()
    for length in [0, 4, 100, len(whole) // 2, len(whole) - 8, len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert "cut off or damaged; run `cse prepare`" in refusal(open_rows, path)
    write_tasks(tmp_path, dev=sample_pairs("dev"))
    whole = (tmp_path / TASKS_FILE).read_bytes()
    for length in (0, len(whole) // 2, len(whole) - 2):
        (tmp_path / TASKS_FILE).write_bytes(whole[:length])
        assert "tasks.json: not valid JSON; run `cse prepare`" in refusal(open_dev, PreparedData(tmp_path))


def test_texts_that_are_mapped_are_a_sequence(tmp_path):
    texts = [f"text {number}" for number in range(5000)]  # two batches
    write_table(tmp_path / "texts.arrow", pa.schema([("text", pa.string())]), [(text,) for text in texts])
    found = MappedTexts(map_table(tmp_path / "texts.arrow")["text"])
    assert len(found) == 5000 and list(found) == texts and found[4097] == texts[4097]
    assert found[4090:4100] == texts[4090:4100] and found[4998:6000] == texts[4998:] and found[::1000] == texts[::1000]
