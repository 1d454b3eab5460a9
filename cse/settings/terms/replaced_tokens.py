"""Term ``replaced_tokens`` of the loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cse.settings.groups.group import NonNegative, Share
from cse.settings.terms import TermSettings


class ReplacedTokensSettings(TermSettings):
    """Conditional replaced-token detection (DiffCSE, D2CSE)."""

    compares = False

    weight: NonNegative = Field(0.0, description="Weight of this term in the loss (lambda); 0 disables it.")
    discriminator: Literal["shared", "frozen", "copy"] = Field(
        "shared",
        description="`shared`: the frozen backbone with the same prompts (D2CSE); `frozen`: the frozen backbone "
        "without prompts (ablation a); `copy`: a trained copy of the backbone without prompts (DiffCSE, ablation b).",
    )
    condition: bool = Field(
        True, description="Feed the sentence embedding to the discriminator in place of `[CLS]`; false: ablation c."
    )
    copy_learning_rate: float | None = Field(
        None,
        gt=0.0,
        description="Learning rate of the discriminator with `discriminator: copy`; null: `train.learning_rate`.",
    )
    generator: str = Field(
        "distilbert/distilbert-base-uncased",
        description="Hub id of the masked language model that proposes tokens; it must share the backbone's "
        "vocabulary. `folder`: the model in `generator_folder`; `unigram`: draw tokens by their frequency in the "
        "training text, without a model.",
    )
    generator_folder: str = Field(
        "data/raw/generator",
        description="Model folder for `generator: folder`; the pipeline retrains when it changes.",
    )
    generator_revision: str = Field("main", description="Hub branch, tag or commit of the generator.")
    generator_dropout: bool = Field(
        True, description="Keep dropout on in the generator (released code); must be false with `corruption: prepared`."
    )
    corruption: Literal["on_the_fly", "prepared"] = Field(
        "on_the_fly",
        description="Corrupt each batch during training, or all rows before it (one corruption per epoch).",
    )
    mask_share: Share = Field(0.3, description="Share of tokens masked for the generator.")
    choice: Literal["argmax", "sample"] = Field(
        "argmax", description="Take the generator's most likely token (released code) or sample from its distribution."
    )
    positions: Literal["all", "masked"] = Field(
        "all", description="Where to use the generator's tokens: every position (released code) or masked ones only."
    )
    protect_special: bool = Field(False, description="Keep all special tokens unchanged; false: only `[CLS]`.")
    normalize: Literal["positions", "tokens", "sum"] = Field(
        "positions",
        description="`positions`: mean over all positions, padding to the batch's longest row included (released "
        "code); `tokens`: mean over real tokens; `sum`: sum over each sentence's tokens (D2CSE equation 2).",
    )
    prompt_draw: Literal["shared", "separate"] = Field(
        "shared", description="Whether both passes share one draw of prompt dropout or each draws its own."
    )

    @property
    def corrupts_beforehand(self) -> bool:
        """Whether rows are corrupted once before training."""
        return self.weight > 0 and self.corruption == "prepared"

    @property
    def generator_model(self) -> str:
        """Hub id or folder of the generator."""
        return self.generator_folder if self.generator == "folder" else self.generator

    @property
    def reads_generator(self) -> bool:
        """Whether a masked language model proposes tokens during training."""
        return self.weight > 0 and self.corruption == "on_the_fly" and self.generator != "unigram"
