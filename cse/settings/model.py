"""Groups ``backbone``, ``prompt``, ``template``, ``pooler`` and ``post``: the model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cse.choices import FirstLayer, PoolerKind, ProjectorKind, ProjectorUse, Side
from cse.settings.group import Positive, SettingsGroup, Share


class BackboneSettings(SettingsGroup):
    """The pretrained language model under the prompts."""

    name: str = "sentence-transformers/all-MiniLM-L6-v2"
    """Hub id, folder or GGUF file of a language model (docs/train.md lists the families), or a text file of word
    vectors (GloVe)."""
    revision: str = "main"
    """Hub branch, tag or commit; ignored for a local folder."""
    max_length: int | None = Field(None, ge=3)
    """Maximum tokens per text when it is encoded, evaluated and served, special tokens included (training cuts by
    `train.max_length`); null: as the model's folder declares, else as many as it has positions."""
    texts: dict[str, str] | None = None
    """Task texts by role, which go before a text, for instance `{query: 'query: '}`; null: those that the model's
    folder declares."""


class PromptSettings(SettingsGroup):
    """The trainable prompt vectors (PromCSE section 3.1)."""

    kind: Literal["none", "key_value", "hidden_state", "input"] = "key_value"
    """`key_value`: free keys and values in every layer (released code); `hidden_state`: vectors that pass through each
    layer's frozen key and value projections (PromCSE equation 1); `input`: vectors before the tokens of the first layer
    only, which pass through all layers; `none`: no prompt."""
    length: int = Field(12, ge=0, le=1000)
    """Prompt vectors per layer (k); 0 only with `kind: none`."""
    layers: Literal["separate", "shared"] = "separate"
    """Separate prompts for each layer, or one shared by all layers (PromCSE table 3)."""
    dropout: Share | None = None
    """Prompt dropout rate, drawn per row; null: the backbone's hidden dropout."""
    position_shift: bool | None = None
    """Number token positions from k, as the released checkpoints do; null: only where positions are learned, not where
    they are rotary."""
    init: Literal["random", "text", "checkpoint", "mlp", "lstm"] = "random"
    """Initialise the prompt from normal noise (deviation 0.02), the backbone's states for a text, or a checkpoint; or
    train it through an MLP or LSTM that is discarded afterwards (P-tuning)."""
    init_checkpoint: str = "data/raw/prompt"
    """`init: checkpoint`: folder of a checkpoint with the same kind of prompt on the same backbone, for instance from
    MLM training; the pipeline retrains when it changes."""
    side: Side = "both"
    """Whose vectors the prompts make: `both`, queries' and documents', or `query`: those of role `query`; all others
    keep the bare backbone's, so that an index stays as it is."""
    cls: bool = False
    """Also train the word embedding of `[CLS]` (D2CSE's `[CLS]` prompt)."""


class TemplateSettings(SettingsGroup):
    """Text template around the sentence, read at its mask (PromptBERT, SCPCSE) or its last token (PromptEOL)."""

    text: str | None = None
    """Template, for instance `This sentence : "{sentence}" means {mask} .`, or, for a decoder with `pooler.kind: last`,
    `This sentence : "{sentence}" means in one word:"`; null: the bare sentence."""
    second: str | None = None
    """Template for the second copy of a sentence (PromptBERT's two views); null: same as `text`."""
    trained: bool = False
    """Train one vector per template token, initialised from its word embedding (SCPCSE)."""
    denoise: Literal["none", "train_only", "always"] = "none"
    """Subtract the embedding of the empty template at the sentence's length (PromptBERT)."""
    end_with_period: bool = False
    """At inference, append a period unless the sentence ends in a period, question mark or quote."""

    @model_validator(mode="after")
    def _check(self) -> TemplateSettings:
        for name, template in (("text", self.text), ("second", self.second)):
            if template is None:
                continue
            if template.count("{sentence}") != 1 or template.count("{mask}") > 1:
                raise ValueError(f"{name}: needs {{sentence}} once and {{mask}} at most once, found {template!r}")
            if "{mask}" in template and template.index("{mask}") < template.index("{sentence}"):
                raise ValueError(f"{name}: {{mask}} must come after {{sentence}}, found {template!r}")
            if self.text is not None and ("{mask}" in template) != self.masked:
                raise ValueError(f"{name}: both templates need {{mask}}, or neither; found {template!r}")
        if self.text is None:
            for name, value in (("second", self.second is not None), ("trained", self.trained)):
                if value:
                    raise ValueError(f"{name}: needs a template; give template.text")
        if self.denoise != "none" and not self.masked:
            raise ValueError("denoise: needs a template with {mask}; give template.text")
        return self

    @property
    def masked(self) -> bool:
        """Whether the embedding is the output at the template's mask."""
        return self.text is not None and "{mask}" in self.text


class PoolerSettings(SettingsGroup):
    """How token outputs are pooled into one vector."""

    kind: PoolerKind | None = None
    """null: the backbone's own pooling (`mean` for MiniLM, `cls` for BERT and RoBERTa, `last` for decoders); `mask`:
    the output at the template's mask; `cnn`: IS-BERT's trained convolutions."""
    kind_in_loss: Literal["cls", "mean", "mean_top2", "mean_first_last"] | None = None
    """Pooling for the loss, if it differs from the embedding's (ConSERT); null: same as `kind`."""
    first_layer: FirstLayer = "embeddings"
    """`mean_first_last`: which output to use as the first layer."""
    mlp: ProjectorUse = "none"
    """Use the projector after pooling never, in the loss only, or in the embedding too."""
    projector: ProjectorKind = "tanh"
    """Projector: `tanh` (Linear + tanh, SimCSE), `batch_norm` (DiffCSE, D2CSE; `mlp: train_only`), or `mlm_transform`
    (pretrained layer of the backbone's MLM head, supervised PromptBERT)."""


class PostSettings(SettingsGroup):
    """Post-processing fitted on training sentences, saved and exported with the encoder."""

    kind: Literal["none", "whitening", "discriminant", "linear", "query_map", "flow"] = "none"
    """`whitening` (BERT-whitening), `discriminant` (linear discriminant analysis of labelled texts), `linear` (the
    discriminant, trained on by the supervised contrastive loss), `query_map` (a matrix for queries alone, trained
    against all documents), `flow` (BERT-flow) or `none`."""
    dimension: Positive | None = None
    """`whitening`, `discriminant`, `linear`: number of leading dimensions to keep; null: all (labels: one fewer than
    there are, at most the encoder's)."""
    sentences: Positive = 100_000
    """Maximum distinct training sentences to fit on, picked at even intervals."""
