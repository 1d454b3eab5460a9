"""Models go to the hub and come back whole, over real HTTP on loopback."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard, constants

import cse as library
from cse.artifact import sealed, write_manifest
from cse.outputs import Kind, publish_folder
from tests.cli.workspace import contents
from tests.interchange.hub_server import READER, WRITER, Hub, Repository, running_hub
from tests.rows import write_lines

TEXTS = ["the cat sits on the mat", "a dog"]


@pytest.fixture(scope="module")
def address_book():
    with running_hub() as hub:
        yield hub


@pytest.fixture
def hub(address_book, monkeypatch, tmp_path) -> Hub:
    """An empty hub, and a client that may write to it."""
    address_book.repos.clear()
    address = address_book.address
    for name, value in {  # what HF_ENDPOINT and others do when the client is imported
        "ENDPOINT": address, "HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_TOKEN_PATH": str(tmp_path / "no-token"),
        "HF_HUB_DISABLE_XET": True, "HF_HUB_OFFLINE": False,
    }.items():  # fmt: skip
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", WRITER)
    return address_book


def sent(hub: Hub, repo: str = "me/tickets") -> dict[str, bytes]:
    return {name: data for name, data in hub.repos[repo].files.items() if name != ".gitattributes"}


@pytest.mark.parametrize("model", ["checkpoint", "bundle"])
def test_model_comes_back_as_it_went_also_by_the_snippet_of_its_card(cse, hub, project, tiny_folders, model, capsys):
    there = cse("push", "me/tickets", f"data/{model}")
    assert there.code == 0 and f"{hub.address}/me/tickets: {model}, " in there.out, there.err
    assert hub.repos["me/tickets"].private, "a new repository is private unless asked otherwise"
    assert len(hub.repos["me/tickets"].commits) == 2, "everything goes in one commit"
    back = cse("pull", "me/tickets", "--out", "back")
    assert back.code == 0 and "every file as it was sent" in back.out, back.err
    where = {"backbone": str(tiny_folders["bert"])} if model == "checkpoint" else {}
    load = library.SentenceEncoder.load if where else library.OnnxEncoder
    np.testing.assert_array_equal(*(load(path, **where).encode(TEXTS) for path in (f"data/{model}", "back")))
    files = contents(project / "back").keys() - {"README.md", Kind(model).manifest}
    assert files == contents(project / f"data/{model}").keys() - {Kind(model).manifest}
    card = sent(hub)["README.md"].decode()
    shell = re.search(r"```sh\ncse (.*)\n```", card)[1]
    assert cse(*shell.split()).code == 0
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
    exec(code.replace("FOLDER OF THE BACKBONE", str(tiny_folders["bert"])), {})
    assert capsys.readouterr().out == "(2, 32)\n"


def test_a_bank_comes_back_and_a_push_replaces_the_one_before(cse, hub, project):
    for words in (
        ("push", "me/tickets", "data/checkpoint"),
        ("bank", "create", "data/bank", "data/checkpoint"),
        ("bank", "add", "data/bank", "data/checkpoint", "--name", "tickets"),
        ("push", "me/tickets", "data/bank"),
        ("pull", "me/tickets", "--out", "back"),
        ("push", "me/open", "data/checkpoint", "--public"),
    ):
        assert cse(*words).code == 0
    assert "weights.safetensors" not in sent(hub) and not hub.repos["me/open"].private
    vectors = (library.OnnxEncoder(path).encode(TEXTS, domain="tickets") for path in ("data/bank", "back"))
    np.testing.assert_array_equal(*vectors)
    before = hub.repos["me/tickets"].sha(1)
    assert cse("pull", "me/tickets", "--out", "first", "--revision", before).code == 0
    assert (project / "first/checkpoint.json").is_file()


def test_exported_folder_travels_with_hashes(cse, hub, project):
    inner = "0_Transformer/backbone/config.json"  # of a query side
    files = {
        "modules.json": '[{"type": "prompted.Transformer", "path": ""}]', "model.safetensors": "weights",
        "1_Pooling/config.json": '{"pooling_mode": "mean"}', "prompted.py": "class Transformer: ...",
        inner: json.dumps({"_name_or_path": str(project / "bert"), "hidden_size": 8}),
    }  # fmt: skip
    with publish_folder(project / "export", Kind.SENTENCE_TRANSFORMERS) as draft:
        for name, text in files.items():
            write_lines(draft / name, [text])
    (project / "export/notes.txt").write_text("private")
    assert cse("push", "me/tickets", "export").code == 0
    assert set(sent(hub)) == {*files, "README.md", "manifest.json"}
    assert json.loads(sent(hub)[inner]) == {"_name_or_path": "./bert", "hidden_size": 8}
    assert 'SentenceTransformer("model", trust_remote_code=True)' in sent(hub)["README.md"].decode()
    assert cse("pull", "me/tickets", "--out", "back").code == 0
    assert (project / "back/1_Pooling/config.json").read_text() == '{"pooling_mode": "mean"}\n'


def test_what_is_no_model_and_code_in_a_model_are_told(cse, hub, project):
    def pull(kind, files):
        """Files that somebody sent without ``cse push``."""
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        listing = json.dumps(sealed({"kind": kind, "files": hashes})).encode()
        hub.repos["me/tickets"] = Repository(False)
        hub.repos["me/tickets"].commits.append({Kind(kind).manifest: listing, **files})
        return cse("pull", "me/tickets", "--out", "back")

    for kind, files, reason in (
        ("checkpoint", {}, "checkpoint.json: format None, this version reads "),
        ("bundle", {"evil.py": b"1"}, "bundle.json: format None, this version reads "),
        ("sentence-transformers model", {"evil.py": b"1"}, "manifest.json: files does not list modules.json"),
        ("peft adapter", {"config.json": b"{}"}, "manifest.json: files does not list adapter_config.json"),
        ("plots", {"loss.csv": b"1"}, "manifest.json: is no manifest of a model"),
    ):
        assert pull(kind, files).refused().startswith(f"me/tickets/{reason}")
        assert not (project / "back").exists()
    own = {path.name: path.read_bytes() for path in (project / "data/checkpoint").iterdir()}
    assert pull("checkpoint", own | {"evil.py": b"1"}).code == 0
    assert not (project / "back/evil.py").exists(), "what no manifest lists stays away"
    shutil.rmtree("back")
    done = pull("sentence-transformers model", {"modules.json": b"[]", "evil.py": b"1"})
    assert done.code == 0
    assert "note: me/tickets holds Python code (evil.py), which its library runs if you pass trust" in done.err


def test_repository_of_something_else(cse, hub, project):
    assert cse("push", "me/tickets", "data/checkpoint").code == 0
    repo = hub.repos["me/tickets"]
    for files, named in (({"model.bin": b"theirs", "README.md": b"# theirs"}, "README.md, model.bin"),
                         ({"README.md": b"# theirs"}, "README.md")):  # fmt: skip
        repo.commits.append({".gitattributes": b"", **files})
        line = cse("push", "me/tickets", "data/checkpoint").refused()
        assert line == f"me/tickets: holds files that `cse push` did not send ({named}); choose another name"
    assert repo.commits[-1]["README.md"] == b"# theirs"
    assert "holds no manifest, so it is no model" in cse("pull", "me/tickets", "--out", "x").refused()


def test_what_the_hub_refuses_is_told_in_its_words(cse, hub, project, monkeypatch):
    push = ("push", "me/tickets", "data/checkpoint")
    monkeypatch.setenv("HF_TOKEN", READER)
    assert "me/tickets: the hub refused (403): " in (line := cse(*push).refused())
    assert line.endswith("; check the name, --revision and what your token may do (`hf auth login` or HF_TOKEN)")
    assert "the hub refused (404): RepoNotFound; check the name" in cse("pull", "me/tickets", "--out", "x").refused()
    monkeypatch.setenv("HF_TOKEN", "hf_nonsense")
    assert "(401): Invalid credentials" in (line := cse(*push).refused()) and "hf_nonsense" not in line
    assert "a b: not a name on the hub; write OWNER/NAME" in cse("pull", "a b", "--out", "x").refused()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert re.search("me/tickets: the hub cannot be reached: .*HF_HUB_OFFLINE", (done := cse(*push)).err)
    assert done.code == 75


def test_changed_file_is_not_taken(cse, hub, project):
    assert cse("push", "me/tickets", "data/checkpoint").code == 0
    assert cse("pull", "me/tickets", "--out", "back").code == 0
    before, repo = contents(project / "back"), hub.repos["me/tickets"]
    whole = repo.files
    for name in ("weights.safetensors", "checkpoint.json"):
        data = bytearray(whole[name])
        data[len(data) // 2] ^= 1
        repo.commits.append(whole | {name: bytes(data)})
        assert cse("pull", "me/tickets", "--out", "back").refused().startswith(f"me/tickets/{name}: ")
        assert contents(project / "back") == before


def test_card_says_what_the_model_is_and_how_well_it_does(cse, hub, project, tiny_folders, tmp_path):
    backbone = Path(shutil.copytree(tiny_folders["bert"], tmp_path / "licensed"))
    (backbone / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: en\n---\n# A model\n")
    config = json.loads((project / "data/checkpoint/checkpoint.json").read_text())
    config["backbone"]["name"] = str(backbone)
    config["facts"]["trained_on"] = "me/pairs/train.csv, 24 triplets + own.csv, 9 pairs + you/nli/*.csv, 1 pairs"
    write_manifest(project / "data/checkpoint", Kind.CHECKPOINT, config)
    push = ("push", "me/tickets", "data/checkpoint", "--card")
    for _ in range(2):  # its own card may be replaced
        assert cse(*push, "CARD.md").out == "CARD.md: the card of data/checkpoint; nothing was sent\n"
    assert not hub.repos
    card = ModelCard.load(project / "CARD.md")
    assert (card.data.license, card.data.library_name) == ("apache-2.0", "cse")
    assert card.data.datasets == ["me/pairs", "you/nli"]
    (dev,) = [one for one in card.data.eval_results if one.metric_type == "spearman"]
    row = f"| {dev.dataset_name} | {dev.metric_value:.2f} |"
    assert "Prompts: 4 vectors" in card.text and "The backbone, `./licensed`: apache-2.0." in card.text
    assert row in card.text
    (project / "mine.md").write_text("# mine\n")
    assert "mine.md: exists" in cse(*push, "mine.md").refused()
