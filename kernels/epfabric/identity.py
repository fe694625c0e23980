"""Decides which rank of how many this process is, from what its launcher left behind, and which GPU
it uses."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from pathlib import Path

from epfabric.errors import SessionError

_MAPS = Path("/proc/self/maps")
_ORDINAL = re.compile(r".*-(\d+)")
_WORLD = ("WORLD_SIZE", "EPFABRIC_WORLD_SIZE")
_SOURCES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("RANK", _WORLD),
    ("JOB_COMPLETION_INDEX", _WORLD),
    ("LWS_WORKER_INDEX", ("LWS_GROUP_SIZE",)),
)


def rank_and_world(
    environment: Mapping[str, str], hostname: str, rank: int | None, world_size: int | None
) -> tuple[int, int]:
    """Rank and world size: the arguments, else torchrun's, Job's, LeaderWorkerSet's, the ordinal.

    Raises SessionError that names the missing variable.
    """
    if rank is None:
        rank, world_names = _found_rank(environment, hostname)
    else:
        world_names = (*_WORLD, "LWS_GROUP_SIZE")
    if world_size is None:
        world_size = _found_world(environment, world_names)
    if not 0 <= rank < world_size:
        raise SessionError(
            f"rank {rank} is outside a world of {world_size} ranks: check the variables "
            "RANK and WORLD_SIZE, or pass rank and world_size to connect()"
        )
    return rank, world_size


def _found_rank(environment: Mapping[str, str], hostname: str) -> tuple[int, tuple[str, ...]]:
    for name, world_names in _SOURCES:
        if environment.get(name):
            return _number(name, environment[name]), world_names
    if match := _ORDINAL.fullmatch(hostname):
        return int(match.group(1)), _WORLD
    raise SessionError(
        "this process does not know its rank: set RANK and WORLD_SIZE, "
        "or pass rank and world_size to connect()"
    )


def _found_world(environment: Mapping[str, str], names: tuple[str, ...]) -> int:
    for name in names:
        if environment.get(name):
            return _number(name, environment[name])
    raise SessionError(
        f"this process does not know how many ranks there are: set {names[0]}, "
        "or pass world_size to connect()"
    )


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise SessionError(f"{name} is {text!r}; it must be a whole number from 0")
    return int(text)


def uses_cuda() -> bool:
    """Whether anything of this process has loaded NVIDIA's driver."""
    return b"libcuda.so" in _MAPS.read_bytes()  # names of files may be any bytes


def gpu_in_use() -> str | None:
    """The UUID of the GPU, or of the instance of MIG, whose CUDA context is current, as the kubelet
    names it; None where none is, or nobody can tell."""
    try:
        if not uses_cuda():
            return None
        from epfabric.cuda import shared

        kind = "MIG" if shared.is_instance() else "GPU"
        return f"{kind}-{uuid.UUID(hex=shared.uuid())}"
    except (ImportError, SessionError, OSError, RuntimeError):
        return None
