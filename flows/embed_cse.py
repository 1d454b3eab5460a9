"""Flow ``embed-cse``: embed the rows of a corpus."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas import State

from cse.cli.corpus import embed
from flows.cse_command import arguments_of, ended, run_command, takes


@flow(name="embed-cse")
@takes(embed)
def embed_cse(out: str, corpus: str, **given: Any) -> State[Any]:
    """Embed a corpus like `cse embed`. Start a cancelled or killed run again to resume it.

    Args:
        out: folder of shards, a path or a URL.
        corpus: txt, csv, tsv, jsonl or parquet: a file, a folder or a glob, a path or a URL.
    """
    arguments = arguments_of(embed, given | {"out": out, "corpus": corpus})
    return ended(run_command("embed", arguments, return_state=True))
