"""Flow ``embed-cse``: embed the rows of a corpus."""

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
    """Embed a corpus like `cse embed`. Start a cancelled or killed run again to resume it.

    If `out` ends in .npy, a file is embedded like `cse encode`, which uses only the model, the text column, the batch
    size, the provider and the normalisation.

    Args:
        out: folder of shards, a path or a URL; or a .npy file, float32 (lines, dimension).
        corpus: txt, csv, tsv, jsonl or parquet: a file, a folder or a glob, a path or a URL. For .npy a local file.
        text: former name of corpus.
        model: a bundle; for .npy also a checkpoint.
        text_column: column with the text, in csv, tsv, jsonl and parquet.
        id_column: column with row ids; none: number the rows.
        keep_text: store the text with each vector.
        shard_rows: maximum rows per file.
        workers: processes; none: one per core or GPU. 0: a single process, without Ray.
        batch_size: sentences per forward pass.
        provider: where to run the model.
        normalize: scale vectors to unit length.
        index: build a search index afterwards.
        again: delete what an earlier run wrote to the folder.
    """
    source = corpus or text
    if source is None:
        return Failed(message="corpus: missing; name a file, a folder or a glob")
    common = ["--batch-size", str(batch_size), "--normalize" if normalize else "--raw"]
    if Path(out).suffix == ".npy":
        arguments = ["encode", model, source, "--out", out, "--device", provider, *common]
        arguments += ["--column", text_column] if text_column != "text" else []  # otherwise one of the common names
    else:
        arguments = ["embed", source, "--out", out, "--model", model, "--provider", provider, *common]
        arguments += ["--text-column", text_column, "--shard-rows", str(shard_rows), "--index", index]
        arguments += ["--id-column", id_column] if id_column is not None else []
        arguments += ["--workers", str(workers)] if workers is not None else []
        arguments += ["--keep-text"] if keep_text else []
        arguments += ["--again"] if again else []
    return ended(run_command("embed", arguments, return_state=True))
