"""What a rank says of its GPU: whole, an instance of MIG, without a context; over a driver that
stands in for NVIDIA's."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from epfabric.identity import gpu_in_use

driver = pytest.importorskip("cuda.bindings.driver", reason="names of the driver's results")
shared = pytest.importorskip("epfabric.cuda.shared")

WHOLE, INSTANCE = "a0000000-1111-2222-3333-444444444444", "d0000000-1111-2222-3333-444444444444"


@dataclass
class Driver:
    """One GPU. name: of the device that the context is on."""

    name: str
    has_context: bool = True
    CUresult: Any = driver.CUresult

    def cuCtxGetDevice(self) -> tuple[Any, ...]:
        if not self.has_context:
            return self.CUresult.CUDA_ERROR_INVALID_CONTEXT, None
        return self.CUresult.CUDA_SUCCESS, 0

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Any, ...]:
        return self.CUresult.CUDA_SUCCESS, self.name.encode().ljust(length, b"\0")

    def cuDeviceGetUuid(self, device: int) -> tuple[Any, ...]:
        return self._said(WHOLE)

    def cuDeviceGetUuid_v2(self, device: int) -> tuple[Any, ...]:
        return self._said(INSTANCE if "MIG" in self.name else WHOLE)

    def cuGetErrorName(self, status: Any) -> tuple[Any, ...]:
        return self.CUresult.CUDA_SUCCESS, status.name.encode()

    cuGetErrorString = cuGetErrorName

    def _said(self, uuid: str) -> tuple[Any, ...]:
        return self.CUresult.CUDA_SUCCESS, SimpleNamespace(
            bytes=bytes.fromhex(uuid.replace("-", ""))
        )


class NewDriver(Driver):
    """As the bindings of CUDA 13 have it: the newer call has the older one's name."""

    def __getattribute__(self, name: str) -> Any:
        if name == "cuDeviceGetUuid_v2":
            raise AttributeError(name)
        return super().__getattribute__("cuDeviceGetUuid_v2" if name == "cuDeviceGetUuid" else name)


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[None]:
    """This process has a libcuda, as far as its maps say."""
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        yield


@pytest.fixture(params=[Driver, NewDriver], ids=["cuda-12", "cuda-13"])
def kind(request: pytest.FixtureRequest, loaded: None) -> Any:
    return request.param


@pytest.mark.parametrize(
    ("name", "said"),
    [("NVIDIA H200", f"GPU-{WHOLE}"), ("NVIDIA H200 MIG 1g.18gb", f"MIG-{INSTANCE}")],
)
def test_a_rank_names_its_gpu_or_instance_as_the_kubelet_does(
    kind: Any, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(kind(name), monkeypatch)
    assert gpu_in_use() == said


def test_a_rank_without_a_context_names_no_gpu(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(kind("NVIDIA H200", has_context=False), monkeypatch)
    assert gpu_in_use() is None


def stand_in(one: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "driver", one)
    monkeypatch.setattr("cuda.bindings.driver", one)
