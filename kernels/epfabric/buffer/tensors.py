"""What the buffers' calls ask of torch's tensors: checks with clear errors, places, raw memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def checked_tensor(tensor: Any, name: str, dtype: Any, shape: tuple[int | None, ...]) -> int:
    """Its address; None in `shape`: any length. Raises ValueError that names the tensor."""
    if (
        tensor.dtype is dtype
        and tensor.shape == shape
        and tensor.is_contiguous()
        and tensor.is_cuda
    ):
        return int(tensor.data_ptr())  # a call has several, and microseconds
    if tensor.dtype is not dtype:
        raise ValueError(f"{name} must be of {dtype}, not {tensor.dtype}")
    found = tensor.shape
    if len(found) != len(shape) or any(
        wanted is not None and wanted != length for wanted, length in zip(shape, found, strict=True)
    ):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must be shaped [{wanted}], not {list(found)}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous")
    if not tensor.is_cuda:
        raise ValueError(f"{name} must be in GPU memory, not on {tensor.device}")
    return int(tensor.data_ptr())


def sizes_of(tensor: Any) -> tuple[Any, Any]:
    """Of a matrix; of anything else what checked_tensor() then refuses."""
    return tuple(tensor.shape) if tensor.dim() == 2 else (None, None)


def quick_tensors() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """empty(sizes, strides, dtype) on the current GPU, view(tensor, sizes, strides, offset).

    Those that torch's own compiled code calls, where this torch has them: a call of the public ones
    takes the host twice as long, and a dispatch makes several.
    """
    import torch

    try:
        from torch._C._dynamo.guards import _empty_strided_cuda, _reinterpret_tensor
    except ImportError:
        return (
            lambda sizes, strides, kind: torch.empty_strided(
                sizes, strides, dtype=kind, device="cuda"
            ),
            torch.as_strided,
        )
    return _empty_strided_cuda, _reinterpret_tensor


class _Raw:
    """Memory as any array library takes it."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def view_of(address: int, size_bytes: int, dtype: Any) -> Any:
    """A tensor over memory that it does not own."""
    import torch

    return torch.as_tensor(_Raw(address, size_bytes), device="cuda").view(dtype)
