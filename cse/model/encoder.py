"""From tokenised rows to vectors: backbone, prompt, template, pooler, projector and post-processing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from tokenizers import Tokenizer
from torch import nn

from cse.choices import Side
from cse.errors import CseError, nearest
from cse.model.attention import Prefix
from cse.model.backbone import Backbone
from cse.model.declared import Declared
from cse.model.mlm_head import load_mlm_head
from cse.model.passes import Alteration, Constants, Packed, TokenBatch
from cse.model.pooling import (
    NEEDS_ALL_LAYERS,
    OVER_TOKENS,
    POOLERS,
    BatchNormProjector,
    TanhMlp,
    TokenCnn,
    pool,
    read_at,
)
from cse.model.post.flow import Flow
from cse.model.post.linear import LinearMap
from cse.model.prompts import Prompt
from cse.model.side import check_side, use_of_documents, with_roles
from cse.model.static_words import StaticWords
from cse.model.template import Template
from cse.model.trained import choose_trained
from cse.runtime.tokens import Tokenizers
from cse.runtime.uses import QUERY, check_room


class Encoder(nn.Module):
    """From tokenised rows to vectors, through a (usually frozen) language model and its prompts.

    By default the bare backbone.

    Args:
        pooler: one of ``POOLERS``; None: the one the backbone was made for.
        mlp: when to apply the projector after pooling: ``none``, ``train_only`` (in the loss only) or ``always``.
        position_shift: whether token positions start after the prompt's.
        templates: words around the sentence; the second template is for the second copy in training.
        denoise: when to subtract the template's output without the sentence: ``none``, ``train_only`` or ``always``.
        trained: what may change beside the parts below: ``full``, all of the backbone's weights; ``biases``, its biases
            alone (BitFit, Ben Zaken et al. 2022); ``norms``, its norms; ``lora``, low-rank updates; ``prompts``, none.
        use: length, task texts and shorter widths; None: as the backbone's folder declares.
        side: ``both``, or ``query``: what is trained is for role ``query`` alone, see ``cse.model.side``. ``embed``,
            ``pooled`` and ``max_length`` are then the query side's.

    Attributes:
        documents: the bare backbone, which embeds all but queries; None if its side is ``both``.
        bare: whether it is a backbone that nothing trains, whose vectors may be kept (``cse.runtime.kept_vectors``).
    """

    tails: torch.Tensor
    sizes: torch.Tensor

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
        trained: str = "prompts",
        lora_rank: int = 0,
        new_layers: str = "normal",
        use: Declared | None = None,
        side: Side = "both",
    ) -> None:
        super().__init__()
        self.backbone: Backbone | StaticWords = backbone
        use = use or backbone.declared
        self.side = side
        self.texts, self.widths = use.texts if side == "both" else with_roles(use.texts), use.widths
        self.prompt = prompt
        self.pooler = pooler or backbone.pooling
        self.loss_pooler = loss_pooler or self.pooler
        if self.pooler not in POOLERS:
            raise CseError(f"pooler: {self.pooler!r} is not one of {', '.join(POOLERS)}{nearest(self.pooler, POOLERS)}")
        if isinstance(backbone, StaticWords) and (prompt is not None or cls or self.pooler != "mean"):
            raise CseError(
                f"backbone.name: {backbone.files.name} holds word vectors; use no prompt and set pooler.kind: mean"
            )
        if backbone.dense is not None and (templates or self.pooler not in OVER_TOKENS):
            raise CseError(
                f"pooler.kind: {backbone.files.name} has layers of its own behind its pooling, which take "
                f"{', '.join(OVER_TOKENS)} and no template"
            )
        if self.pooler == "mask" and not all(template.mask for template in templates):
            raise CseError("template.text: pooler 'mask' reads the output at {mask}; put it behind {sentence}")
        self.mlp_use = mlp
        self.projector = projector
        choose_trained(backbone, trained, lora_rank)
        self.mlp = self._make_projector(new_layers) if mlp != "none" else None
        self.cnn = TokenCnn(backbone.hidden_size) if self.pooler == "cnn" else None
        self.first_layer = first_layer
        self.position_shift = position_shift
        self.templates = tuple(templates)
        self.denoise = denoise
        self.trained, self.lora_rank = trained, lora_rank
        self.cls = nn.Parameter(self._word(self.transformer.special_ids["cls"])) if cls else None
        words = self.templates[0].words if self.templates else ()
        self.template = nn.Parameter(torch.stack([self._word(word) for word in words])) if words else None
        # per template: words after the sentence's end, and all words; buffers, so that no step sends them to the device
        for name, values in (("tails", [t.tail for t in templates]), ("sizes", [len(t.ids) for t in templates])):
            self.register_buffer(name, torch.tensor(values, dtype=torch.int64), persistent=False)
        self.post: LinearMap | Flow | None = None
        self.shift = prompt.length if prompt is not None and position_shift else 0
        self.max_length = backbone.usable_length(self.shift)
        if self.max_length < 3:
            raise CseError(
                f"prompt.length: {self.shift} leaves {max(self.max_length, 0)} of the {backbone.max_positions} "
                f"positions of {backbone.files.name}; lower it, or set prompt.position_shift: false"
            )
        self.max_length = min(self.max_length, use.max_length or self.max_length)
        self.tokenizer = self.tokenizer_of_view(0, training=False)
        self.text_tokenizers = Tokenizers(self.tokenizer)
        for role, text in self.texts.items():
            check_room(text, self.text_tokenizers, self.max_length, f"task text of role {role}")
        check_side(self)
        self.bare = False
        self.documents: Self | None = None
        if side == QUERY and isinstance(backbone, Backbone):
            bare = type(self)(backbone, use=use_of_documents(backbone, self.texts))
            bare.bare = True
            self.documents = bare  # type: ignore[assignment]
        self.eval()

    @property
    def transformer(self) -> Backbone:
        """The backbone of an encoder with parts that word vectors cannot have."""
        assert isinstance(self.backbone, Backbone)  # noqa: S101 - refused above and by the settings
        return self.backbone

    @property
    def frozen(self) -> bool:
        """Whether all of the backbone's weights stay as they were."""
        return self.trained == "prompts"

    @property
    def dimension(self) -> int:
        """Width of the embeddings."""
        return self.backbone.dimension if self.post is None else self.post.dimension

    def tokenizer_of_view(self, view: int, *, training: bool) -> Tokenizer:
        """Return the tokenizer of a view; it wraps each text in the view's template, if there is one."""
        if not self.templates:
            return self.backbone.tokenizer
        return self.templates[min(view, len(self.templates) - 1)].tokenizer(self.backbone.tokenizer, training=training)

    def prefix(self, rows: int = 1) -> Prefix | None:
        """Return a deep prompt's keys and values, the same for all rows unless training with prompt dropout."""
        return self.prompt(self.backbone, rows) if self.prompt is not None and self.prompt.deep else None

    def packs(self, device: torch.device, longest: int) -> bool:
        """Return whether padded rows of up to ``longest`` tokens may be packed, see ``cse.model.passes``."""
        packs = isinstance(self.backbone, Backbone) and self.backbone.packs(device, longest)
        return packs and (self.prompt is None or self.prompt.deep)

    def constants(self) -> Constants:
        """Return the values that do not depend on the sentence at inference."""
        return Constants(self.prefix(), self.noise(self.max_length + 1) if self.denoise == "always" else None)

    def noise(self, count: int) -> torch.Tensor:
        """Return each template's output at the mask without a sentence, for sentence lengths 0 to ``count - 1``.

        PromptBERT's template denoising: words after the sentence keep the positions they have with the sentence.

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
            last_NLD = self.backbone.run(embedded, positions_NL, mask_NL, self.prefix(count), every=False)[-1]
            noise.append(last_NLD[:, ids_NL.shape[1] - 1 - template.tail])
        shortest = min(len(table) for table in noise)
        return torch.stack([table[:shortest] for table in noise])

    def embed(self, ids_BL: torch.Tensor, mask_BL: torch.Tensor, constants: Constants) -> torch.Tensor:
        """Embed tokenised rows as at inference.

        Returns:
            ``(B, D)``, after the projector if it is used at inference, and after post-processing.
        """
        tokens = self.pooled(ids_BL, mask_BL, constants, pooler=self.pooler)
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
        packed: Packed | None = None,
    ) -> list[torch.Tensor]:
        """Return token states, each ``(B, L, D)``: the last layer's, or all of them with ``every``."""
        positions_BL = self.backbone.positions(mask_BL, self.shift)
        if alter is not None:
            positions_BL = alter.positions(positions_BL, mask_BL)
        embedded_BLD = self.backbone.embed(self._words(ids_BL), positions_BL)
        if alter is not None:
            embedded_BLD = alter.embedded(embedded_BLD)
        if self.prompt is None or self.prompt.deep:
            if packed is not None:  # word vectors know of none
                return self.transformer.run(embedded_BLD, positions_BL, mask_BL, prefix, every=every, packed=packed)
            return self.backbone.run(embedded_BLD, positions_BL, mask_BL, prefix, every=every)
        prompt_BPD = self.prompt.inputs(self.transformer, ids_BL.shape[0]).to(embedded_BLD.dtype)
        seen = torch.cat([mask_BL.new_ones((ids_BL.shape[0], self.prompt.length)), mask_BL], dim=1)
        together = torch.cat([prompt_BPD, embedded_BLD], dim=1)
        states = self.backbone.run(together, positions_BL, seen, None, every=every)
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
        packed: Packed | None = None,
    ) -> TokenBatch:
        """Run the backbone and pool, by default with the loss's pooler."""
        pooler = pooler or self.loss_pooler
        every = pooler in NEEDS_ALL_LAYERS
        states = self.states(ids_BL, mask_BL, constants.prefix, alter, every=every, packed=packed)
        local_BLD, noise_BD = states[-1], None
        if self.cnn is not None:
            local_BLD = self.cnn(states[-1], mask_BL)
            pooled_BD = pool("mean", [local_BLD], mask_BL)
        elif pooler == "mask":
            length_B = mask_BL.sum(dim=1)
            if template_B is None:
                template_B = torch.zeros_like(length_B)
            pooled_BD = read_at(states[-1], length_B - 1 - self.tails[template_B])
            if constants.noise_TND is not None:
                words_B = length_B - self.sizes[template_B]
                noise_BD = constants.noise_TND[template_B, words_B]
                # an empty text equals its noise; make that exact, or normalising would amplify the rounding error
                pooled_BD = torch.where(words_B[:, None] == 0, noise_BD.to(pooled_BD.dtype), pooled_BD)
        else:
            counted_BL = self.backbone.known(ids_BL, mask_BL)
            pooled_BD = pool(pooler, states, counted_BL, 0 if self.first_layer == "embeddings" else 1)
        if self.backbone.dense is not None:
            pooled_BD = self.backbone.dense(pooled_BD)
        return TokenBatch(states, local_BLD, pooled_BD, noise_BD)

    def project(self, pooled_BD: torch.Tensor, noise_BD: torch.Tensor | None = None) -> torch.Tensor:
        """Return the vectors that the loss compares, ``(B, D)``: pooled minus noise, after the projector if any.

        Pass all rows of a batch in one call if the projector normalises over them.
        """
        if self.mlp is None:
            return pooled_BD if noise_BD is None else pooled_BD - noise_BD
        if noise_BD is None:
            return self.mlp(pooled_BD)
        if self.projector == "mlm_transform":  # PromptBERT's code passes both through the transform
            return self.mlp(pooled_BD) - self.mlp(noise_BD)
        return self.mlp(pooled_BD - noise_BD)

    def finish(self, pooled_BD: torch.Tensor, noise_BD: torch.Tensor | None = None) -> torch.Tensor:
        """Return the embedding at inference before post-processing; applies the projector only with ``always``."""
        if self.mlp_use == "always":
            return self.project(pooled_BD, noise_BD)
        return pooled_BD if noise_BD is None else pooled_BD - noise_BD

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the trainable weights by name, the single source for training, saving and counting."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def _make_projector(self, start: str) -> nn.Module:
        if self.projector == "batch_norm":
            return BatchNormProjector(self.backbone.dimension, start)
        if self.projector == "mlm_transform":
            head = load_mlm_head(self.transformer, wanted_by="pooler.projector")
            return nn.Sequential(head.dense, nn.GELU(), head.norm).requires_grad_(True)
        return TanhMlp(self.backbone.dimension)

    def _word(self, word: int) -> torch.Tensor:
        return self.backbone.words(torch.tensor([word]))[0].detach().clone()

    def _words(self, ids_BL: torch.Tensor) -> torch.Tensor:
        """Return word vectors ``(B, L, D)``, using the trained ones for template pieces and ``[CLS]``."""
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
