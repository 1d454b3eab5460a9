"""What to install when a command needs packages that this installation leaves out.

``pip install cse`` brings only the runtime; the other packages come in extras, see ``pyproject.toml``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from cse.errors import CseError

# modules that the extras bring; a test compares them with pyproject.toml
# fmt: off
SERVER = frozenset({
    "click", "fastapi", "fastapi_offline", "filelock", "httptools", "orjson", "prometheus_client", "psutil", "pydantic",
    "ruamel", "starlette", "uvicorn", "uvloop",
})
TRAINING = frozenset({
    "Stemmer", "dvc", "fsspec", "gto", "httpx", "huggingface_hub",
    "jinja2", "lxml", "lxml_html_clean", "markdown_it", "matplotlib", "onnx", "onnxscript",
    "py3langid", "pyarrow", "regex", "scipy", "sentencex", "sklearn", "torch",
    "trafilatura", "transformers",
})
RAY = frozenset({"optuna", "ray"})
INTERCHANGE = frozenset({"accelerate", "datasets", "peft", "sentence_transformers"})
# fmt: on


@contextmanager
def naming_extra(what: str = "this command") -> Iterator[None]:
    """Turn a failed import of a package into a line that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        install = _how_to_install((error.name or "").partition(".")[0])
        if not install:
            raise
        raise CseError(f"{what} needs {install}") from error


def refusing(error: CseError) -> Callable[[], NoReturn]:
    """Return a command line that only says what to install: one line, exit code 2."""

    def refuse() -> NoReturn:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)

    return refuse


def _how_to_install(module: str) -> str:
    """Return the packages that a missing module belongs to and how to install them; empty for a foreign module."""
    if module == "onnxruntime":
        return "onnxruntime: pip install 'cse[cpu]', or 'cse[gpu]' with an NVIDIA GPU"
    if module in SERVER:
        return f"the server packages ({module} is missing): pip install 'cse[serve]'"
    if module in TRAINING:
        return f"the training packages ({module} is missing): pip install 'cse[train]'"
    if module in RAY:
        return f"{module.capitalize()}, which sweeps and several workers use: pip install 'cse[ray]'"
    if module == "prefect":
        return "Prefect: pip install 'cse[flows]'"
    if module in INTERCHANGE:
        return f"{module.replace('_', '-')}: pip install 'cse[interchange]'"
    return ""
