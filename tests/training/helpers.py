"""A small training problem on a tiny backbone."""

import signal
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import torch

from cse.losses.group import ALONE, Group
from cse.losses.nt_xent import MomentumQueue
from cse.losses.replaced_tokens import ReplacedTokens
from cse.losses.self_guided import SelfGuided
from cse.losses.shared import Batch
from cse.model.passes import on_device
from cse.model.sentence_encoder import SentenceEncoder
from cse.settings.objective import (
    ContrastiveTensionSettings,
    NtXentSettings,
    ObjectiveSettings,
    ReplacedTokensSettings,
    SelfGuidedSettings,
)  # fmt: skip
from cse.settings.train import TrainSettings
from cse.training.batch import Batcher, TokenTable, tokenise
from cse.training.losses import Losses, losses_from
from tests.parts import Plan, new_prompt, sentence_encoder
from tests.tiny import WORDS

CPU = torch.device("cpu")


def make_rows(count: int = 40, seed: int = 0) -> pa.Table:
    """Triplets of random words; the positive repeats most of the anchor."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(count):
        anchor, negative = (list(rng.choice(WORDS, int(rng.integers(*lengths)))) for lengths in ((2, 9), (1, 5)))
        rows.append({"sent0": " ".join(anchor), "sent1": " ".join(anchor[:-1]), "hard_neg": " ".join(negative)})
    return pa.Table.from_pylist(rows)


def make_problem(backbone, *, dropout: float = 0.1, frozen: bool = True, rows: int = 40):
    """Return an encoder, losses and tokenised rows, the same on every call."""
    torch.manual_seed(11)
    prompt = new_prompt("key_value", backbone, length=4, dropout=dropout, init_std=0.02) if frozen else None
    encoder = sentence_encoder(backbone, prompt, pooler="mean", trained="prompts" if frozen else "full")
    return encoder, losses_of(encoder), make_table(backbone, rows)


def losses_of(encoder: SentenceEncoder, **terms: dict) -> Losses:
    """Return the losses for these ``objective`` settings; by default NT-Xent and the hinge."""
    return losses_from(ObjectiveSettings(**terms), encoder, TrainSettings(), None)


def momentum_queue(encoder: SentenceEncoder, *, size: int, momentum: float) -> MomentumQueue:
    made = MomentumQueue(encoder, NtXentSettings(queue=size, queue_projector="following"))
    made.momentum = momentum
    return made


class Fours(ContrastiveTensionSettings):
    """Groups of four rows, so that a small batch has several."""

    group = 4


def self_guided_term(encoder: SentenceEncoder, regularizer: float = 0.1) -> SelfGuided:
    made = SelfGuided(encoder, SelfGuidedSettings(weight=1.0), projection=20)
    made.temperature, made.regularizer = 0.1, regularizer
    return made


def replaced_tokens_term(encoder: SentenceEncoder, source, **options) -> ReplacedTokens:
    """Replaced-token detection with the default settings except for these."""
    return ReplacedTokens(encoder, ReplacedTokensSettings(**({"weight": 0.5} | options)), source)


def make_table(backbone, rows: int = 40, view: str = "triplets") -> TokenTable:
    return tokenise(make_rows(rows), view, [backbone.tokenizer], max_length=12, pad_id=backbone.pad_id)


def embed_rows(
    encoder: SentenceEncoder,
    table: TokenTable,
    rows: Sequence[int] | np.ndarray,
    plan: Plan,
    *,
    step: int = 0,
    device: torch.device = CPU,
    group: Group = ALONE,
) -> Batch:
    """Encode rows as in a step of the loop's first epoch."""
    settings = {"encoder": encoder, "settings": plan.train, "augment": plan.augment, "bf16": plan.bf16}
    batcher = Batcher(**settings, device=device, group=group)
    staged = batcher.stage(table, np.asarray(rows), step=step, epoch=0)
    return batcher.encode(staged, on_device(staged.arrays, device))


def kept_bytes(run: Callable[[], object]) -> int:
    """The bytes that autograd holds behind a call, each storage once."""
    held = {}

    def note(tensor):
        held[tensor.untyped_storage().data_ptr()] = (tensor, tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run()
    return sum(size for _, size in held.values())


def copies(weights) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in weights.items()}


class Recorder:
    """An observer that records every call."""

    def __init__(self) -> None:
        self.starts, self.records, self.scores, self.closed = [], [], [], 0

    def start(self, done, steps):
        self.starts.append((done, steps))

    def step(self, record):
        self.records.append(record)

    def evaluated(self, step, score, best):
        self.scores.append((step, score, best))

    def close(self):
        self.closed += 1


class Stop(Recorder):
    """An observer under which SIGTERM comes at the first step that is told."""

    def step(self, record):
        super().step(record)
        if len(self.records) == 1:
            signal.raise_signal(signal.SIGTERM)
