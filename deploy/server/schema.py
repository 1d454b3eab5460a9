"""Requests and answers, as OpenAPI shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictInt,
    StrictStr,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from deploy.server.errors import KINDS
from deploy.server.intake import checked

Text = Annotated[StrictStr, Field(min_length=1)]
Texts = Annotated[list[Text], Field(min_length=1)]


# of a vector. int8: its largest number is 127 or -127; binary, ubinary: a bit for each number, 1 if it is above 0, the
# first the highest of a byte, as numbers of -128 to 127 or of 0 to 255
Format = Literal["float", "base64", "int8", "binary", "ubinary"]


class Body(BaseModel):
    """Of a request: null is as good as absent, and unknown keys are ignored, as clients send keys of other servers.

    However many these are, they cost nothing.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {key: given[key] for key in cls.model_fields if given.get(key) is not None}


class EmbeddingRequest(Body):
    """Body of ``POST /v1/embeddings``."""

    input: Annotated[Any, checked(Text | Texts)]
    model: StrictStr
    encoding_format: Format = "float"
    embedding_type: Format | None = Field(None, description="What Jina calls `encoding_format`.")
    dimensions: Annotated[StrictInt, Field(ge=1)] | None = None
    user: StrictStr | None = None


class Embedding(BaseModel):
    """One vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | list[int] | str
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


class TeiOptions(Body):
    """What Text Embeddings Inference is told beside the texts.

    ``prompt_name`` is a role whose task text goes before each text.
    """

    truncate: bool = True
    truncation_direction: Literal["right", "Right"] = "right"
    prompt_name: StrictStr | None = None


class EmbedRequest(TeiOptions):
    """Body of ``POST /embed``; ``model`` names a domain of a bank."""

    inputs: Annotated[Any, checked(Text | Texts)]
    normalize: bool = True
    dimensions: Annotated[StrictInt, Field(ge=1)] | None = None
    model: StrictStr | None = None


class Document(BaseModel):
    """A text, as Cohere may have it."""

    text: Text


def _texts_of(given: Any) -> Any:
    """Return the texts of documents that may be objects; anything else as it is."""
    if not isinstance(given, list):
        return given
    return [one.get("text") if isinstance(one, dict) and "text" in one else one for one in given]


class RerankRequest(Body):
    """Body of ``POST /rerank``: ``texts`` in the form of Text Embeddings Inference, or ``documents`` in Cohere's."""

    query: Text
    truncate: bool = True
    texts: Annotated[Any, checked(Texts, alone=False, ids=False)] = None
    documents: Annotated[Any, checked(list[Text | Document], alone=False, ids=False), BeforeValidator(_texts_of)] = None
    model: StrictStr | None = None
    raw_scores: bool = Field(False, description="Changes nothing: scores are cosines.")
    return_text: bool = False
    return_documents: bool = False
    top_n: Annotated[StrictInt, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.texts is None) == (self.documents is None):
            raise PydanticCustomError("one", "give texts, or documents")
        return self


class Rank(BaseModel):
    """A text's place among those given, and its cosine with the query."""

    index: int
    score: float
    text: str | None = None


class Result(BaseModel):
    """A document's place among those given, and its cosine with the query."""

    index: int
    relevance_score: float
    document: Document | None = None


class RerankAnswer(BaseModel):
    """Answer to ``documents``: the nearest first."""

    id: str
    model: str
    results: list[Result]
    usage: Usage
    meta: dict[str, Any]


class TokenizeRequest(Body):
    """Body of ``POST /tokenize``; ``prompt_name`` is a role whose task text goes before each text."""

    inputs: Annotated[Any, checked(Text | Texts, ids=False)]
    add_special_tokens: bool = True
    prompt_name: StrictStr | None = None
    model: StrictStr | None = None


class Token(BaseModel):
    """A token, and where in the text's UTF-8 bytes it stands; a special token stands nowhere."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


def _flat(given: Any) -> Any:
    """Return texts of ``[[text], [text]]``, as clients of Text Embeddings Inference send several."""
    alone = isinstance(given, list) and all(isinstance(one, list) and len(one) == 1 for one in given)
    return [one[0] for one in given] if alone and all(isinstance(one[0], str) for one in given) else given


class PredictRequest(Body):
    """Body of ``POST /predict``; several texts are a list of them, or of lists of one."""

    inputs: Annotated[Any, checked(Text | Texts), BeforeValidator(_flat)]
    truncate: bool = True
    raw_scores: bool = False
    model: StrictStr | None = None


class Prediction(BaseModel):
    """A label and its probability; with ``raw_scores``, what softmax makes probabilities of."""

    label: str
    score: float


class SimilarityInputs(Body):
    """One sentence, and those to compare it with."""

    source_sentence: Annotated[Any, checked(Text, many=False, ids=False)]
    sentences: Annotated[Any, checked(Texts, alone=False, ids=False)]


class SimilarityRequest(Body):
    """Body of ``POST /similarity``."""

    inputs: SimilarityInputs
    parameters: TeiOptions = TeiOptions()
    model: StrictStr | None = None


def _kind(given: Any) -> str:
    return KINDS[isinstance(given, dict) and isinstance(given.get("inputs"), dict)]


# body of ``POST /``: a sentence to compare with others, or texts
TeiRequest = Annotated[
    Annotated[EmbedRequest, Tag(KINDS[0])] | Annotated[SimilarityRequest, Tag(KINDS[1])], Discriminator(_kind)
]


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
    classifier: dict[str, Any] | None
