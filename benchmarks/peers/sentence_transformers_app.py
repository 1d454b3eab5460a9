"""A sentence-transformers model behind FastAPI, with OpenAI's route: what one writes without a server at hand.

    python -m benchmarks.peers.sentence_transformers_app FOLDER --port 8000 --dtype float32

One thread encodes all the requests that wait, up to 64 texts, in one call.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import numpy as np
import orjson
import torch
import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

MOST_TEXTS = 64


class Query(BaseModel):
    """Body of a request."""

    input: str | list[str]
    model: str = ""


class PeerService:
    """A model and the threads that run it."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(options.threads or torch.get_num_threads())
        dtype = {"model_kwargs": {"dtype": getattr(torch, options.dtype)}}
        self.model = SentenceTransformer(options.model, device="cpu", **dtype)
        self.model.eval()
        self.pool = ThreadPoolExecutor(1)
        self.waiting: asyncio.Queue[tuple[list[str], asyncio.Future[np.ndarray]]] = asyncio.Queue()

    def encode(self, texts: list[str]) -> np.ndarray:
        """Return unit vectors."""
        with torch.inference_mode():
            found = self.model.encode(
                texts, batch_size=MOST_TEXTS, normalize_embeddings=True, show_progress_bar=False, convert_to_tensor=True
            )
        return found.float().cpu().numpy()

    async def vectors(self, texts: list[str]) -> np.ndarray:
        """Return the vectors of one request."""
        answer = asyncio.get_running_loop().create_future()
        self.waiting.put_nowait((texts, answer))
        return await answer

    async def run_batches(self) -> None:
        """Encode whatever waits, again and again."""
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self.waiting.get()]
            while not self.waiting.empty() and sum(len(texts) for texts, _ in batch) < MOST_TEXTS:
                batch.append(self.waiting.get_nowait())
            try:
                rows = await loop.run_in_executor(
                    self.pool, self.encode, [text for texts, _ in batch for text in texts]
                )
            except Exception as error:  # the requests of this batch fail; the next ones are served
                for _, answer in batch:
                    answer.set_exception(error)
                continue
            begin = 0
            for texts, answer in batch:
                if not answer.done():  # its client may have gone
                    answer.set_result(rows[begin : begin + len(texts)])
                begin += len(texts)


def application(service: PeerService) -> FastAPI:
    """Return the service's routes."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(service.run_batches())
        yield
        task.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [{"id": "minilm", "object": "model"}]}

    @app.post("/v1/embeddings")
    async def embeddings(query: Query) -> Response:
        texts = [query.input] if isinstance(query.input, str) else query.input
        rows = await service.vectors(texts)
        data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
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
    uvicorn.run(
        application(PeerService(options)), host="127.0.0.1", port=options.port, log_level="warning", access_log=False
    )


if __name__ == "__main__":
    main()
