"""Encode sentences with an ONNX bundle or a bank of prompts, without torch."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from cse.errors import CseError, error_line
from cse.runtime.bank import Bank, Chosen, Meaning
from cse.runtime.bundle import MANIFEST, MODEL, TOKENIZER
from cse.runtime.classifier import Classifier, Told, read_classifier
from cse.runtime.compatible import Compatible
from cse.runtime.domain import AUTO, KEPT_BYTES, Domain, feed, finish
from cse.runtime.encode import GPU_BATCH_TOKENS, Encoded, Prepared, as_texts, encode_prepared, prepare_sentences
from cse.runtime.kept_vectors import KeptVectors
from cse.runtime.session import Attached, Graph, open_graph, usable_cpus
from cse.runtime.tokens import Tokenizers, Tokens, is_blank, pad, tokenize
from cse.runtime.uses import check_dimensions, text_of

# On a CPU the time per token is flat from about 64 tokens on (measured: MiniLM, one core), so batches are small, which
# shares them out more evenly, and padding of a row beyond this costs more than another batch.
CPU_BATCH_TOKENS, CPU_PADDING, _CPU_ROWS = 384, 8, 64
_log = logging.getLogger("cse")


class OnnxEncoder(Compatible):
    """Encoder that runs an ONNX bundle of one model, or a bank with the prompts of many domains.

    On the CPU, many sentences are spread over ``threads`` threads, each running whole batches on one core; without
    barriers inside operators, this is faster than running one batch on all cores. A few sentences run one after
    another on all cores, for low latency. The single-core session opens on first use and has its own copy of the
    weights.

    Args:
        path: bundle or bank folder; every file is checked against its hash.
        provider: ``auto``, ``cpu``, ``cuda`` (which must attach) or ``openvino``: the CPU, in bfloat16 where it
            multiplies in it.
        threads: CPU threads; None: one per usable CPU.
        tf32: whether a GPU may round the inputs of matrix products to TF32, which is faster on NVIDIA Ampere and later
            but changes embeddings in the fourth digit; otherwise products are in full precision, as in torch.
        kept_bytes: bytes of a bank's domains to keep in memory.
        name: what a bundle's only domain is called; empty: as its manifest says.
        graph: what computes instead of the folder's graph; None: that.
        kept: vectors of a bare backbone that torch computed, which are read in place of computing them again.

    Attributes:
        bank: the domains; those of a bank may change at any time, a bundle has one.
        max_length: maximum tokens per sentence, special tokens included; a domain's own may be smaller.
        widths: numbers of dimensions that vectors may be cut to; a bank has none.
        provider_note: one line on which provider attached and why.

    Raises:
        CseError: the bundle or bank is damaged or does not load, or the provider did not attach.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        provider: str = "auto",
        threads: int | None = None,
        tf32: bool = False,
        kept_bytes: int = KEPT_BYTES,
        name: str = "",
        graph: Graph | None = None,
        kept: KeptVectors | None = None,
    ) -> None:
        self.path = Path(path)
        self.bank = Bank(self.path, kept_bytes, name=name)
        self.manifest = self.bank.manifest
        self.max_length, self.pooler = self.manifest.domain.max_length, self.manifest.domain.pooler
        self.widths = self.manifest.widths
        self.threads = usable_cpus() if threads is None else threads
        if provider == "openvino" and self.manifest.precision == "int8":
            # measured: 1.03 times as fast, but a vector then depends on its batch
            raise CseError(f"{self.path}: in int8, which onnxruntime runs as fast: use provider cpu, or export in fp32")
        if graph is None:
            attached = open_graph(self.path / MODEL, provider, self.threads, tf32=tf32)
        else:
            attached = Attached(graph, provider, f"running on {provider} in torch")
        self.provider, self.provider_note = attached.provider, attached.note
        _log.info("%s: %s", self.path, self.provider_note)
        self._graph = attached.graph
        exact = self.manifest.precision == "fp32" and self.provider != "openvino"
        self.kept = kept if exact and self.manifest.documents else None
        try:
            tokenizer = Tokenizer.from_file(str(self.path / TOKENIZER))
        except Exception as error:  # tokenizers raises plain Exception
            raise CseError(f"{self.path / TOKENIZER}: not a tokenizer: {error}; export the bundle again") from None
        self._tokenizers = Tokenizers(tokenizer)
        self._one_core: list[Graph] = []  # none or one, shared with views of one domain
        self._opening = threading.Lock()
        self._of: str | Domain | None = None
        self._wide = False

    def of(self, domain: str | Domain | None, *, wide: bool = False) -> Self:
        """Return this encoder for code that names no domain: texts have this one.

        Args:
            domain: name, or a domain that need not be in the bank yet; None: the only one.
            wide: whether vectors have the bank's width, as those of several domains do; a narrower one ends in zeros.
        """
        view = copy.copy(self)
        view._of, view._wide = domain, wide
        return view

    @property
    def one(self) -> Domain | None:
        """The domain of texts that name none; None: there are several, or the text is to choose."""
        if isinstance(self._of, str):
            return None if self._of == AUTO else self.bank.domain(self._of)
        return self.bank.only if self._of is None else self._of

    @property
    def dimension(self) -> int:
        """Embedding width: that of the domain, or of the whole bank."""
        one = None if self._wide else self.one
        return self.manifest.shape.dimension if one is None else one.dimension

    @property
    def texts(self) -> dict[str, str]:  # type: ignore[override]
        """Task texts by role; none where no domain is the only one."""
        return {} if self.one is None else self.one.texts

    @property
    def query_side(self) -> Domain | None:
        """The domain, if it is for queries alone."""
        return self.one if self.one is not None and self.one.for_queries else None

    def texts_of(self, domain: Chosen) -> Mapping[str, str]:
        """Return the task texts of domains by role."""
        return self.texts if domain is None else self.bank.texts_of(domain)

    def encode_counting(
        self,
        sentences: str | Sequence[str],
        batch_size: int | None = None,
        *,
        normalize: bool | None = None,
        show_progress_bar: bool = False,
        domain: Chosen = None,
        role: str | None = None,
        dimensions: int | None = None,
    ) -> Encoded:
        """Encode like ``encode``, and say how many sentences were cut, and whose prompts each has."""
        return self.encode_prepared(
            self.prepare(sentences, domain=domain, role=role),
            batch_size,
            normalize=normalize,
            show_progress_bar=show_progress_bar,
            dimensions=dimensions,
        )

    @cached_property
    def _in_bundle(self) -> Classifier | None:
        return read_classifier(self.path, self.manifest.shape.dimension)

    @property
    def classifier(self) -> Classifier | None:
        """The classifier of texts that name no domain; None where there is none: it was made without labelled texts."""
        return self.classifier_of(self.one)

    def classifier_of(self, domain: Domain | None) -> Classifier | None:
        """Return the classifier of a domain, that of a bundle lies beside it; None where there is none."""
        return (None if domain is None else domain.classifier) or self._in_bundle

    def classify(self, sentences: Sequence[str], batch_size: int | None = None, *, domain: Chosen = None) -> list[Told]:
        """Return the likeliest label of each text, its probability, and whether that is enough to call it known.

        A text that says nothing is not known.

        Args:
            domain: see ``encode``: whose prompts and classifier.

        Raises:
            CseError: the bundle, or a domain, was not made of labelled texts.
        """
        chosen = self.bank.choose(self._of if domain is None else domain, len(sentences))
        places: dict[Domain | None, list[int]] = {}
        for row, one in enumerate(chosen):
            places.setdefault(one, []).append(row)
        told: dict[int, Told] = {}
        for one, rows in places.items():
            if one is None:
                raise CseError(f"{self.path}: domain {AUTO} has no classifier; name the domain of each text")
            classifier = self.classifier_of(one)
            if classifier is None:
                where = self.path if self.bank.only is not None else f"{self.path}:{one.name}"
                raise CseError(f"{where}: no classifier; export a model with labelled texts, see `cse adapt --labels`")
            vectors = np.asarray(self.encode([sentences[row] for row in rows], batch_size, normalize=True, domain=one))
            told |= zip(rows, classifier.classify(vectors), strict=True)
        return [told[row]._replace(known=told[row].known and not is_blank(text)) for row, text in enumerate(sentences)]

    def prepare(self, sentences: str | Sequence[str], *, domain: Chosen = None, role: str | None = None) -> Prepared:
        """Tokenise sentences for ``encode_prepared``; while that runs, another thread may prepare the next.

        Args:
            domain: see ``Bank.choose``; which one ``auto`` stands for is found when the vectors are.
            role: see ``encode``.

        Raises:
            CseError: as ``encode``, but for what the model computes.
        """
        bank, wide = self.bank, domain is None and self._wide
        domain = self._of if domain is None else domain
        single, shared = isinstance(sentences, str), domain is None or isinstance(domain, str | Domain)
        texts = [sentences] if isinstance(sentences, str) else as_texts(sentences)
        chosen = bank.choose(domain, max(len(texts), 1) if shared else len(texts))
        width = None if wide or not shared or chosen[0] is None else chosen[0].dimension
        chosen = chosen[: len(texts)]

        def prepare(texts: list[str], domains: list[Domain]) -> Prepared:
            return prepare_sentences(texts, tokenizers=self._tokenizers, max_length=self.max_length, domains=domains)

        def named(domains: list[Domain]) -> Prepared:
            before = {one: text_of(role, one.texts) for one in dict.fromkeys(domains)}
            whole = texts
            if any(before.values()):
                whole = [before[one] + text for one, text in zip(domains, texts, strict=True)]
            found = prepare(whole, [one.in_role(role, bank.bare) for one in domains])
            return replace(found, single=single, names=[one.name for one in domains], width=width)

        rows = [row for row, one in enumerate(chosen) if one is None]
        if not rows:
            return named([one for one in chosen if one is not None])

        def again(vectors: NDArray[np.float32]) -> Prepared:
            found = dict(zip(rows, bank.nearest(vectors), strict=True))
            return named([found[row] if one is None else one for row, one in enumerate(chosen)])

        return replace(prepare([texts[row] for row in rows], [bank.bare] * len(rows)), again=again)

    def encode_prepared(
        self,
        prepared: Prepared,
        batch_size: int | None = None,
        *,
        normalize: bool | None = None,
        show_progress_bar: bool = False,
        dimensions: int | None = None,
    ) -> Encoded:
        """Encode what ``prepare`` returned, see ``encode_counting``."""
        width = self.manifest.shape.dimension
        check_dimensions(dimensions, self.widths, prepared.width or width)
        few = prepared.single or len(prepared) < 4 * self.threads
        on_cpu = self.provider != "cuda"
        shared_out = on_cpu and self.threads > 1 and not few
        graph = self._open_one_core() if shared_out else self._graph

        def embed(ids: NDArray[np.int64], mask: NDArray[np.int64], rows: Sequence[Domain]) -> NDArray[np.float32]:
            return self._embed(graph, ids, mask, rows)

        return encode_prepared(
            prepared,
            embed=embed,
            normalize=normalize,
            keep=dimensions,
            dimension=width,
            pad_id=self.manifest.pad_id,
            batch_size=(_CPU_ROWS if on_cpu else GPU_BATCH_TOKENS) if batch_size is None else batch_size,
            batch_tokens=CPU_BATCH_TOKENS if on_cpu else GPU_BATCH_TOKENS,
            batch_padding=CPU_PADDING if on_cpu else None,
            multiple=graph.multiple,
            show_progress_bar=show_progress_bar,
            workers=self.threads if shared_out else 1,
        )

    def tokenize(self, texts: Sequence[str], domains: Sequence[Domain] = ()) -> Tokens:
        """Return the tokens of texts, cut at ``max_length`` or at that of each text's domain."""
        limits = [domain.max_length for domain in domains] or [self.max_length] * len(texts)
        return tokenize(texts, limits, self._tokenizers)

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens texts have, special tokens included, however long they are."""
        return [len(found) for found in self._tokenizers.whole.encode_batch_fast(list(texts))]

    def encodings(self, texts: Sequence[str], *, special: bool = True) -> list[Encoding]:
        """Return what the tokenizer says of texts, however long they are, with special tokens or without."""
        return self._tokenizers.whole.encode_batch(list(texts), add_special_tokens=special)

    def embed_rows(
        self, rows: Sequence[NDArray[np.int32]], domains: Sequence[Domain] = (), *, one_core: bool = False
    ) -> NDArray[np.float32]:
        """Return the vectors (b, d) of one batch of tokenised texts, not scaled to unit length.

        Several threads may call it at once.

        Args:
            rows: token ids of each text (b), special tokens included, see ``tokenize``.
            domains: domain of each row, or the side of it that its role takes; none: ``bank.bare``.
            one_core: whether to use one CPU core only, so that other batches run beside this one.
        """
        graph = self._open_one_core() if one_core and self.provider != "cuda" else self._graph
        ids, mask = pad(rows, self.manifest.pad_id, graph.multiple, self.max_length)
        return self._embed(graph, ids, mask, domains or [self.bank.bare] * len(rows))

    def graph_inputs(self, text: str, role: str | None = None) -> dict[str, NDArray[Any]]:
        """Return what the graph is given for one text alone, by the names of its inputs."""
        (domain,) = self.prepare([text], role=role).domains
        tokens = self.tokenize([text_of(role, self.texts) + text])
        return self._given(*pad([tokens.ids], self.manifest.pad_id), [domain])

    def _given(
        self, ids: NDArray[np.int64], mask: NDArray[np.int64], rows: Sequence[Domain]
    ) -> dict[str, NDArray[Any]]:
        """Return what the graph takes of a batch: its tokens, and prompts unless they are its constants."""
        given: dict[str, NDArray[Any]] = {"input_ids": ids, "attention_mask": mask}
        return given | feed(rows, self.manifest.shape.updates) if self._graph.prompts else given

    def _embed(
        self, graph: Graph, ids: NDArray[np.int64], mask: NDArray[np.int64], rows: Sequence[Domain]
    ) -> NDArray[np.float32]:
        """Return vectors (b, d) of a batch, not scaled."""

        def compute(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
            return finish(self._run(graph, self._given(ids, mask, rows[: len(ids)])), rows[: len(ids)])

        if self.kept is None or any(row is not self.bank.bare for row in rows):
            return compute(ids, mask)
        of = f"{self.manifest.domain.backbone} {self.pooler} fp32"  # as torch keeps them
        return self.kept.embed(of, self.manifest.shape.dimension, ids, mask, compute, adds=False)

    def _run(self, graph: Graph, given: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Run the graph on a batch and return its vectors (b, d)."""
        try:
            return graph.run(given)
        except Exception as error:  # the exceptions of a runtime share no base class
            rows, length = given["input_ids"].shape
            raise CseError(
                f"{self.path / MODEL}: failed on {rows} rows of {length} tokens: {error_line(error)[:200]}; give a "
                f"smaller batch_size, or export again if {MANIFEST} (max_length {self.max_length}) is wrong"
            ) from None

    def _open_one_core(self) -> Graph:
        with self._opening:
            if not self._one_core:
                found = open_graph(self.path / MODEL, self.provider, self.threads, at_once=self.threads)
                self._one_core.append(found.graph)
            return self._one_core[0]


def open_onnx(
    found: Meaning, *, device: str = "auto", banks: dict[Path, OnnxEncoder] | None = None
) -> OnnxEncoder | None:
    """Open a bundle or a bank's domain; return None for anything else.

    Args:
        found: no whole bank, see ``Meaning.one``.
        banks: banks that are open already, by folder, all on this device; a bank that is opened now is added.
    """
    if not found.encodes:
        return None
    if found.domain is None:
        return OnnxEncoder(found.folder, provider=device)
    opened = {} if banks is None else banks
    if found.folder not in opened:
        opened[found.folder] = OnnxEncoder(found.folder, provider=device)
    onnx = opened[found.folder]
    # a domain that is replaced while it is in use changes nothing here
    return onnx.of(AUTO if found.domain == AUTO else onnx.bank.domain(found.domain))
