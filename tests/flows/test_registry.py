"""Versions and stages are git tags; these tests make real ones."""

from flows.registry import assign, fetch_tags, find, models, push_tags, register, scores_at, trained_on_at
from flows.repository import git
from tests.flows.repositories import commit, git_init, write_json
from tests.parts import refusal

NAME = "sentence-encoder"


def next_commit(root, dev: float) -> str:
    write_json(root / "data/metrics/train.json", {"dev_spearman": dev, "trained_on": f"nli.csv, {dev:.0f} triplets"})
    write_json(root / "data/metrics/evaluation.json", {"trained": {"STS-B": dev - 5}, "backbone": {"STS-B": 1.0}})
    return commit(root, f"dev {dev}")


def test_versions_count_up_and_stages_move(repository):
    assert models(repository, NAME) == []
    first = register(repository, NAME, revision := next_commit(repository, 80.0))
    assert register(repository, NAME, revision) == first, "a commit has one version"
    second = register(repository, NAME, next_commit(repository, 81.0))
    assert scores_at(repository, revision) == {"dev": 80.0, "STS-B": 75.0}
    assert (first.author, trained_on_at(repository, revision)) == ("Ada", "nli.csv, 80 triplets")
    assert [model.version for model in models(repository, NAME)] == ["v1.1.0", "v1.0.0"]

    assert assign(repository, first, "production") == f"{NAME}#production#1"
    assert assign(repository, second, "production") == f"{NAME}#production#2"
    assert find(repository, NAME, "production").version == "v1.1.0"
    assert find(repository, NAME, "v1.0.0").stages == ()
    for _ in ("back to the first", "held already"):
        assert assign(repository, find(repository, NAME, "v1.0.0"), "production") == f"{NAME}#production#3"
    assert find(repository, NAME, "production").version == "v1.0.0"


def test_ten_versions_are_in_order_and_a_machine_without_a_name_can_register(repository):
    for dev in range(10):
        register(repository, NAME, next_commit(repository, float(dev)))
    revision = next_commit(repository, 10.0)
    git(repository, "config", "--remove-section", "user")
    assert register(repository, NAME, revision).author == "cse"
    assert models(repository, NAME)[0].version == find(repository, NAME).version == "v1.10.0"


def test_two_clones_count_on(repository, tmp_path):
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "origin.git")
    git(repository, "remote", "add", "origin", str(tmp_path / "origin.git"))
    git(tmp_path, "clone", "--quiet", "origin.git", "other")
    model = register(repository, NAME, next_commit(repository, 80.0))
    push_tags(repository, model.tag)

    git_init(other := tmp_path / "other")
    assert models(other, NAME) == []
    fetch_tags(other)
    assert register(other, NAME, next_commit(other, 81.0)).version == "v1.1.0"
    assert scores_at(other, find(other, NAME, "v1.0.0").revision)["dev"] == 80.0, "the commit came with the tag"
    assert "git push" in refusal(push_tags, other, "no-such-tag")
