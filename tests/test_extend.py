"""Each example of docs/extend.md, applied to a copy of the project as it stands there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages.blocks import Block, blocks_of, run_by

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/extend.md").read_text("utf-8")
BLOCKS = run_by("docs/extend.md", __file__)


def sections() -> dict[str, list[Block]]:
    """The blocks below each heading."""
    found: dict[str, list[Block]] = {}
    for block in BLOCKS:
        found.setdefault(re.findall(r"^## (.+)$", PAGE[: block.start], re.M)[-1], []).append(block)
    return found


def name_of(block: Block) -> str:
    """The file that the line above a block names."""
    return re.search(r"^`([\w/.]+)`:\s*<!--[^>]*-->\s*\Z", PAGE[: block.start], re.M)[1]


USE = {
    "A loss": """
        encoder = sentence_encoder(backbone, new_prompt("key_value", backbone, length=3))
        found = losses_of(encoder, alignment={"weight": 0.5})(embed_rows(encoder, table, range(8), new_plan()))
        assert 0 < found["alignment"] < 4
        assert torch.isclose(found["loss"], found["nt_xent"] + 10 * found["energy_hinge"] + 0.5 * found["alignment"])
    """,
    "A prompt kind": """
        encoder = sentence_encoder(backbone, new_prompt("tied", backbone, length=3, init_std=1.0))
        assert not np.allclose(encoder.encode(["a cat"]), sentence_encoder(backbone).encode(["a cat"]))
    """,
    "A stage": "",
    "A backbone": """
        config = ErnieConfig(vocab_size=backbone.vocabulary, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
        ErnieModel(config).save_pretrained("ernie")
        backbone.tokenizer.save("ernie/tokenizer.json")
        ernie = load_backbone(find_backbone("ernie"))
        encoder = sentence_encoder(ernie, new_prompt("key_value", ernie, length=3, init_std=1.0))
        assert not np.allclose(encoder.encode(["a cat"]), sentence_encoder(ernie).encode(["a cat"]))
    """,
}
SCRIPT = """
import numpy as np, torch
from pathlib import Path
from transformers import ErnieConfig, ErnieModel
from cse.model.backbone import load_backbone
from cse.model.backbone_files import find_backbone
from tests.tiny import make_backbone_folder
from tests.parts import new_plan, new_prompt, sentence_encoder
from tests.training.helpers import embed_rows, losses_of, make_table

backbone = load_backbone(find_backbone(str(make_backbone_folder(Path("tiny"), "bert"))))
table = make_table(backbone)
"""


@pytest.fixture
def project(tmp_path):
    """A copy of the project's files, uncommitted changes included, and nothing else."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copyfile(ROOT / name, target)
    return tmp_path


def test_the_page_has_the_sections_that_are_tested():
    assert list(sections()) == list(USE)
    assert len(BLOCKS) == len(list(blocks_of(PAGE)))


@pytest.mark.slow
@pytest.mark.parametrize("section", USE)
def test_the_example_works(project, forking_python, section):
    blocks = sections()[section]
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(project), "PATH": programs}

    def run(*command: str, **options) -> None:
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, **options)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"

    of = {language: [block for block in blocks if block.language == language] for language in ("python", "diff", "sh")}
    assert of["python"] or of["diff"]
    for block in of["python"]:
        (project / name_of(block)).write_text(block.text, encoding="utf-8")
    for block in of["diff"]:
        run("git", "apply", "-C1", "-", input=block.text)
    for command in [command for block in of["sh"] for command in block.commands()]:
        run("bash", "-c", command)
    use = re.sub(r"^ {8}", "", USE[section], flags=re.M)
    run(forking_python, "-c", SCRIPT + use)
