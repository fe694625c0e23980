"""Rows by expert, one for each of a row's experts, and back: the kernels behind ElasticBuffer's
do_expand. Addresses are of arrays that epfabric/places.cuh describes."""

from __future__ import annotations

import ctypes
from typing import Any

from epfabric.cuda.kernels import Kernels
from epfabric.cuda.rank import checked

SOURCE = "places.cu"
NAMES = ("place_rows", "spread_rows", "sum_rows")
_ADDRESS, _COUNT = ctypes.c_uint64, ctypes.c_uint32
_WARPS, _VECTOR_BYTES, _WORD_BYTES, _PLACE_BYTES = 32, 16, 4, 8


def _fields(addresses: str, counts: str) -> list[tuple[str, Any]]:
    return [
        *((name, _ADDRESS) for name in [*addresses.split(), "total"]),
        *((name, _COUNT) for name in counts.split()),
    ]


class PlacesCall(ctypes.Structure):
    """Mirror of epfabric::PlacesCall."""

    _fields_ = _fields("topk counts places row_of", "rows k experts alignment")


class SpreadCall(ctypes.Structure):
    """Mirror of epfabric::SpreadCall."""

    _fields_ = _fields(
        "values out_values scales out_scales weights out_weights places row_of",
        "rows k vectors words zero reserved",
    )


class SumCall(ctypes.Structure):
    """Mirror of epfabric::SumCall."""

    _fields_ = _fields("values sums weights back places", "rows k vectors reserved")


def place(kernels: Kernels, topk: int, counts: int, places: int, row_of: int, *,
          shape: tuple[int, int], experts: int, alignment: int, total: int,
          stream: int) -> None:  # fmt: skip
    """Launches. shape: (rows, k)."""
    from cuda.bindings import driver

    rows, k = shape
    for address, size in ((places, rows * k), (row_of, total)):
        if size:
            checked(driver.cuMemsetD8Async(address, 0xFF, _PLACE_BYTES * size, stream))
    if rows:
        call = PlacesCall(topk, counts, places, row_of, total, rows, k, experts, alignment)
        kernels.launch("place_rows", min(experts, kernels.processors), stream, call)


def spread(kernels: Kernels, values: tuple[int, int], scales: tuple[int, int],
           weights: tuple[int, int], places: int, row_of: int, *, shape: tuple[int, int],
           row_bytes: int, scale_bytes: int, total: int, zero: bool,
           stream: int) -> None:  # fmt: skip
    """Launches. Of each array: of the rows, and of the places; zeros where there is none."""
    call = SpreadCall(
        *values, *scales, *weights, places, row_of, total, *shape, row_bytes // _VECTOR_BYTES,
        scale_bytes // _WORD_BYTES, zero, 0,
    )  # fmt: skip
    kernels.launch("spread_rows", _blocks(kernels, max(shape[0], total)), stream, call)


def add_up(kernels: Kernels, values: int, sums: int, weights: tuple[int, int], places: int, *,
           shape: tuple[int, int], row_bytes: int, total: int, stream: int) -> None:  # fmt: skip
    """Launches. weights: of the places, and of the rows' choices; zeros where there are none."""
    call = SumCall(values, sums, *weights, places, total, *shape, row_bytes // _VECTOR_BYTES, 0)
    if shape[0]:
        kernels.launch("sum_rows", _blocks(kernels, shape[0]), stream, call)


def _blocks(kernels: Kernels, rows: int) -> int:
    """A warp for each row, as long as the GPU has room for so many at once."""
    return max(1, min(-(-rows // _WARPS), 2 * kernels.processors))
