"""PromCSE with the energy-based hinge (Jiang et al. 2022), whole, in one file.

    python examples/promcse.py BACKBONE nli_for_simcse.csv --sts sts-test.csv

Prompts are trained keys and values that every layer of a frozen BERT attends to besides the tokens. This file trains
them on triplets of sentences and scores the embeddings on STS-B. Its steps are those of

    cse preset use promcse-eh-minilm --keep-data
    cse train -s train.max_steps=40 -s train.row_groups=1

on the same rows: same batches, same dropout, same losses. It lacks what a project needs besides: other systems and
backbones, clean data, resuming, several workers, the choice of a checkpoint, export. BACKBONE is a folder of a model
with the layout of BERT, such as all-MiniLM-L6-v2; the triplets are a CSV file with columns sent0, sent1 and hard_neg.

Tensor names end in their shape: B rows, L tokens, P prompt length, H heads, K width per head, D width.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from tokenizers import Tokenizer
from torch import nn
from transformers import AttentionInterface, AutoModel

from cse.losses.energy_hinge import energy_hinge
from cse.losses.nt_xent import nt_xent
from cse.losses.shared import cosines
from cse.model.dropout import dropout, replace_dropout  # torch's, but for cheaper random numbers on a CPU

PROMPT_LENGTH, INIT_STD = 12, 0.02
TEMPERATURE, MARGIN, HINGE_WEIGHT = 0.05, 0.2, 10.0
MAX_TOKENS, CLIP_NORM, SEED = 32, 1.0, 42
REPORT_EVERY = 5  # steps
ENCODE_AT_ONCE = 64  # sentences

Prompt = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values (B, H, P, K), one pair per layer


def attend(
    module: nn.Module,
    query_BHLK: torch.Tensor,
    key_BHLK: torch.Tensor,
    value_BHLK: torch.Tensor,
    attention_mask: torch.Tensor,
    *,
    scaling: float,
    prompt: tuple[torch.Tensor, torch.Tensor],
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend from the tokens to ``[prompt | tokens]``: ``softmax(Q [Pk; K]^T / sqrt(K)) [Pv; V]``.

    The prompt has keys and values but no queries, so it has no outputs and passes nothing on to the next layer.
    """
    key_BHNK = torch.cat([prompt[0], key_BHLK], dim=2)
    value_BHNK = torch.cat([prompt[1], value_BHLK], dim=2)
    scores_BHLN = (query_BHLK * scaling) @ key_BHNK.transpose(2, 3)
    shares_BHLN = scores_BHLN.masked_fill(~attention_mask, float("-inf")).softmax(dim=-1)
    return (dropout(shares_BHLN, options["dropout"]) @ value_BHNK).transpose(1, 2), None


AttentionInterface.register("prompted", attend)


class PromptedBert(nn.Module):
    """A frozen BERT with a trained prompt in every layer; a sentence's vector is the mean over its tokens.

    Args:
        folder: the backbone: ``config.json``, ``model.safetensors``, ``tokenizer.json``.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        bert = AutoModel.from_pretrained(
            folder, attn_implementation="prompted", add_pooling_layer=False, dtype=torch.float32
        )
        replace_dropout(bert)
        self.bert: Any = bert.requires_grad_(False)
        config = bert.config
        self.layers, self.heads, self.width = config.num_hidden_layers, config.num_attention_heads, config.hidden_size
        self.pad_id, self.dropout, self.longest = (
            *(config.pad_token_id, config.hidden_dropout_prob, config.max_position_embeddings),
        )
        torch.manual_seed(SEED)
        self.table = nn.Parameter(torch.empty(PROMPT_LENGTH, 2 * self.layers * self.width).normal_(0.0, INIT_STD))

    def tokens(self, texts: list[str], longest: int) -> list[list[int]]:
        """Return the token ids of each text, cut to ``longest``."""
        self.tokenizer.enable_truncation(longest)
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]

    def prompt(self, rows: int) -> Prompt:
        """Return each layer's keys and values; in training every row draws its own dropout."""
        head = self.width // self.heads
        blocks = self.table.view(PROMPT_LENGTH, self.layers, 2, self.heads, head).permute(1, 2, 3, 0, 4)
        drop = self.dropout if self.training else 0.0

        def per_row(block_HPK: torch.Tensor) -> torch.Tensor:
            return dropout(block_HPK.expand(rows, -1, -1, -1), drop)

        return [(per_row(key_HPK), per_row(value_HPK)) for key_HPK, value_HPK in blocks]

    def forward(self, tokens: list[list[int]]) -> torch.Tensor:
        """Return the vectors ``(B, D)`` of sentences given as token ids."""
        order = sorted(range(len(tokens)), key=lambda row: len(tokens[row]))
        lengths_B = torch.tensor([len(tokens[row]) for row in order])
        mask_BL = torch.arange(int(lengths_B.max())) < lengths_B[:, None]
        ids_BL = torch.full(mask_BL.shape, self.pad_id)
        ids_BL[mask_BL] = torch.tensor([token for row in order for token in tokens[row]])
        visible_B11N = nn.functional.pad(mask_BL, (PROMPT_LENGTH, 0), value=True)[:, None, None]

        prompt = self.prompt(len(tokens))
        state_BLD = self.bert.embeddings(input_ids=ids_BL)
        for layer, own in zip(self.bert.encoder.layer, prompt, strict=True):
            state_BLD = layer(state_BLD, attention_mask=visible_B11N, prompt=own)
        sum_BD = (state_BLD * mask_BL[:, :, None]).sum(dim=1)
        return (sum_BD / lengths_B[:, None])[torch.tensor(order).argsort()]

    @torch.no_grad()
    def encode(self, texts: list[str]) -> torch.Tensor:
        """Return the vectors ``(N, D)`` of sentences."""
        self.eval()
        tokens = self.tokens(texts, self.longest)
        parts = [self(tokens[start : start + ENCODE_AT_ONCE]) for start in range(0, len(tokens), ENCODE_AT_ONCE)]
        return torch.cat(parts)


