"""Recognise out-of-memory errors on CPU and GPU."""

from __future__ import annotations

import torch

# from CUDA, cuBLAS, torch's allocator, the C++ library and the matrix product library
_SAID = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "can't allocate memory",
    "bad_alloc",
    "could not create a primitive",
    "out_of_memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
