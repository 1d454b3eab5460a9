"""Cleaning of queries that a language model wrote."""

from __future__ import annotations

import pytest

from cse.data.written import (
    EMPTY,
    FAULTS,
    INSTRUCTION,
    ITSELF,
    OF_DOCUMENT,
    OF_INSTRUCTION,
    TWICE,
    as_query,
    clean,
    fault_of,
)

ASKED = "Write a search query.\n\nRefunds take five days.\n---\nhow long does a refund take\n---\n{document}"
DOCUMENT = "The law of the wake in the turbulent boundary layer. A mean velocity profile is a sum of two functions."


@pytest.mark.parametrize(
    ("written", "query"),
    [
        ('\n  "wake law"\nThis query finds it.', "wake law"),
        ("Search query: wake law", "wake law"),
        ("- Question 1: what is the wake law?", "what is the wake law?"),
        ("query languages for databases", "query languages for databases"),
        ("''\n \n", ""),
    ],
)
def test_a_query_is_the_first_line_without_label_quotes_and_bullets(written, query):
    assert as_query(written) == query


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("mean velocity in a turbulent layer", None),
        ("turbulent boundary layer", None),  # a short phrase of the document is a good query
        ("how long does a wake last", None),  # four words of an example
        ("?!", EMPTY),
        ("wake law and wake law and wake law", ITSELF),
        ("how does radiation work, and how does radiation work", ITSELF),
        ("如何退款如何退款如何退款", ITSELF),
        ("如何退款", None),
        ("how long does a refund take when the wake grows", OF_INSTRUCTION),
        ("How long does a refund take?", OF_INSTRUCTION),
        ("search query", OF_INSTRUCTION),
        ("the law of the wake in the turbulent boundary layer", OF_DOCUMENT),
    ],
)
def test_faults(query, fault):
    assert fault_of(query, DOCUMENT, ASKED) == fault


def test_faults_are_counted_and_a_query_counts_once_for_a_document():
    written = {
        DOCUMENT: ["wake law", "Query: Wake law", "", "how long does a refund take"],
        "Other text.": ["wake law"],
    }
    kept, faults = clean(written, ASKED)
    assert kept == [("wake law", DOCUMENT), ("wake law", "Other text.")]
    assert faults == {TWICE: 1, EMPTY: 1, OF_INSTRUCTION: 1}
    assert set(faults) < set(FAULTS)


def test_the_instruction_of_the_package_can_be_used():
    from cse.model.writer import turns_of

    assert len(turns_of(INSTRUCTION.read_text(encoding="utf-8"), "it")) == 7
