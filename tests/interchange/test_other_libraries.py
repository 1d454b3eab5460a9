"""Folders of sentence-transformers and adapters of PEFT become checkpoints; prompts become adapters of PEFT."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification

from cse.interchange.importing import import_model
from cse.interchange.peft import export_adapter
from cse.model.checkpoint import read_config
from cse.model.pooling import pool
from cse.model.sentence_encoder import SentenceEncoder
from tests.export.systems import SENTENCES
from tests.interchange import released
from tests.interchange.released import LENGTH, TEXTS, WIDTH, close
from tests.parts import refusal, sentence_encoder
from tests.rows import write_objects

peft = pytest.importorskip("peft")


def saved_by_peft(folder, target, config, *, head=False):
    """An adapter that PEFT itself saved, with random factors if it is LoRA, and the means that it computes."""
    torch.manual_seed(7)
    library, bare = (AutoModelForSequenceClassification, {}) if head else (AutoModel, {"add_pooling_layer": False})
    base = library.from_pretrained(folder, attn_implementation="eager", **bare)
    model = peft.get_peft_model(base, config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.3)
    model.save_pretrained(target)
    body = model.base_model.model.base_model if head else model
    with torch.no_grad():
        rows = [torch.from_numpy(ids) for ids in released.rows(folder, TEXTS)]
        states = [body(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state for ids in rows]
    return [each[0].mean(dim=0).numpy() for each in states]


@pytest.mark.parametrize("projection", [False, True])
def test_adapter_that_peft_saved_gives_the_embeddings_of_peft(backbone_folder, projection, tmp_path):
    options = {"num_virtual_tokens": LENGTH, "prefix_projection": projection, "encoder_hidden_size": 24}
    config = peft.PrefixTuningConfig(task_type="FEATURE_EXTRACTION", **options)
    expected = saved_by_peft(backbone_folder, tmp_path / "adapter", config)
    done = import_model(tmp_path / "adapter", "peft", str(backbone_folder), tmp_path / "out", pooler="avg")
    close(SentenceEncoder.load(tmp_path / "out").encode(TEXTS, normalize=False), expected)
    prompt = {"kind": "key_value", "length": LENGTH, "shared": False, "position_shift": True}
    assert read_config(tmp_path / "out")["prompt"] == prompt
    assert any("an adapter holds no weights of its base model" in line for line in done.lines)


@pytest.mark.parametrize(
    "options",
    [
        {"r": 2, "lora_alpha": 8, "target_modules": ["query", "value"], "use_rslora": True, "layers_to_transform": [1]},
        {"r": 1, "lora_alpha": 2, "target_modules": r".*encoder\.layer.*(key|dense)"},
    ],
)
def test_lora_of_peft_gives_its_embeddings(tiny_folders, tmp_path, options):
    folder = tiny_folders["bert"]
    config = peft.LoraConfig(**options)
    expected = saved_by_peft(folder, tmp_path / "adapter", config, head=options["r"] == 1)
    done = import_model(tmp_path / "adapter", "peft", str(folder), tmp_path / "out", pooler="avg")
    assert done.lines[0].startswith(f"LoRA: rank {options['r']} on ")
    encoder = SentenceEncoder.load(tmp_path / "out")
    close(encoder.encode(TEXTS, normalize=False), expected)
    bare = SentenceEncoder.load(str(folder))
    assert np.abs(encoder.encode(TEXTS) - bare.encode(TEXTS)).max() > 0.01


LORA = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "bias": "none", "target_modules": ["query"]}
UNFIT = [
    (LORA | {"use_dora": True}, "use_dora is True, which has no place here; merge the adapter into its model"),
    (LORA | {"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
    (LORA | {"lora_alpha": None}, "lora_alpha is None; fetch the adapter again"),
    ({"peft_type": "IA3"}, "peft_type is 'IA3', and only PREFIX_TUNING and LORA fit here; merge others with PEFT"),
    ({"num_attention_heads": 8}, "num_attention_heads is 8, but"),
    ({"num_virtual_tokens": 9}, "num_virtual_tokens is 9, but adapter_model.safetensors on"),
    ({"num_virtual_tokens": 10**12}, "num_virtual_tokens is 1000000000000"),
    ({"peft_type": [[]]}, "peft_type is [[]]"),
    ({"num_layers": {"x": 1}}, "num_layers is {'x': 1}, but"),
    ({"modules_to_save": ["classifier"]}, "modules_to_save is ['classifier'], which has no place here"),
]


@pytest.mark.parametrize(("changes", "said"), UNFIT)
def test_other_adapters_are_refused(tiny_folders, tmp_path, changes, said):
    source, options = tmp_path / "adapter", {"num_virtual_tokens": LENGTH, "encoder_hidden_size": WIDTH}
    saved_by_peft(tiny_folders["bert"], source, peft.PrefixTuningConfig(task_type="FEATURE_EXTRACTION", **options))
    config = json.loads((source / "adapter_config.json").read_text())
    write_objects(source / "adapter_config.json", [config | changes])
    assert said in refusal(import_model, source, "peft", str(tiny_folders["bert"]), tmp_path / "out", pooler="avg")


def fine_tuned(backbone, place, pooling, modules=("Transformer", "Pooling", "Normalize")):
    shutil.copytree(backbone, place)
    weights = load_file(place / "model.safetensors")
    torch.manual_seed(4)
    changed = {name: weight + 0.05 * torch.randn_like(weight) for name, weight in weights.items()}
    save_file(changed, place / "model.safetensors", {"format": "pt"})
    modes = {f"pooling_mode_{name}": name.startswith(pooling) for name in ("cls_token", "mean_tokens", "max_tokens")}
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    kind = "sentence_transformers.models."
    listed = [
        {"idx": i, "name": str(i), "path": paths.get(name, f"{i}_{name}"), "type": kind + name}
        for i, name in enumerate(modules)
    ]
    for name, content in {
        "1_Pooling/config.json": {"word_embedding_dimension": WIDTH} | modes,
        "modules.json": listed,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"},
        "sentence_bert_config.json": {"max_seq_length": 16, "do_lower_case": False},
    }.items():
        write_objects(place / name, [content])
    return place


def refused(folder, backbone, tmp_path, **options):
    return refusal(import_model, folder, "sentence-transformers", str(backbone), tmp_path / "out", **options)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_folder_gives_the_embeddings_of_sentence_transformers(tiny_folders, tmp_path, pooling):
    """The second has a dense layer with tanh, which becomes the projector."""
    models, bert = pytest.importorskip("sentence_transformers"), tiny_folders["bert"]
    layers = ["Transformer", "Pooling", *(["Dense"] if pooling == "cls" else []), "Normalize"]
    source = fine_tuned(bert, tmp_path / "tuned", pooling, layers)
    if pooling == "cls":
        (source / "2_Dense").mkdir()
        dense = models.models.Dense(WIDTH, WIDTH, activation_function=torch.nn.Tanh())
        dense.save(str(source / "2_Dense"))
    done = import_model(source, "sentence-transformers", str(bert), tmp_path / "out")
    found = SentenceEncoder.load(tmp_path / "out").encode(TEXTS)
    close(found, models.SentenceTransformer(str(source), device="cpu").encode(TEXTS))
    config = read_config(tmp_path / "out")
    assert (config["parameters"], config["pooler"]["kind"]) == ("full", pooling)
    told = "\n".join(done.lines)
    assert "unit length" in told and "texts are cut at 16 tokens" in told and "set backbone.name to its folder" in told
    if pooling == "cls":
        assert config["pooler"]["mlp"] == "always"
        path = source / "2_Dense/config.json"
        path.write_text(path.read_text().replace("activation.Tanh", "activation.ReLU"))
        assert "no linear layer with bias and tanh" in refused(source, bert, tmp_path)


def test_folders_that_do_more_are_refused(tiny_folders, tmp_path):
    bert, usual = tiny_folders["bert"], ("Transformer", "Pooling")
    for number, (modules, pooling, said) in enumerate((
        (("Transformer", "WeightedLayerPooling", "Pooling"), "mean", "WeightedLayerPooling is not one of"),
        (("Pooling", "Transformer"), "mean", "in another order"),
        (("Transformer",), "mean", "needs a Transformer and a Pooling"),
        (usual, "max", "pools by pooling_mode_max_tokens"),
    )):  # fmt: skip
        assert said in refused(fine_tuned(bert, tmp_path / f"{number}", pooling, modules), bert, tmp_path)
    folder = fine_tuned(bert, tmp_path / "tuned", "mean", usual)
    write_objects(folder / "sentence_bert_config.json", [{"do_lower_case": True}])
    assert "do_lower_case" in refused(folder, bert, tmp_path)
    write_objects(folder / "config_sentence_transformers.json", [{"default_prompt_name": "query"}])
    assert "puts its prompt 'query' before" in refused(folder, bert, tmp_path)


EXPRESSED = [
    *("bert", "roberta", "xlm-roberta", "camembert", "electra", "electra, wide words"),
    *("llama", "mistral, no window", "qwen3"),
]


@pytest.mark.parametrize(("case", "kind"), [("bert", "hidden_state"), *((case, "key_value") for case in EXPRESSED)])
def test_the_adapter_gives_the_same_vectors(encoders, tmp_path, case, kind):
    encoder = encoders(case, kind, pooler="mean")
    export_adapter(encoder, tmp_path / "adapter", SENTENCES, tolerance=1e-5)
    base = AutoModel.from_pretrained(encoder.backbone.files.folder)
    model = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    tokenizer = encoder.text_tokenizers.truncating_at(encoder.max_length)
    bare = sentence_encoder(encoder.backbone, pooler="mean").encode(SENTENCES, normalize=False)
    for text, other in zip(SENTENCES, bare, strict=True):
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            states = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        found = pool("mean", [states], torch.ones_like(ids))[0].numpy()
        np.testing.assert_allclose(found, encoder.encode(text, normalize=False), atol=1e-5, rtol=0)
        assert np.abs(found - other).max() > 0.02, "the prompt is in force"


@pytest.mark.parametrize(
    ("case", "kind", "options", "reason"),
    [
        ("bert", None, {}, "it has no prompt"),
        ("bert", "input", {}, "its input-layer prompt"),
        ("bert", "key_value", {"position_shift": False}, "its tokens do not start after the prompt's positions"),
        ("bert", "key_value", {"cls": True}, "its [CLS] vector was trained"),
        ("bert", "key_value", {"trained": "full"}, "the language model was trained too"),
        ("bert", "key_value", {"mlp": "always"}, "it has a projector (tanh)"),
        ("bert", "key_value", {"post": "discriminant"}, "it has post-processing (discriminant)"),
        ("bert", "key_value", {"pooler": "mean_top2"}, "its pooler is mean_top2"),
        ("modernbert", "key_value", {}, "models of the modernbert family take no keys"),
        ("mistral", "key_value", {}, "its sliding layers would lose sight of the prompt"),
    ],
)
def test_what_prefix_tuning_cannot_express_is_named(encoders, tmp_path, case, kind, options, reason):
    said = refusal(export_adapter, encoders(case, kind, **options), tmp_path / "adapter", SENTENCES, tolerance=1e-5)
    assert f"because {reason}" in said and "; use --format" in said and not list(tmp_path.iterdir())
