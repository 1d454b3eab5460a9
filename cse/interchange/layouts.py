"""How the papers' authors named their tensors: one row per code base, and the poolers of their scripts."""

from __future__ import annotations

from dataclasses import dataclass

from cse.choices import FirstLayer, ReadOut

CLS, RAW_CLS = "cls", "cls_before_pooler"
_AVERAGES = ("avg", "avg_top2", "avg_first_last")
MASK, MASK_ORG_MLP, MASK_USE_POOLER = "mask", "mask_delta_org_mlp", "mask_delta_use_pooler"
POOLERS = {
    CLS: ReadOut("cls", mlp="always"),
    RAW_CLS: ReadOut("cls"),
    "avg": ReadOut("mean"),
    "avg_top2": ReadOut("mean_top2"),
    "avg_first_last": ReadOut("mean_first_last"),
    MASK: ReadOut("mask"),
    MASK_ORG_MLP: ReadOut("mask", mlp="always", denoise="always"),
    MASK_USE_POOLER: ReadOut("mask", mlp="always", denoise="always"),
}


@dataclass(frozen=True)
class Layout:
    """A released code base.

    Attributes:
        name: value of ``--as``.
        frozen: whether the language model was frozen and a prefix trained; its file then holds both.
        training_only: how names of tensors begin that inference does not need.
        default: the pooler, where only one is right.
        hint: what decides between the poolers, for messages.
        first_layer: the first layer of ``avg_first_last`` in this code.
        bare: whether its authors also released models with bare names, ``pooler`` standing for the projector.
        templates: template by family; empty: it has none.
    """

    name: str
    frozen: bool
    poolers: tuple[str, ...]
    training_only: tuple[str, ...]
    hint: str
    default: str | None = None
    first_layer: FirstLayer = "embeddings"
    bare: bool = True
    templates: tuple[tuple[str, str], ...] = ()


_TRAINED_HOW = f"{CLS} for supervised models, {RAW_CLS} for unsupervised ones"
LAYOUTS = {
    layout.name: layout
    for layout in (
        # a mean of theirs counts the prefix's columns too and fails, so there is none to import
        Layout("promcse", True, (CLS, RAW_CLS), ("lm_head.",), _TRAINED_HOW, bare=False),
        Layout("dcpcse", True, (CLS, RAW_CLS), ("lm_head.",), _TRAINED_HOW, bare=False),
        Layout("simcse", False, (CLS, RAW_CLS, *_AVERAGES), ("lm_head.",), _TRAINED_HOW, first_layer="block1"),
        Layout(
            "diffcse",
            False,
            (RAW_CLS, CLS, *_AVERAGES),
            ("generator.", "discriminator.", "aux_bert.", "aux_", "electra_head.", "lm_head."),
            "its models are unsupervised",
            default=RAW_CLS,
        ),
        Layout(
            "promptbert",
            False,
            (MASK, MASK_ORG_MLP, MASK_USE_POOLER),
            (),
            f"{MASK} for unsupervised models, {MASK_ORG_MLP} for the supervised BERT, {MASK_USE_POOLER} for the "
            "supervised RoBERTa",
            templates=(
                ("bert", 'This sentence of "{sentence}" means {mask} .'),
                ("roberta", "This sentence : ' {sentence} ' means {mask}."),
            ),
        ),
    )
}
