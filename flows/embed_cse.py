"""Flow ``embed-cse``: the rows of a corpus become vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow
from prefect.client.schemas import State
from prefect.states import Failed
from pydantic import Field

from flows.cse_command import ended, run_command

Count = Annotated[int, Field(ge=1)]


@flow(name="embed-cse")
def embed_cse(
    out: str,
    corpus: str | None = None,
    text: str | None = None,
    model: str = "data/bundle",
    text_column: str = "text",
    id_column: str | None = None,
    keep_text: bool = False,
    shard_rows: Count = 8192,
    workers: Annotated[int, Field(ge=0)] | None = None,
    batch_size: Count = 64,
    provider: Literal["auto", "cpu", "cuda"] = "auto",
    normalize: bool = True,
    index: Literal["none", "exact", "hnsw"] = "none",
    again: bool = False,
) -> State[Any]:
    """Embed a corpus as `cse embed` does; a run that was cancelled or killed goes on when it is started again.

    Where `out` ends in .npy, a file is embedded as `cse encode` does, which takes no other parameter than the model,
    the text column, the batch size, the provider and the normalisation.

    Args:
        out: folder of shards, a path or a URL; or a .npy file, float32 (lines, dimension).
        corpus: txt, csv, tsv, jsonl or parquet: a file, a folder or a glob, a path or a URL. For .npy a local file.
        text: an older name of corpus.
        model: a bundle; for .npy a checkpoint does too.
        text_column: of csv, tsv, jsonl and parquet.
        id_column: to know rows by; none: rows are numbered.
        keep_text: put the text beside its vector.
        shard_rows: most rows of a file.
        workers: processes; none: one a core, or a GPU. 0: one, without Ray.
        batch_size: sentences per forward pass.
        provider: where it runs.
        normalize: unit length.
        index: build one afterwards.
        again: remove what an earlier run put into the folder.
    """
    source = corpus or text
    if source is None:
        return Failed(message="corpus: missing; name a file, a folder or a glob")
    common = ["--batch-size", str(batch_size), "--normalize" if normalize else "--raw"]
    if Path(out).suffix == ".npy":
        arguments = ["encode", model, source, "--out", out, "--device", provider, *common]
        arguments += ["--column", text_column] if text_column != "text" else []  # else one of the usual names
    else:
        arguments = ["embed", source, "--out", out, "--model", model, "--provider", provider, *common]
        arguments += ["--text-column", text_column, "--shard-rows", str(shard_rows), "--index", index]
        arguments += ["--id-column", id_column] if id_column is not None else []
        arguments += ["--workers", str(workers)] if workers is not None else []
        arguments += ["--keep-text"] if keep_text else []
        arguments += ["--again"] if again else []
    return ended(run_command("embed", arguments, return_state=True))
