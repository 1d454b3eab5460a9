"""Requests and answers, as OpenAPI shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from deploy.server.intake import checked

Text = Annotated[StrictStr, Field(min_length=1)]
TokenId = Annotated[StrictInt, Field(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1)]
Rows = Annotated[list[TokenIds], Field(min_length=1)]


class EmbeddingRequest(BaseModel):
    """Body of ``POST /v1/embeddings``; unknown keys are ignored, as clients send keys of other servers."""

    input: Annotated[Any, checked(Text | Texts | TokenIds | Rows, text=True, row=True, rows=True)]
    model: StrictStr
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[StrictInt, Field(ge=1)] | None = None
    user: StrictStr | None = None


class Embedding(BaseModel):
    """One vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    domain: str | None = None


class Usage(BaseModel):
    """Tokens of a request, special tokens included."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingAnswer(BaseModel):
    """Answer of ``POST /v1/embeddings``."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class ErrorFacts(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """An error in OpenAI's form."""

    error: ErrorFacts


class ModelCard(BaseModel):
    """One model; a bank has one for each domain."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    dimension: int
    max_length: int
    normalize: bool


class ModelList(BaseModel):
    """Answer of ``GET /v1/models``."""

    object: Literal["list"]
    data: list[ModelCard]
    last_id: str | None
    has_more: bool


class EmbedRequest(BaseModel):
    """Body of ``POST /embed``, as Text Embeddings Inference takes it.

    ``model`` names a domain of a bank, ``prompt_name`` a role whose task text goes before each text.
    """

    model_config = ConfigDict(extra="ignore")

    inputs: Annotated[Any, checked(Text | Texts | Rows, text=True, rows=True)]
    normalize: bool = True
    truncate: bool | None = False
    truncation_direction: Literal["right", "Right"] = "right"
    prompt_name: StrictStr | None = None
    dimensions: Annotated[StrictInt, Field(ge=1)] | None = None
    model: StrictStr | None = None


class SimilarityInputs(BaseModel):
    """One sentence, and those to compare it with."""

    source_sentence: Text
    sentences: Annotated[Any, checked(Texts)]


class SimilarityRequest(BaseModel):
    """Body of ``POST /similarity``."""

    inputs: SimilarityInputs
    parameters: dict[str, Any] | None = None
    model: StrictStr | None = None


class TeiError(BaseModel):
    """An error in the form of Text Embeddings Inference."""

    error: str
    error_type: Literal["Validation", "Empty", "Tokenizer", "Backend", "Overloaded", "Unhealthy"]


class Info(BaseModel):
    """Answer of ``GET /info``."""

    model_config = ConfigDict(protected_namespaces=())

    model_id: str
    model_sha: str
    models: list[str]
    dimension: int
    max_input_length: int
    max_client_batch_size: int
    max_batch_tokens: int
    normalize: bool
    pooler: str
    truncates: bool
    keys_required: bool
    report: str | None
    provider: str
    version: str
