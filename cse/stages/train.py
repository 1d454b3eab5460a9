"""Stage ``train``: prepared rows and a backbone become a checkpoint."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import torch

from cse.data.scored import ScoredPairs
from cse.data.store import TRAIN_FILE, PreparedData, rows_in_words
from cse.errors import CseError
from cse.evaluation.sts import dev_score
from cse.files import fingerprint, naming
from cse.model.backbone import Backbone
from cse.model.checkpoint import save_checkpoint
from cse.model.counts import count_parameters
from cse.model.mlm_head import MlmHead, load_mlm_head
from cse.model.sentence_encoder import SentenceEncoder
from cse.model.static_words import StaticWords
from cse.outputs import Kind, check_file, check_folder, is_json_with, publish_file, publish_folder
from cse.process import only_one
from cse.settings import Settings
from cse.settings.groups.objective import ObjectiveSettings
from cse.settings.groups.train import TrainSettings
from cse.stages.build.encoder import encoder_from
from cse.stages.build.losses import Parts, losses_from
from cse.stages.build.plan import plan_from, second_text_from
from cse.stages.common import CHECKPOINT, CORRUPTED, METRICS, PLOTS, PREPARED, SCRATCH, run_stage, training_code
from cse.stages.corpus import check_post, fit_post, open_backbone
from cse.stages.environment import environment
from cse.stages.inputs import training_inputs
from cse.training.group import ALONE, Group
from cse.training.loop import take_best, train
from cse.training.memory import OutOfMemory, is_out_of_memory
from cse.training.observers import CsvLog, Observer, Observers, ProgressBar, TensorBoard
from cse.training.precision import choose_bf16, choose_device
from cse.training.state import RunFolder, RunState
from cse.training.tokens import TokenTable, shared_table, tokenise

GROUPS = ("backbone", "prompt", "template", "pooler", "post", "augment", "objective", "train")
DEV_BATCH = 64  # sentences
LAUNCHERS = "cse.launchers"  # entry points: functions of a Training


@dataclass(frozen=True)
class Training:
    """A training that is ready to run, under any launcher.

    Attributes:
        settings: as they were given.
        prepared, corrupted: folders of the rows.
        encoder: newly initialised.
        head: the backbone's MLM head; None where no term needs it.
        data: the rows and dev pairs; nothing else of it is read.
        device: where to train.
        bf16: whether matrix products run in bfloat16.
        folder: what a killed run goes on from, named by a fingerprint of settings, data, models and code.
        tokens: a folder where launchers share tokenised rows; None: each tokenises for itself.
    """

    settings: Settings
    prepared: Path
    corrupted: Path
    encoder: SentenceEncoder
    head: MlmHead | None
    data: PreparedData
    device: torch.device
    bf16: bool
    folder: RunFolder
    tokens: Path | None

    def table(self) -> TokenTable:
        """Return the training rows as token ids; shared ones are mapped into memory."""
        settings, encoder = self.settings, self.encoder
        tokenizers = [encoder.tokenizer_of_view(view, training=True) for view in range(max(len(encoder.templates), 1))]

        def make() -> TokenTable:
            return tokenise(
                self.data.train,
                self.data.view,
                tokenizers,
                max_length=settings.train.max_length,
                pad_id=encoder.backbone.pad_id,
                views=settings.objective.copies,
                second_text=second_text_from(settings.augment, encoder.backbone, settings.train.seed),
                progress=sys.stderr.isatty(),
            )

        if self.tokens is None:
            return make()
        facts = {
            "tokenizers": [tokenizer.to_str() for tokenizer in tokenizers],
            "max_length": settings.train.max_length,
            "views": settings.objective.copies,
            "mask_span": [settings.augment.mask_span, settings.train.seed] if settings.augment.mask_span else 0,
        }
        return shared_table(self.tokens / fingerprint(facts, [self.prepared / TRAIN_FILE]), make)

    def run(self, observer: Observer, group: Group = ALONE) -> RunState:
        """Train, or go on where a killed run stopped, and leave the best weights in the encoder.

        Raises:
            CseError: what a loss term needs is not there, or the loss stopped being a number.
            OutOfMemory: a batch does not fit.
            Interrupted: a signal arrived; the state is saved.
        """
        settings, encoder, dev, table = self.settings, self.encoder, self.data.dev, self.table()
        seed, epochs = settings.train.seed, settings.train.epochs
        parts = Parts(encoder, self.head, table, seed, epochs, self.corrupted, self.device)
        try:
            return train(
                encoder,
                losses_from(settings.objective, parts),
                table,
                plan_from(settings.train, settings.augment, encoder.backbone, bf16=self.bf16),
                dev=None if dev is None else lambda: self.score(dev),
                choose=bool(settings.objective.comparing),
                folder=self.folder,
                observer=observer,
                device=self.device,
                group=group,
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            at_once = settings.train.mini_batch_size or len(table.columns) * settings.train.batch_size
            raise OutOfMemory(
                f"train.mini_batch_size: out of memory ({self.device.type}) with {at_once} sentences at once; set it "
                f"to {max(at_once // 2, 1)} or less (same gradients, a third slower), or lower train.batch_size"
            ) from None

    def score(self, dev: ScoredPairs) -> float:
        """Return what checkpoints are chosen by: Spearman * 100 on the dev pairs, read out as ``train.selection``."""
        as_in_training = self.settings.train.selection == "training"
        with self.encoder.read_as_in_training() if as_in_training else nullcontext():
            return dev_score(self.encoder, dev, DEV_BATCH)

    def take_over(self) -> RunState:
        """Return the last saved state and leave its best weights in the encoder: a launcher's workers trained.

        Raises:
            CseError: nothing was saved.
        """
        state = self.folder.load()
        if state is None:
            raise CseError(f"{self.folder.path}: the workers saved nothing; is it on a disk that all of them see?")
        take_best(self.encoder, state)
        return state


def open_training(
    settings: Settings,
    *,
    prepared: Path,
    corrupted: Path,
    scratch: Path,
    backbone: Backbone | StaticWords | None = None,
    tokens: Path | None = None,
    folder: Path | None = None,
) -> Training:
    """Put together what a training needs.

    Args:
        settings: what to train.
        prepared: folder of the rows.
        corrupted: folder of a corruption made beforehand.
        scratch: where the folder of the run lies.
        backbone: a backbone that is open already; None: it is opened.
        tokens: a folder for shared tokenised rows.
        folder: the folder of the run, where a launcher has decided on it.

    Raises:
        CseError: rows that were prepared for something else, a backbone, head or GPU that is not there.
    """
    data = PreparedData(prepared)
    _check_view(data, settings.objective, settings.train)
    _check_rows(data, settings.objective, settings.train)
    _check_early_stop(settings.objective, settings.train)
    backbone = backbone or open_backbone(settings.backbone, settings.pooler, data)
    device = choose_device(settings.train.device)
    bf16 = choose_bf16(settings.train.precision, device)
    encoder = encoder_from(
        backbone, settings.prompt, settings.template, settings.pooler, settings.augment, settings.train
    )
    check_post(encoder, settings.post)
    wanted = [] if settings.train.parameters == "none" else settings.objective.needing_head
    head = None
    if wanted and isinstance(backbone, Backbone):
        head = load_mlm_head(backbone, wanted_by=f"objective.{wanted[0]}.weight")
    if folder is None:
        facts = {
            "settings": _groups(settings),
            "inputs": training_inputs(
                settings.backbone,
                settings.prompt,
                None if settings.train.parameters == "none" else settings.objective.replaced_tokens,
                opened=backbone.files,
            ),
            "device": device.type,
            "bf16": bf16,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        run = fingerprint(
            facts, [*sorted(prepared.glob("*.arrow")), *sorted(corrupted.glob("*.npy")), *training_code()]
        )
        folder = scratch / "resume" / run
    if settings.train.workers > 1 and tokens is None:
        tokens = scratch / "tokens"
    return Training(settings, prepared, corrupted, encoder, head, data, device, bf16, RunFolder(folder), tokens)


def train_here(training: Training) -> RunState:
    """Train in this process."""
    folder = training.folder.path
    board = folder.parents[1] / "tensorboard" / folder.name
    return training.run(Observers([ProgressBar(), CsvLog(folder / "plots"), TensorBoard(board)]))


def _launcher(workers: int) -> Callable[[Training], RunState]:
    """Return what runs a training; several workers need a part of the project that stands above the stages."""
    if workers == 1:
        return train_here
    for found in entry_points(group=LAUNCHERS, name="workers"):
        launch: Callable[[Training], RunState] = found.load()
        return launch
    raise CseError("train.workers: the part for several workers is not installed; run `pip install -e .` again")


def train_stage(
    settings: Settings,
    *,
    prepared: Path = PREPARED,
    corrupted: Path = CORRUPTED,
    checkpoint: Path = CHECKPOINT,
    metrics: Path = METRICS / "train.json",
    plots: Path = PLOTS / "train",
    scratch: Path = SCRATCH,
    launch: Callable[[Training], RunState] | None = None,
    backbone: Backbone | StaticWords | None = None,
    tokens: Path | None = None,
) -> dict[str, Any]:
    """Train, or go on where a killed run of the same settings, data and code stopped, and publish the checkpoint.

    With ``train.parameters: none`` nothing is trained: the checkpoint is a read-out, word vectors or post-processing.

    Args:
        settings: what to train.
        prepared: folder of the rows.
        corrupted: folder of a corruption made beforehand.
        checkpoint: folder to write.
        metrics: file to write.
        plots: folder to write.
        scratch: where the state of a killed run lies.
        launch: runs the training and leaves the best weights in its encoder; None: as ``train.workers`` says.
        backbone: as in ``open_training``.
        tokens: as in ``open_training``.

    Returns:
        Facts of the run, as the checkpoint holds them; ``metrics`` holds those to compare runs by.
    """
    check_folder(checkpoint, Kind.CHECKPOINT)
    check_folder(plots, Kind.PLOTS)
    check_file(metrics, is_json_with("parameters"))
    place = fingerprint({"checkpoint": str(checkpoint.resolve())})
    with only_one(
        scratch / "locks" / place,
        f"{checkpoint}: another training writes here; wait until it is over, or give another --out",
    ):
        training = open_training(
            settings, prepared=prepared, corrupted=corrupted, scratch=scratch, backbone=backbone, tokens=tokens
        )
        with only_one(
            scratch / "locks" / training.folder.path.name,
            f"{training.folder.path}: a training of the same settings and data is at work here; wait until it is over",
        ):
            return _train(training, checkpoint, metrics, plots, launch or _launcher(settings.train.workers))


def _train(
    training: Training,
    checkpoint: Path,
    metrics: Path,
    plots: Path,
    launch: Callable[[Training], RunState],
) -> dict[str, Any]:
    settings, encoder, data, folder = training.settings, training.encoder, training.data, training.folder
    _announce(training)
    results: dict[str, Any] = {}
    with naming(folder.path):
        if settings.train.parameters == "none":
            state = RunState()
            encoder.to(training.device)
        else:
            if data.dev is None:
                click.echo(
                    "no dev pairs: the last weights are kept, not the best; give data.dev_path to choose", err=True
                )
            elif not settings.objective.comparing:
                click.echo(
                    f"objective.{settings.objective.first} compares no sentences: the last weights are kept, "
                    "whatever the dev pairs say",
                    err=True,
                )
            state = launch(training)
            results = _training_facts(state, settings.objective)
    if settings.post.kind != "none":
        fit_post(encoder, settings.post, data)
    chosen_otherwise = settings.train.selection == "training" and "dev_spearman" in results
    if chosen_otherwise:
        results["selection_spearman"] = results["dev_spearman"]
    if data.dev is not None and (
        settings.post.kind != "none" or settings.train.parameters == "none" or chosen_otherwise
    ):
        results["dev_spearman"] = round(dev_score(encoder, data.dev, DEV_BATCH), 4)
    encoder.to("cpu")
    results |= _counts(encoder)
    if settings.train.parameters != "none" or settings.post.kind != "none":
        results["trained_on"] = rows_in_words(_source(data))
    with publish_folder(plots, Kind.PLOTS) as target:
        for file, header in _PLOTS.items():
            source = folder.path / "plots" / file
            # a run without training has nothing to draw, but the plots of dvc.yaml look for both files
            (target / file).write_bytes(source.read_bytes() if source.is_file() else header)
    with publish_file(metrics) as target:
        target.write_text(json.dumps(_headline(results), indent=2) + "\n", encoding="utf-8")
    facts = results | {"settings": _groups(settings), "data": _source(data)} | _computed_by(training)
    with publish_folder(checkpoint, Kind.CHECKPOINT) as target:
        save_checkpoint(encoder, target, facts)
    folder.remove()
    click.echo(f"trained {_counted(state.step, 'step')}{_outcome(results, post=settings.post.kind)}: {checkpoint}")
    return results


def _outcome(results: dict[str, Any], *, post: str) -> str:
    """Return what the closing line says of the dev score."""
    if "dev_spearman" not in results:
        return ""
    score = f", dev Spearman {results['dev_spearman']:.2f}"
    if "selection_spearman" in results:
        score += f", read as in training {results['selection_spearman']:.2f}"
    if post != "none" or "start_dev_spearman" not in results:
        return score
    if results.get("best_step") == 0:
        return f"{score}: the start was best and is kept, for no evaluation after it was higher"
    at = f" at step {results['best_step']}" if "best_step" in results else ""
    return f"{score}{at} (before training {results['start_dev_spearman']:.2f})"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


_PLOTS = {"train.csv": b"step,loss\n", "dev.csv": b"step,spearman\n"}


def _check_view(data: PreparedData, objective: ObjectiveSettings, train: TrainSettings) -> None:
    """Refuse rows that were prepared for another objective: ``cse train -s`` may change what ``prepare`` went by."""
    for name, term in objective.terms().items():
        if train.parameters != "none" and data.view not in term.views:
            raise CseError(
                f"{data.folder}: holds {data.view}, but objective.{name} needs {term.rows}: set its weight to 0 "
                f"(-s objective.{name}.weight=0), or run `cse prepare` with data.view: {' or '.join(term.views)}"
            )


def _check_rows(data: PreparedData, objective: ObjectiveSettings, train: TrainSettings) -> None:
    """Refuse so few rows that none is a negative of another: the loss would be 0 whatever is trained."""
    if train.parameters != "none" and len(data.train) < objective.least_rows:
        raise CseError(
            f"{data.folder}: holds {_counted(len(data.train), 'row')}, but the negatives of "
            f"objective.{objective.comparing[0]} are other rows; prepare at least {objective.least_rows}"
        )


def _check_early_stop(objective: ObjectiveSettings, train: TrainSettings) -> None:
    if train.early_stop is not None and train.parameters != "none" and not objective.comparing:
        raise CseError(
            f"train.early_stop: objective.{objective.first} compares no sentences, so no dev score stops this "
            "training; set it to null"
        )


def _groups(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name).model_dump(mode="json") for name in GROUPS}


def _training_facts(state: RunState, objective: ObjectiveSettings) -> dict[str, Any]:
    facts: dict[str, Any] = {"steps": state.step}
    if objective.replaced_tokens.weight > 0:
        facts["generator"] = objective.replaced_tokens.generator_model
    if state.evaluations:
        facts |= {
            "start_dev_spearman": round(state.evaluations[0][1], 4),
            "dev_spearman": round(state.evaluations[-1][1], 4),
        }
    if state.best_score is not None:
        facts |= {"dev_spearman": round(state.best_score, 4), "best_step": state.best_step}
    return facts


def _headline(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``dvc metrics show`` has room for, the score first; all counts of weights are in the checkpoint."""
    names = ("dev_spearman", "start_dev_spearman", "best_step", "steps")
    first = {name: results[name] for name in names if name in results}
    return {**first, **results, "parameters": {"trained": results["parameters"]["trained"]}}


