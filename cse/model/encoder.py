"""The sentence encoder: backbone, prompt, template, pooler, projector and post-processing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from cse.errors import CseError, nearest
from cse.model.attention import Prefix
from cse.model.backbone import Backbone, find_backbone, load_backbone
from cse.model.mlm_head import load_mlm_head
from cse.model.pooling import NEEDS_ALL_LAYERS, POOLERS, BatchNormProjector, TanhMlp, TokenCnn, pool, read_at
from cse.model.prompts import Prompt
from cse.model.static_words import StaticWords, find_words, is_word_file, load_words
from cse.model.template import Template
from cse.runtime.encode import cosine_similarity, encode_sentences, is_text, prepare_tokenizer


@dataclass(frozen=True)
class ParameterCounts:
    """The three counts that papers mix up (each a number of weights).

    Attributes:
        prompts: the prompt table, template vectors and the ``[CLS]`` vector.
        trained: all that the optimiser updates in the encoder.
        stored: what a checkpoint keeps beyond the backbone for use at inference.
        backbone: the language model.
    """

    prompts: int
    trained: int
    stored: int
    backbone: int


class Alteration(Protocol):
    """What augmentation changes between word vectors and the first layer."""

    def positions(self, positions_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """Return the position ids to use, ``(B, L)``."""

    def embedded(self, embedded_BLD: torch.Tensor) -> torch.Tensor:
        """Return the input of the first layer, ``(B, L, D)``."""


@dataclass(frozen=True)
class Constants:
    """What does not depend on the sentence.

    Attributes:
        prefix: keys and values of a deep prompt per layer, or None.
        noise_TND: what each template gives without a sentence, by the sentence's length ``n``; or None.
    """

    prefix: Prefix | None = None
    noise_TND: torch.Tensor | None = None


@dataclass(frozen=True)
class Tokens:
    """What the backbone made of a slice of rows.

    Attributes:
        states: the last layer's output ``(B, L, D)``, prompt columns left out, and all before it if pooling needs them.
        local_BLD: token features that the pooler works on (the last layer's, or the convolutions'); None where states
            were not kept.
        pooled_BD: one vector a row.
        noise_BD: what is subtracted from it, or None.
    """

    states: list[torch.Tensor]
    local_BLD: torch.Tensor | None
    pooled_BD: torch.Tensor
    noise_BD: torch.Tensor | None


class SentenceEncoder(nn.Module):
    """Encode sentences with a (usually frozen) language model and its prompts.

    Args:
        backbone: the language model, or static word vectors.
        prompt: a prompt, or None for the bare backbone.
        pooler: one of ``POOLERS``; None: as the backbone was made for.
        loss_pooler: pooler that the loss reads; None: the same.
        mlp: projector after pooling: ``none``, ``train_only`` (in the loss only) or ``always``.
        projector: ``tanh``, ``batch_norm`` or ``mlm_transform``.
        first_layer: for ``mean_first_last``, ``embeddings`` or ``block1``.
        position_shift: whether tokens take positions from the prompt's length on.
        cls: whether the word vector of ``[CLS]`` is trained.
        templates: words around the sentence; the second one is for the second copy in training.
        denoise: subtract what the template gives without the sentence: ``none``, ``train_only`` or ``always``.
        frozen: whether the backbone keeps its weights.
        new_layers: how a ``batch_norm`` projector starts, see ``BatchNormProjector``.

    Raises:
        CseError: an unknown pooler, a position table that is too short for the prompt, or a projector that the
            backbone does not have.
    """

    def __init__(
        self,
        backbone: Backbone | StaticWords,
        prompt: Prompt | None = None,
        *,
        pooler: str | None = None,
        loss_pooler: str | None = None,
        mlp: str = "none",
        projector: str = "tanh",
        first_layer: str = "embeddings",
        position_shift: bool = True,
        cls: bool = False,
        templates: Sequence[Template] = (),
        denoise: str = "none",
        frozen: bool = True,
        new_layers: str = "normal",
    ) -> None:
        super().__init__()
        self.backbone: Any = backbone
        self.prompt = prompt
        self.pooler = pooler or backbone.pooling
        self.loss_pooler = loss_pooler or self.pooler
        if self.pooler not in POOLERS:
            raise CseError(f"pooler: {self.pooler!r} is none of {', '.join(POOLERS)}{nearest(self.pooler, POOLERS)}")
        body: Any = backbone
        if isinstance(backbone, StaticWords) and (prompt is not None or cls or self.pooler != "mean"):
            raise CseError(
                f"backbone.name: {backbone.files.name} holds word vectors: it takes no prompt and only pooler.kind mean"
            )
        self.mlp_use = mlp
        self.projector = projector
        backbone.requires_grad_(not frozen)
        self.mlp = self._make_projector(new_layers) if mlp != "none" else None
        self.cnn = TokenCnn(backbone.hidden_size) if self.pooler == "cnn" else None
        self.first_layer = first_layer
        self.position_shift = position_shift
        self.templates = tuple(templates)
        self.denoise = denoise
        self.frozen = frozen
        self.cls = nn.Parameter(self._word(body.special_ids["cls"])) if cls else None
        words = self.templates[0].words if self.templates else ()
        self.template = nn.Parameter(torch.stack([self._word(word) for word in words])) if words else None
        self.post: Any = None
        self.shift = prompt.length if prompt is not None and position_shift else 0
        self.max_length = backbone.usable_length(self.shift)
        if self.max_length < 3:
            raise CseError(
                f"prompt.length: {self.shift} leaves {max(self.max_length, 0)} of the {backbone.max_positions} "
                f"positions of {backbone.files.name}; give fewer, or set prompt.position_shift: false"
            )
        self.tokenizer = self.tokenizer_of_view(0, training=False)
        self._tokenizer = prepare_tokenizer(self.tokenizer, self.max_length)
        self.eval()

    @classmethod
    def load(cls, path_or_name: str | Path, *, backbone: str | None = None) -> SentenceEncoder:
        """Load a trained checkpoint (a folder) or a bare backbone (a folder, hub id or file of word vectors).

        Args:
            path_or_name: folder written by training, folder of a backbone, hub id, or a GloVe text file.
            backbone: where the checkpoint's backbone is now, if not where it was at training.

        Raises:
            CseError: nothing usable there, a truncated checkpoint, or one made for another backbone.
        """
        from cse.model.checkpoint import is_checkpoint, load_checkpoint

        if is_checkpoint(Path(path_or_name)):
            return load_checkpoint(Path(path_or_name), backbone=backbone)
        if (Path(path_or_name) / "bundle.json").is_file():
            raise CseError(f"{path_or_name}: this is an ONNX bundle; load it with cse.OnnxEncoder")
        if is_word_file(Path(path_or_name)):
            return cls(load_words(find_words(str(path_or_name)), None))
        return cls(load_backbone(find_backbone(str(path_or_name))))

    @property
    def dimension(self) -> int:
        """Width of an embedding."""
        return self.backbone.hidden_size if self.post is None else self.post.dimension

    def tokenizer_of_view(self, view: int, *, training: bool) -> Any:
        """Return the tokenizer of a view: with a template it sets the view's template around each text."""
        if not self.templates:
            return self.backbone.tokenizer
        return self.templates[min(view, len(self.templates) - 1)].tokenizer(self.backbone.tokenizer, training=training)

    def forward(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor) -> torch.Tensor:
        """Embed tokenised rows ``(B, L)`` as ``(B, D)``; see ``embed``."""
        return self.embed(ids_BL, mask_BL, self.constants(ids_BL.shape[0], ids_BL.shape[1]))

    def prefix(self, rows: int = 1) -> Prefix | None:
        """Return a deep prompt's keys and values; the same for all rows except in training, with prompt dropout."""
        return self.prompt(self.backbone, rows) if self.prompt is not None and self.prompt.deep else None

    def constants(self, rows: int = 1, longest: int | None = None) -> Constants:
        """Return what no sentence changes, for rows of up to ``longest`` tokens (None: ``max_length``)."""
        wanted = self.denoise == "always" or (self.denoise == "train_only" and self.training)
        noise = self.noise((self.max_length if longest is None else longest) + 1) if wanted else None
        return Constants(self.prefix(rows), noise)

    def noise(self, count: int) -> torch.Tensor:
        """Return what each template's mask gives without a sentence, for lengths 0 to ``count - 1``.

        PromptBERT's template denoising: words behind the sentence keep the positions that the sentence pushes them to.

        Returns:
            ``(T, count, D)`` for ``T`` templates.
        """
        noise = []
        for template in self.templates:
            count = min(count, self.max_length - len(template.ids) + 1)
            ids_NL, pushed_NL = template.empty_rows(count, next(self.parameters()).device)
            mask_NL = torch.ones_like(ids_NL)
            positions_NL = self.backbone.positions(mask_NL, self.shift) + pushed_NL
            embedded = self.backbone.embed(self._words(ids_NL), positions_NL)
            last_NLD = self.backbone.run(embedded, mask_NL, self.prefix(count), every=False)[-1]
            noise.append(last_NLD[:, ids_NL.shape[1] - 1 - template.tail])
        shortest = min(len(table) for table in noise)
        return torch.stack([table[:shortest] for table in noise])

    def embed(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor, constants: Constants) -> torch.Tensor:
        """Embed tokenised rows as at inference, or in training mode as the loss sees them.

        Args:
            ids_BL: token ids ``(B, L)``.
            mask_BL: 1 for real tokens, 0 for padding ``(B, L)``.
            constants: from ``constants``.

        Returns:
            ``(B, D)``; in training mode after the projector where there is one, else after it only if it is kept, and
            after post-processing.
        """
        tokens = self.pooled(ids_BL, mask_BL, constants, pooler=None if self.training else self.pooler)
        if self.training:
            return self.project(tokens.pooled_BD, tokens.noise_BD)
        embedding_BD = self.finish(tokens.pooled_BD, tokens.noise_BD)
        return embedding_BD if self.post is None else self.post(embedding_BD)

    def states(
        self,
        ids_BL: torch.Tensor,
        mask_BL: torch.Tensor,
        prefix: Prefix | None,
        alter: Alteration | None = None,
        *,
        every: bool = False,
    ) -> list[torch.Tensor]:
        """Return states at the tokens, each ``(B, L, D)``: the last layer's, or with ``every`` all of them."""
        positions_BL = self.backbone.positions(mask_BL, self.shift)
        if alter is not None:
            positions_BL = alter.positions(positions_BL, mask_BL)
        embedded_BLD = self.backbone.embed(self._words(ids_BL), positions_BL)
        if alter is not None:
            embedded_BLD = alter.embedded(embedded_BLD)
        if self.prompt is None or self.prompt.deep:
            return self.backbone.run(embedded_BLD, mask_BL, prefix, every=every)
        prompt_BPD = self.prompt.inputs(self.backbone, ids_BL.shape[0]).to(embedded_BLD.dtype)
        seen = torch.cat([mask_BL.new_ones((ids_BL.shape[0], self.prompt.length)), mask_BL], dim=1)
        together = torch.cat([prompt_BPD, embedded_BLD], dim=1)
        states = self.backbone.run(together, seen, None, every=every)
        return [state[:, self.prompt.length :] for state in states]

    def pooled(
        self,
        ids_BL: torch.Tensor,
        mask_BL: torch.Tensor,
        constants: Constants,
        *,
        template_B: torch.Tensor | None = None,
        alter: Alteration | None = None,
        pooler: str | None = None,
    ) -> Tokens:
        """Run the backbone and pool, as the loss does unless another pooler is named.

        Args:
            ids_BL: token ids.
            mask_BL: 1 for real tokens.
            constants: from ``constants``.
            template_B: which template each row has; None: the first.
            alter: augmentation of the input.
            pooler: one of ``POOLERS``; None: ``loss_pooler``.
        """
        pooler = pooler or self.loss_pooler
        states = self.states(ids_BL, mask_BL, constants.prefix, alter, every=pooler in NEEDS_ALL_LAYERS)
        local_BLD, noise_BD = states[-1], None
        if self.cnn is not None:
            local_BLD = self.cnn(states[-1], mask_BL)
            pooled_BD = pool("mean", [local_BLD], mask_BL)
        elif pooler == "mask":
            length_B = mask_BL.sum(dim=1)
            if template_B is None:
                template_B = torch.zeros_like(length_B)
            pooled_BD = read_at(states[-1], length_B - 1 - self._per_template("tail", template_B))
            if constants.noise_TND is not None:
                words_B = length_B - self._per_template("ids", template_B)
                noise_BD = constants.noise_TND[template_B, words_B]
                # an empty text is its own noise: exactly, or normalising would blow up the rounding error
                pooled_BD = torch.where(words_B[:, None] == 0, noise_BD.to(pooled_BD.dtype), pooled_BD)
        else:
            counted_BL = self.backbone.known(ids_BL, mask_BL)
            pooled_BD = pool(pooler, states, counted_BL, 0 if self.first_layer == "embeddings" else 1)
        return Tokens(states, local_BLD, pooled_BD, noise_BD)

    def project(self, pooled_BD: torch.Tensor, noise_BD: torch.Tensor | None = None) -> torch.Tensor:
        """Return what the loss compares, ``(B, D)``: pooled vectors less their noise, after the projector if any.

        All rows of a batch must come in one call where the projector normalises over them.
        """
        if self.mlp is None:
            return pooled_BD if noise_BD is None else pooled_BD - noise_BD
        if noise_BD is None:
            return self.mlp(pooled_BD)
        if self.projector == "mlm_transform":  # PromptBERT's code passes both through the transform
            return self.mlp(pooled_BD) - self.mlp(noise_BD)
        return self.mlp(pooled_BD - noise_BD)

    def finish(self, pooled_BD: torch.Tensor, noise_BD: torch.Tensor | None = None) -> torch.Tensor:
        """Return the embedding at inference before post-processing: the projector counts only if it is kept."""
        if self.mlp_use == "always":
            return self.project(pooled_BD, noise_BD)
        return pooled_BD if noise_BD is None else pooled_BD - noise_BD

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return what the optimiser updates, by name: the one list that training, saving and counting go by."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def stored_weights(self) -> dict[str, torch.Tensor]:
        """Return the weights that a checkpoint holds: what inference needs beyond a frozen backbone."""
        extras = ("prompt.network.",) if self.mlp_use == "always" else ("mlp.", "prompt.network.")
        stored = {name: weight.detach() for name, weight in self.trainable().items() if not name.startswith(extras)}
        if self.prompt is not None and self.prompt.network is not None:
            stored["prompt.table"] = self.prompt.values().detach()
        if self.mlp is not None and self.mlp_use == "always":
            stored |= {f"mlp.{name}": weight for name, weight in self.mlp.state_dict().items()}
        if isinstance(self.backbone, StaticWords):
            stored |= {f"backbone.{name}": weight for name, weight in self.backbone.state_dict().items()}
        if self.post is not None:
            stored |= {f"post.{name}": weight for name, weight in self.post.state_dict().items()}
        return stored

    def _make_projector(self, start: str) -> nn.Module:
        if self.projector == "batch_norm":
            return BatchNormProjector(self.backbone.hidden_size, start)
        if self.projector == "mlm_transform":
            head = load_mlm_head(self.backbone, wanted_by="pooler.projector")
            return nn.Sequential(head.dense, nn.GELU(), head.norm).requires_grad_(True)
        return TanhMlp(self.backbone.hidden_size)

    def _word(self, word: int) -> torch.Tensor:
        return self.backbone.words(torch.tensor([word]))[0].detach().clone()

    def _words(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """Return word vectors ``(B, L, D)``, those of trained template pieces and of ``[CLS]`` in their places."""
        if self.template is None:
            words_BLD = self.backbone.words(ids_BL)
        else:
            size = self.backbone.vocabulary
            own_BLD = self.template[(ids_BL - size).clamp(min=0)]
            words_BLD = torch.where(
                (ids_BL >= size).unsqueeze(-1), own_BLD, self.backbone.words(ids_BL.clamp(max=size - 1))
            )
        if self.cls is None:
            return words_BLD
        return torch.cat([self.cls.expand(ids_BL.shape[0], 1, -1), words_BLD[:, 1:]], dim=1)

    def _per_template(self, what: str, template_B: torch.Tensor) -> torch.Tensor:
        values = [t.tail if what == "tail" else len(t.ids) for t in self.templates]
        if len(set(values)) == 1:
            return torch.full_like(template_B, values[0])
        return torch.tensor(values, device=template_B.device)[template_B]

    def counts(self) -> ParameterCounts:
        """Count prompts, trained weights, stored weights and the backbone's weights."""
        return ParameterCounts(
            prompts=sum(
                0 if values is None else values.numel()
                for values in (None if self.prompt is None else self.prompt.values(), self.template, self.cls)
            ),
            trained=sum(weight.numel() for weight in self.trainable().values()),
            stored=sum(weight.numel() for weight in self.stored_weights().values()),
            backbone=sum(weight.numel() for weight in self.backbone.parameters()),
        )

    def encode(
        self,
        sentences: str | Sequence[str],
        batch_size: int = 64,
        normalize: bool = True,
        show_progress_bar: bool = False,
    ) -> np.ndarray:
        """Encode sentences in float32, dropout off, truncated only at the position table's end.

        Args:
            sentences: ``n`` sentences, or one.
            batch_size: sentences per forward pass.
            normalize: whether to scale each embedding to unit length.
            show_progress_bar: whether to draw a bar on stderr.

        Returns:
            float32 ``(n, D)``, or ``(D,)`` for one sentence.

        Raises:
            CseError: an item that is no string, or an embedding that is not a number (names the sentence).
        """
        return self.encode_cut(sentences, self.max_length, batch_size, normalize, show_progress_bar)

    def encode_cut(
        self,
        sentences: str | Sequence[str],
        max_length: int,
        batch_size: int = 64,
        normalize: bool = True,
        show_progress_bar: bool = False,
    ) -> np.ndarray:
        """Encode as ``encode`` does, but cut sentences at ``max_length`` tokens, special tokens included."""
        device = next(self.parameters()).device
        was_training = self.training
        self.eval()

        with torch.no_grad():
            constants = self.constants()

        def embed_rows(ids_BL: np.ndarray, mask_BL: np.ndarray) -> np.ndarray:
            ids = torch.from_numpy(ids_BL).to(device)
            mask = torch.from_numpy(mask_BL).to(device)
            exact = nullcontext() if self.cnn is None else _exact_convolutions()
            with torch.no_grad(), torch.autocast(device.type, enabled=False), exact:
                return self.embed(ids, mask, constants).float().cpu().numpy()

        try:
            return encode_sentences(
                sentences,
                tokenizer=self._tokenizer,
                embed=embed_rows,
                dimension=self.dimension,
                max_length=max_length,
                pad_id=self.backbone.pad_id,
                batch_size=batch_size,
                normalize=normalize,
                show_progress_bar=show_progress_bar,
            ).warned()
        finally:
            self.train(was_training)

    @contextmanager
    def read_as_in_training(self) -> Iterator[None]:
        """Within it ``encode`` reads out what the loss compares, dropout and projector off: by ``loss_pooler``, less
        the template's noise, and without a period that is added at inference.
        """
        kept = self.pooler, self.denoise, self._tokenizer
        self.pooler = self.loss_pooler
        self.denoise = "none" if self.denoise == "none" else "always"
        self._tokenizer = prepare_tokenizer(self.tokenizer_of_view(0, training=True), self.max_length)
        try:
            yield
        finally:
            self.pooler, self.denoise, self._tokenizer = kept

    def similarity(self, a: Sequence[str] | np.ndarray, b: Sequence[str] | np.ndarray) -> np.ndarray:
        """Return cosines ``(n, m)`` between sentences or embeddings ``a`` and ``b``."""
        return cosine_similarity(*(self.encode(x) if is_text(x) else x for x in (a, b)))  # type: ignore[arg-type]


def _exact_convolutions() -> AbstractContextManager[None]:
    """Keep cuDNN from rounding to TF32 inside the block, as it does by default; torch's matrix products are exact."""
    others = ("enabled", "benchmark", "benchmark_limit", "deterministic", "fp32_precision", "depthwise_kernel")
    return torch.backends.cudnn.flags(allow_tf32=False, **dict.fromkeys(others))  # None: as it is
