"""A sentence-transformers model behind FastAPI, with OpenAI's route: what one writes without a server at hand.

    python -m benchmarks.peers.sentence_transformers_app FOLDER --port 8000 --dtype float32

One thread encodes all the requests that wait, up to 64 texts, in one call.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import orjson
import torch
import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

MOST_TEXTS = 64
Waiting = asyncio.Queue[tuple[list[str], asyncio.Future[np.ndarray]]]


class Query(BaseModel):
    """Body of a request."""

    input: str | list[str]
    model: str = ""


async def run_batches(model: SentenceTransformer, waiting: Waiting) -> None:
    """Encode whatever waits, again and again."""

    def encode(texts: list[str]) -> np.ndarray:
        with torch.inference_mode():
            found = model.encode(
                texts, batch_size=MOST_TEXTS, normalize_embeddings=True, show_progress_bar=False, convert_to_tensor=True
            )
        return found.float().cpu().numpy()

    while True:
        batch = [await waiting.get()]
        while not waiting.empty() and sum(len(texts) for texts, _ in batch) < MOST_TEXTS:
            batch.append(waiting.get_nowait())
        rows = iter(await asyncio.to_thread(encode, [text for texts, _ in batch for text in texts]))
        for texts, answer in batch:
            own = np.stack([next(rows) for _ in texts])
            if not answer.done():  # its client may have gone
                answer.set_result(own)


def application(model: SentenceTransformer) -> FastAPI:
    """Return the model's routes."""
    waiting: Waiting = asyncio.Queue()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(run_batches(model, waiting))
        yield
        task.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [{"id": "minilm", "object": "model"}]}

    @app.post("/v1/embeddings")
    async def embeddings(query: Query) -> Response:
        texts = [query.input] if isinstance(query.input, str) else query.input
        answer = asyncio.get_running_loop().create_future()
        waiting.put_nowait((texts, answer))
        data = [{"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(await answer)]
        body = orjson.dumps({"object": "list", "data": data, "model": query.model}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")

    return app


def main() -> None:
    """Serve a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a sentence-transformers model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, help="threads inside an operator; default: torch's own")
    options = parser.parse_args()
    torch.set_num_threads(options.threads or torch.get_num_threads())
    dtype = {"dtype": getattr(torch, options.dtype)}
    model = SentenceTransformer(options.model, device="cpu", model_kwargs=dtype).eval()
    uvicorn.run(application(model), host="127.0.0.1", port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
