"""The library's sentence encoder: sentences in, vectors out; loads from a checkpoint or a bare backbone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from cse.artifact import Kind
from cse.errors import CseError
from cse.model.backbone import Backbone, load_backbone
from cse.model.backbone_files import BackboneFiles, find_backbone
from cse.model.checkpoint import (
    WEIGHTS_FILE,
    WORDS,
    as_written,
    build_post,
    find_recorded_backbone,
    load_weights,
    read_config,
    read_weights,
)
from cse.model.declared import CONFIG_FILE, Declared, check_no_bundle, is_word_file, pools_otherwise
from cse.model.encoder import Encoder, ReadOut
from cse.model.prompts import Prompt
from cse.model.static_words import StaticWords, find_words, load_words
from cse.model.template import make_template
from cse.runtime.compatible import Compatible
from cse.runtime.encode import GPU_BATCH_TOKENS, Encoded, encode_prepared, prepare_sentences
from cse.runtime.tokens import Tokenizers
from cse.runtime.uses import QUERY, check_dimensions, text_of

if TYPE_CHECKING:
    from cse.runtime.bank import Chosen


class SentenceEncoder(Compatible, Encoder):
    """Encodes sentences; takes the arguments of ``Encoder``."""

    # of the layers in `encode`, the last two for hardware that multiplies in them; pooling sums and vectors are float32
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"

    @classmethod
    def load(cls, path_or_name: str | Path, *, backbone: str | None = None) -> SentenceEncoder:
        """Load a trained checkpoint (a folder) or a bare backbone (a folder, hub id or file of word vectors).

        Args:
            path_or_name: folder written by training, folder of a backbone, hub id, or a GloVe text file.
            backbone: where the backbone of the checkpoint is now, if it moved.

        Raises:
            CseError: nothing loadable, a truncated checkpoint, or one made for another backbone.
        """
        found = check_no_bundle(path_or_name)
        if found.kind is Kind.CHECKPOINT:
            return load_checkpoint(found.folder, backbone=backbone)
        if is_word_file(found.folder):
            return cls(load_words(find_words(str(path_or_name)), None))
        return cls(load_backbone(find_backbone(str(path_or_name))))

    def encode_counting(
        self,
        sentences: str | Sequence[str],
        batch_size: int | None = None,
        *,
        normalize: bool | None = None,
        show_progress_bar: bool = False,
        domain: Chosen = None,
        role: str | None = None,
        dimensions: int | None = None,
        max_length: int | None = None,
    ) -> Encoded:
        """Encode like ``encode``, in float32 without dropout, and count the sentences that were cut."""
        if domain is not None:
            raise CseError("domain: this is one model; load a bank (cse bank create) to choose prompts by domain")
        side = self.side_of(role)
        check_dimensions(dimensions, side.widths, side.dimension)
        device = next(side.parameters()).device
        by_tokens = batch_size is None and device.type != "cpu"
        was_training = side.training
        side.eval()
        try:
            prepared = prepare_sentences(
                sentences,
                tokenizers=side.text_tokenizers,
                max_length=side.max_length if max_length is None else max_length,
                before=text_of(role, side.texts),
            )
            return encode_prepared(
                prepared,
                embed=side._embed_arrays(device),
                dimension=side.dimension,
                pad_id=side.backbone.pad_id,
                batch_size=GPU_BATCH_TOKENS if by_tokens else 64 if batch_size is None else batch_size,
                batch_tokens=GPU_BATCH_TOKENS if by_tokens else None,
                normalize=True if normalize is None else normalize,
                show_progress_bar=show_progress_bar,
                keep=dimensions,
            )
        finally:
            side.train(was_training)

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens texts have as documents, special tokens included, however long they are."""
        return [len(found) for found in self.side_of(None).text_tokenizers.whole.encode_batch_fast(list(texts))]

    def _embed_arrays(self, device: torch.device) -> Callable[[np.ndarray, np.ndarray, object], np.ndarray]:
        """Return what embeds a batch ``(B, L)``; of a backbone that nothing trains ``kept`` has its vectors."""
        with torch.no_grad(), self._products(device):
            constants = self.constants()

        def compute(ids_BL: np.ndarray, mask_BL: np.ndarray) -> np.ndarray:
            ids, mask = torch.from_numpy(ids_BL).to(device), torch.from_numpy(mask_BL).to(device)
            exact = nullcontext() if self.cnn is None else _exact_convolutions()
            with torch.no_grad(), self._products(device), exact:
                return self.embed(ids, mask, constants).float().cpu().numpy()

        kept = self.kept if self.adds_nothing else None
        of = f"{self.backbone.files.sha256} {self.pooler} {self.precision}"

        def embed_rows(ids_BL: np.ndarray, mask_BL: np.ndarray, _: object) -> np.ndarray:
            if kept is None:
                return compute(ids_BL, mask_BL)
            return kept.embed(of, self.dimension, ids_BL, mask_BL, compute)

        return embed_rows

    def side_of(self, role: str | None) -> SentenceEncoder:
        """Return what encodes texts in a role: this encoder, or the bare backbone if its query side is not for them."""
        if self.documents is None or role == QUERY:
            return self
        self.documents.precision, self.documents.kept = self.precision, self.kept
        documents: SentenceEncoder = self.documents
        return documents

    def _products(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context in which products are made in ``precision``."""
        dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[self.precision]
        return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)

    @contextmanager
    def read_as_in_training(self) -> Iterator[None]:
        """Make ``encode`` return the vectors that the loss compares, without dropout and projector: pooled by
        ``loss_pooler``, minus the template's noise, and without the period added at inference.
        """
        kept = self.pooler, self.denoise, self.text_tokenizers
        self.pooler = self.loss_pooler
        self.denoise = "none" if self.denoise == "none" else "always"
        self.text_tokenizers = Tokenizers(self.tokenizer_of_view(0, training=True))
        try:
            yield
        finally:
            self.pooler, self.denoise, self.text_tokenizers = kept


def load_checkpoint(folder: Path, *, backbone: str | None = None) -> SentenceEncoder:
    """Build the encoder that a checkpoint describes and load its weights.

    No weight is ever silently dropped or left at its random initialisation, and the backbone is the one trained on.
    """
    config = read_config(folder)
    weights = read_weights(folder, config)
    with as_written(folder):
        made_for = config["backbone"]
        if made_for["words"] is None:
            files = find_recorded_backbone(folder, config, backbone)
            encoder = rebuild(load_backbone(files, config["pooler"]["kind"]), config)
        else:
            files = BackboneFiles(made_for["name"], made_for["revision"], folder, made_for["sha256"])
            words = StaticWords.empty(folder / WORDS, made_for["words"], made_for["width"], files)
            encoder = rebuild(words, config)
    for key in ("dimension", "max_length"):
        if config[key] != getattr(encoder, key):
            raise CseError(
                f"{folder / CONFIG_FILE}: {key} is {config[key]}, but its parts give {getattr(encoder, key)}; train or "
                "fetch the checkpoint again"
            )
    load_weights(encoder, weights, folder / WEIGHTS_FILE)
    return encoder


def rebuild(backbone: Backbone | StaticWords, config: dict[str, Any]) -> SentenceEncoder:
    """Build an encoder from the output of ``describe``, without loading its trained weights."""
    prompt, template, read_out = config["prompt"], config["template"], config["pooler"]
    if read_out["mlp"] != "always":  # a layer used only by the loss is neither stored nor rebuilt
        read_out = read_out | {"mlp": "none"}
    made, templates = None, []
    if isinstance(backbone, Backbone):
        made = None if prompt is None else Prompt(backbone=backbone, **prompt)
        if template is not None:
            options = {name: template[name] for name in ("trained", "end_with_period")}
            templates = [make_template(template["text"], backbone, **options)]
    encoder = SentenceEncoder(
        backbone,
        made,
        ReadOut(**read_out, denoise="always" if template is not None and template["denoise"] else "none"),
        cls=config["cls"],
        templates=templates,
        trained=config["parameters"],
        lora_rank=config["lora_rank"],
        # the recorded length is what its parts gave in training; load_checkpoint compares the two
        use=Declared(None, config["max_length"], config["texts"], tuple(config["widths"])),
        side=config["side"],
    )
    if config["post"] is not None:
        encoder.post = build_post(config["post"]).eval()
        encoder.check_side()
    return encoder


def _exact_convolutions() -> AbstractContextManager[None]:
    """Stop cuDNN from rounding to TF32 (its default) inside the block; torch's matrix products are exact."""
    flags = torch.backends.cudnn.flags
    unchanged = dict.fromkeys(signature(flags).parameters)  # releases of torch differ in them
    return flags(**unchanged | {"allow_tf32": False})


def load_bare(
    name: str, revision: str = "main", max_length: int | None = None, texts: dict[str, str] | None = None
) -> SentenceEncoder:
    """Load a backbone as group ``backbone`` of the settings says."""
    if is_word_file(Path(name)):
        return SentenceEncoder(load_words(find_words(name), None))
    backbone = load_backbone(find_backbone(name, revision))
    return SentenceEncoder(backbone.use_as(max_length=max_length, texts=texts))


def load_bare_backbone(folder: Path) -> SentenceEncoder:
    """Return the language model that a checkpoint was trained on, without the trained weights.

    It reads as many tokens as the checkpoint, behind the same task texts; of one with a query side, as its documents.
    It pools as its folder says, or, where this project has no such pooling, as the checkpoint does.
    """
    config = read_config(folder)
    files = find_recorded_backbone(folder, config)
    backbone = load_backbone(files, config["pooler"]["kind"] if pools_otherwise(files.folder) else None)
    length = None if config["side"] == QUERY else config["max_length"]
    return SentenceEncoder(backbone.use_as(max_length=length, texts=config["texts"]))
