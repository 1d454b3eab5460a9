"""Scored pairs of the user's own."""

import pytest

from cse.data.tasks.read import read_scored
from cse.errors import CseError


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("header", ["sent0,sent1,score", "sentence_A,sentence_B,relatedness_score", "s1,s2,similarity"])
def test_usual_names(tmp_path, header):
    pairs = read_scored(write(tmp_path / "a.csv", f"{header}\nx,y,1\n"), name="mine")
    assert (pairs.sentence1, pairs.sentence2, pairs.name) == (["x"], ["y"], "mine")


@pytest.mark.parametrize("value", ["nan", "", "high", "5.1", "-1", "inf", "0_1", "1_0e0", "\u0663", "\uff11"])
def test_scores_that_are_no_number_in_the_range(tmp_path, value):
    path = write(tmp_path / "a.csv", f"sentence1,sentence2,score\na,b,1\nc,d,{value}\n")
    with pytest.raises(CseError) as caught:
        read_scored(path)
    assert str(caught.value) == (
        f"{path}:3: score {value!r} is not a number from 0 to 5; fix it or set data.score_range"
    )


def test_numbers_in_any_plain_form(tmp_path):
    forms = ["3", "3.", ".5", "+1.5", " 2 ", "1e0", "2.5E-1"]
    lines = "".join(f"a{n},b,{form}\n" for n, form in enumerate(forms))
    path = write(tmp_path / "a.csv", f"sentence1,sentence2,score\n{lines}")
    assert read_scored(path).score.tolist() == [3, 3, 0.5, 1.5, 2, 1, 0.25]


def test_a_sentence_without_end(tmp_path):
    path = write(tmp_path / "a.csv", f"sentence1,sentence2,score\n{'x' * 100_001},b,1\n")
    with pytest.raises(CseError, match=r"a.csv:2: 100,001 characters in column 'sentence1'; split the text"):
        read_scored(path)


def test_two_scores_for_one_pair(tmp_path):
    """Whichever sentence comes first; the same score twice is only a repetition."""
    path = write(tmp_path / "a.csv", "sentence1,sentence2,score\na,b,1\nc,d,2\na,b,1\nb,a,4\n")
    with pytest.raises(CseError) as caught:
        read_scored(path)
    assert str(caught.value) == f"{path}:5: score 4 for the pair that has 1 in line 2; keep one of them"
    path = write(tmp_path / "b.csv", "sentence1,sentence2,score\na,b,1\na,b,1\n")
    assert read_scored(path).score.tolist() == [1.0, 1.0]


def test_score_range_is_the_users(tmp_path):
    path = write(tmp_path / "a.csv", "sentence1,sentence2,score\na,b,-1\n")
    assert read_scored(path, score_range=(-1.0, 1.0)).score.tolist() == [-1.0]
    for value in ("NaN", "null", "true", '"x"', "1e999", "1" + "0" * 400):
        path = write(tmp_path / "a.jsonl", f'{{"sentence1": "a", "sentence2": "b", "score": {value}}}')
        with pytest.raises(CseError, match=r"a.jsonl:1: score"):
            read_scored(path)


def test_missing_sentence_column_and_rows(tmp_path):
    with pytest.raises(CseError, match=r"a.csv:2: no text in column 'sentence2'; fill it in"):
        read_scored(write(tmp_path / "a.csv", "sentence1,sentence2,score\na, ,1\n"))
    with pytest.raises(CseError, match=r"no column 'score'; did you mean 'scores'\?; the columns are"):
        read_scored(write(tmp_path / "a.csv", "sentence1,sentence2,scores\na,b,1\n"))
    with pytest.raises(CseError, match=r"cannot read columns from a .txt file"):
        read_scored(write(tmp_path / "a.txt", "x"))