def _counts(encoder: SentenceEncoder) -> dict[str, Any]:
    counts = count_parameters(encoder)
    percent = round(100 * counts.prompts / max(counts.backbone, 1), 3)
    return {"parameters": vars(counts) | {"prompt_percent": percent}}


def _source(data: PreparedData) -> dict[str, Any]:
    """Return what a checkpoint says of the rows that it was trained on."""
    train = data.report["train"]
    return {
        "source": train["source"],
        "view": data.view,
        "rows": train["kept"],
        "dropped": sum(entry["count"] for entry in train.get("dropped", {}).values()),
        "evaluation_overlap": train.get("evaluation_overlap_kept", 0),
    }


def _computed_by(training: Training) -> dict[str, Any]:
    """Return what `auto` came to, and with which device and packages: other ones round differently."""
    bf16 = training.bf16 and training.settings.train.parameters != "none"
    return {"precision": "bf16" if bf16 else "fp32", "environment": environment(training.device.type)}


def _announce(training: Training) -> None:
    encoder, data = training.encoder, training.data
    counts = count_parameters(encoder)
    click.echo(
        f"{encoder.backbone.files.name}: training {counts.trained:,} weights beside {counts.backbone:,} "
        f"({100 * counts.trained / max(counts.backbone, 1):.2f} %), pooler {encoder.pooler}, "
        f"{rows_in_words(_source(data))}, {training.device.type} {'bf16' if training.bf16 else 'fp32'}",
        err=True,
    )


if __name__ == "__main__":
    run_stage(train_stage)
