"""From tokenised rows to vectors: backbone, prompt, template, pooler, projector and post-processing.

A query side: what was trained holds for role ``query`` alone, and every other text keeps the bare backbone's vector. A
document's vector then depends on the backbone alone, so an index outlives every change of the query side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from tokenizers import Tokenizer
from torch import nn

from cse.choices import PoolerKind, ReadOut, Side
from cse.errors import CseError, nearest
from cse.model.backbone import Backbone
from cse.model.declared import Declared, declared_by
from cse.model.flow import Flow
from cse.model.mlm_head import load_mlm_head
from cse.model.passes import Alteration, Constants, Packed, Prefix, TokenBatch
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
from cse.model.post import QUERY_MAP, LinearMap
from cse.model.prompts import Prompt
from cse.model.static_words import StaticWords
from cse.model.template import Template
from cse.runtime.kept_vectors import KeptVectors
from cse.runtime.tokens import Tokenizers
from cse.runtime.uses import NO_TEXTS, QUERY, check_room, role_for

BARE = ReadOut()


class Encoder(nn.Module):
    """From tokenised rows to vectors, through a (usually frozen) language model and its prompts.

    Args:
        cls: whether the word vector of ``[CLS]`` is trained.
        templates: words around the sentence; the second template is for the second copy in training.
        trained: what may change beside the parts below: ``full``, all of the backbone's weights; ``biases``, its biases
            alone (BitFit, Ben Zaken et al. 2022); ``norms``, its norms; ``lora``, low-rank updates; ``prompts``, none.
        use: length, task texts and shorter widths; None: as the backbone's folder declares.
        side: ``both``, or ``query``: what is trained is for role ``query`` alone. ``embed``, ``pooled`` and
            ``max_length`` are then the query side's.

    Attributes:
        documents: the bare backbone, which embeds all but queries; None if its side is ``both``.
        kept: has the vectors of a backbone that nothing trains, alone or as ``documents``; None: each is computed.
    """

    tails: torch.Tensor
    sizes: torch.Tensor

    def __init__(
        self,
        backbone: Backbone | StaticWords,
        prompt: Prompt | None = None,
        read_out: ReadOut = BARE,
        *,
        cls: bool = False,
        templates: Sequence[Template] = (),
        trained: str = "prompts",
        lora_rank: int = 0,
        use: Declared | None = None,
        side: Side = "both",
    ) -> None:
        super().__init__()
        self.backbone: Backbone | StaticWords = backbone
        self.prompt, self.read_out, self.side = prompt, read_out, side
        self.templates, self.denoise = tuple(templates), read_out.denoise
        self.trained, self.lora_rank = trained, lora_rank
        self.pooler: PoolerKind = read_out.kind or backbone.pooling
        self.loss_pooler: PoolerKind = read_out.kind_in_loss or self.pooler
        self._check_parts(cls)
        if isinstance(backbone, Backbone):
            backbone.train_only(trained, lora_rank)  # of the backbone; prompt, projector and words below are trained
        self.mlp = self._make_projector() if read_out.mlp != "none" else None
        self.cnn = TokenCnn(backbone.hidden_size) if self.pooler == "cnn" else None
        self.cls = nn.Parameter(self._word(self.transformer.special_ids["cls"])) if cls else None
        words = self.templates[0].words if self.templates else ()
        self.template = nn.Parameter(torch.stack([self._word(word) for word in words])) if words else None
        # per template: words after the sentence's end, and all words; buffers, so that no step sends them to the device
        for name, values in (("tails", [t.tail for t in templates]), ("sizes", [len(t.ids) for t in templates])):
            self.register_buffer(name, torch.tensor(values, dtype=torch.int64), persistent=False)
        self.post: LinearMap | Flow | None = None
        self._decide_use(use or backbone.declared)
        self.check_side()
        self.kept: KeptVectors | None = None
        self.documents: Self | None = None
        if side == QUERY and isinstance(backbone, Backbone):
            self.documents = type(self)(backbone, use=_use_of_documents(backbone, self.texts))  # type: ignore[assignment]
        self.eval()

    def _check_parts(self, cls: bool) -> None:
        backbone = self.backbone
        if self.pooler not in POOLERS:
            raise CseError(f"pooler: {self.pooler!r} is not one of {', '.join(POOLERS)}{nearest(self.pooler, POOLERS)}")
        if isinstance(backbone, StaticWords) and (self.prompt is not None or cls or self.pooler != "mean"):
            raise CseError(
                f"backbone.name: {backbone.files.name} holds word vectors; use no prompt and set pooler.kind: mean"
            )
        if backbone.dense is not None and (self.templates or self.pooler not in OVER_TOKENS):
            raise CseError(
                f"pooler.kind: {backbone.files.name} has layers of its own behind its pooling, which take "
                f"{', '.join(OVER_TOKENS)} and no template"
            )
        if self.pooler == "mask" and not all(template.mask for template in self.templates):
            raise CseError("template.text: pooler 'mask' reads the output at {mask}; put it behind {sentence}")

    def _make_projector(self) -> nn.Module:
        if self.read_out.projector == "batch_norm":
            return BatchNormProjector(self.backbone.dimension, self.read_out.start)
        if self.read_out.projector == "mlm_transform":
            head = load_mlm_head(self.transformer, wanted_by="pooler.projector")
            return nn.Sequential(head.dense, nn.GELU(), head.norm).requires_grad_(True)
        return TanhMlp(self.backbone.dimension)

    def _decide_use(self, use: Declared) -> None:
        """Set texts, widths, tokenizer and the length at inference; training cuts at ``train.max_length``."""
        backbone, prompt = self.backbone, self.prompt
        self.widths, self.texts = use.widths, dict(use.texts)
        if self.side == QUERY and QUERY not in use.texts:  # a role for each of the two sides
            self.texts = {QUERY: "", **use.texts} if role_for("document", use.texts) else {**NO_TEXTS, **use.texts}
        self.shift = prompt.length if prompt is not None and prompt.position_shift else 0
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

    def check_side(self) -> None:
        """Refuse parts that the side cannot have."""
        obstacle = self._obstacle_to_query_side() if self.side == QUERY else ""
        if self.side != QUERY and isinstance(self.post, LinearMap) and self.post.kind == QUERY_MAP:
            obstacle = f"post.kind: {QUERY_MAP} maps queries alone; set prompt.side: {QUERY}"
        if obstacle:
            raise CseError(obstacle)

    def _obstacle_to_query_side(self) -> str:
        backbone, prompt, post, takes = self.backbone, self.prompt, self.post, f"prompt.side: {QUERY} takes"
        if not isinstance(backbone, Backbone):
            return (
                f"prompt.side: {QUERY} needs a language model, and {backbone.files.name} holds word vectors; set both"
            )
        if not self.frozen:
            return (
                f"prompt.side: {QUERY} keeps the backbone's weights for documents, and train.parameters is "
                f"{self.trained}; set prompts, or prompt.side: both"
            )
        if self.templates:
            return f"{takes} no template, whose words stand in one tokenizer for all texts; set both"
        if prompt is not None and not prompt.deep:
            return f"{takes} a deep prompt, and prompt.kind is {prompt.kind}; choose key_value"
        if self.read_out.mlp == "always" and not isinstance(self.mlp, TanhMlp):
            return f"{takes} projector tanh, and pooler.projector is {self.read_out.projector}"
        own = _use_of_documents(backbone, {}).pooling
        if self.pooler != own:
            return f"prompt.side: {QUERY} pools as its documents do, by {own}, and pooler.kind is {self.pooler}"
        if post is not None and not (isinstance(post, LinearMap) and post.kind == QUERY_MAP):
            return f"{takes} post.kind {QUERY_MAP}, and {post.config()['kind']} maps documents too"
        if post is not None and post.dimension != post.width:
            return f"{takes} a map to the width of documents, {post.width}, and this one gives {post.dimension}"
        return ""

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
    def adds_nothing(self) -> bool:
        """Whether it is a language model as it is used for documents, without anything trained."""
        added = (self.prompt, self.cls, self.post, *self.templates)
        untrained = self.frozen and self.read_out.mlp != "always" and all(part is None for part in added)
        backbone = self.backbone
        own = isinstance(backbone, Backbone) and self.pooler == _use_of_documents(backbone, {}).pooling
        return untrained and own

    @property
    def dimension(self) -> int:
        """Width of the embeddings."""
        return self.backbone.dimension if self.post is None else self.post.dimension

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the trainable weights by name, the single source for training, saving and counting."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def tokenizer_of_view(self, view: int, *, training: bool) -> Tokenizer:
        """Return the tokenizer of a view; it wraps each text in the view's template, if there is one."""
        if not self.templates:
            return self.backbone.tokenizer
        return self.templates[min(view, len(self.templates) - 1)].tokenizer(self.backbone.tokenizer, training=training)

    def packs(self, device: torch.device, longest: int) -> bool:
        """Return whether padded rows of up to ``longest`` tokens may be packed, see ``cse.model.passes``."""
        packs = isinstance(self.backbone, Backbone) and self.backbone.packs(device, longest)
        return packs and (self.prompt is None or self.prompt.deep)

    def prefix(self, rows: int = 1) -> Prefix | None:
        """Return a deep prompt's keys and values, the same for all rows unless training with prompt dropout."""
        return self.prompt(self.backbone, rows) if self.prompt is not None and self.prompt.deep else None

    def constants(self) -> Constants:
        """Return the values that do not depend on the sentence at inference."""
        return Constants(self.prefix(), self.noise(self.max_length + 1) if self.denoise == "always" else None)

    def noise(self, count: int) -> torch.Tensor:
        """Return each template's output at the mask without a sentence, ``(T, count, D)`` for ``T`` templates.

        PromptBERT's template denoising, for sentence lengths 0 to ``count - 1``: words after the sentence keep the
        positions they have with the sentence.
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
        """Embed tokenised rows as at inference, ``(B, D)``: after the projector if ``always``, and post-processing."""
        made = self.pooled(ids_BL, mask_BL, constants, pooler=self.pooler)
        if self.read_out.mlp == "train_only":
            embedding_BD = made.pooled_BD if made.noise_BD is None else made.pooled_BD - made.noise_BD
        else:
            embedding_BD = self.project(made.pooled_BD, made.noise_BD)
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
            return self.backbone.run(embedded_BLD, positions_BL, mask_BL, prefix, every=every, packed=packed)
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
            pooled_BD = pool(pooler, states, counted_BL, 0 if self.read_out.first_layer == "embeddings" else 1)
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
        if self.read_out.projector == "mlm_transform":  # PromptBERT's code passes both through the transform
            return self.mlp(pooled_BD) - self.mlp(noise_BD)
        return self.mlp(pooled_BD - noise_BD)

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


def _use_of_documents(backbone: Backbone, texts: dict[str, str]) -> Declared:
    """Return how the bare backbone is used behind these task texts: as its folder says, whatever the settings cut."""
    declared = declared_by(backbone.files.folder)
    return replace(declared, pooling=declared.pooling or backbone.family.pooling, texts=texts)