def batches(rows: int, size: int) -> Iterator[np.ndarray]:
    """Yield the rows of every step, epoch after epoch without end."""
    for epoch in count():
        order = np.random.default_rng([SEED, epoch]).permutation(rows)
        yield from (order[start : start + size] for start in range(0, rows, size))


def train(
    model: PromptedBert, triplets: list[tuple[str, str, str]], *, steps: int, batch_size: int, learning_rate: float
) -> None:
    """Train the prompt in place and print the losses.

    Args:
        model: its table is trained; all other weights stay.
        triplets: anchor, positive and hard negative of each row.
        steps: updates; the learning rate falls to 0 over them.
        batch_size: rows per update; the other rows of a batch are an anchor's negatives too.
        learning_rate: the first update's.
    """
    columns = [model.tokens(list(texts), MAX_TOKENS) for texts in zip(*triplets, strict=True)]
    optimizer = torch.optim.AdamW([model.table], lr=learning_rate, weight_decay=0.0)
    model.train()
    for step, rows in zip(range(steps), batches(len(triplets), batch_size), strict=False):
        torch.manual_seed(int(np.random.SeedSequence([SEED, step]).generate_state(1, np.uint64)[0] >> 1))
        optimizer.param_groups[0]["lr"] = learning_rate * (steps - step) / steps
        embedded = model([column[row] for column in columns for row in rows])
        anchor_BD, positive_BD, negative_BD = embedded.split(len(rows))
        contrast = nt_xent(cosines(anchor_BD, positive_BD), cosines(anchor_BD, negative_BD), temperature=TEMPERATURE)
        hinge = energy_hinge(anchor_BD, positive_BD, negative_BD, margin=MARGIN)
        loss = contrast + HINGE_WEIGHT * hinge
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([model.table], CLIP_NORM)
        optimizer.step()
        if (step + 1) % REPORT_EVERY == 0 or step + 1 == steps:
            print(f"step {step + 1}  nt_xent {contrast:.7f}  energy_hinge {hinge:.7f}  loss {loss:.7f}")


def read_triplets(path: Path) -> list[tuple[str, str, str]]:
    """Return anchor, positive and hard negative of each row."""
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["sent0"], row["sent1"], row["hard_neg"]) for row in csv.DictReader(file)]


def score(model: PromptedBert, path: Path) -> float:
    """Return 100 times the rank correlation of cosines with the gold scores of STS-B's file (tabs, no header)."""
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    gold, first, second = zip(*((float(line[4]), line[5], line[6]) for line in lines), strict=True)
    cosine = nn.functional.cosine_similarity(model.encode(list(first)), model.encode(list(second)))
    return 100 * float(spearmanr(cosine.numpy(), gold).statistic)


def main() -> None:
    """Train, and score if there are pairs."""
    parser = argparse.ArgumentParser(description="PromCSE with the energy-based hinge, in one file.")
    parser.add_argument("backbone", type=Path, help="folder of a BERT model")
    parser.add_argument("triplets", type=Path, help="CSV file: sent0, sent1, hard_neg")
    parser.add_argument("--sts", type=Path, help="a file of STS-B, scored before and after training")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=3e-2)
    given = parser.parse_args()
    model = PromptedBert(given.backbone)
    if given.sts is not None:
        print(f"before  Spearman {score(model, given.sts):.2f}")
    plan = {"steps": given.steps, "batch_size": given.batch_size, "learning_rate": given.learning_rate}
    train(model, read_triplets(given.triplets), **plan)
    if given.sts is not None:
        print(f"after   Spearman {score(model, given.sts):.2f}")


if __name__ == "__main__":
    main()
