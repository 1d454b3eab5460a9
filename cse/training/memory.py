"""What running out of memory looks like, on a processor and on a GPU."""

from __future__ import annotations

import torch

from cse.errors import CseError

# of CUDA, of cuBLAS, of torch's allocator, of the C++ library, of the library of matrix products
_SAID = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "can't allocate memory",
    "bad_alloc",
    "could not create a primitive",
    "out_of_memory",
)


class OutOfMemory(CseError):
    """A training did not fit into the memory of its device."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that there was not enough memory."""
    if isinstance(error, OutOfMemory | torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)
