"""Memory of a GPU for NICs, as far as a machine without one goes: what an agent would be given."""

from __future__ import annotations

import os
import secrets
import subprocess

import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core import Device
from epfabric import SessionError
from epfabric.cuda.gpu_region import GpuRegion, made
from epfabric.cuda.rank import checked
from epfabric.identity import gpu_in_use

PAGE = 65536


@pytest.fixture(autouse=True)
def context() -> None:
    Device(0).set_current()


def exports_dmabufs() -> bool:
    kind = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
    return bool(checked(driver.cuDeviceGetAttribute(kind, checked(driver.cuCtxGetDevice()))))


class Agent:
    """Keeps what it is asked to register, as an agent does: another descriptor of it."""

    def __init__(self) -> None:
        self.kept, self.said = -1, dict[str, str]()

    def register(self, fd: int, size_bytes: int) -> int:
        self.kept = os.dup(fd)
        with open(f"/proc/self/fdinfo/{fd}") as file:
            self.said = dict(line.strip().split(":", 1) for line in file if ":" in line)
        assert int(self.said["size"]) == os.lseek(fd, 0, os.SEEK_END) == size_bytes
        os.close(fd)
        return PAGE


def test_a_region_is_a_dmabuf_of_its_size_whose_memory_kernels_and_copies_use() -> None:
    agent = Agent()
    if not exports_dmabufs():
        with pytest.raises(SessionError, match="exports no dma-bufs"):
            made(PAGE, agent.register)
        assert agent.kept < 0
        pytest.skip("the driver exports no dma-bufs: made() said so")
    region = made(PAGE + 1, agent.register)
    print("the dma-buf says", agent.said)
    assert isinstance(region, GpuRegion)
    assert (region.offset, region.size_bytes >= PAGE + 1) == (PAGE, True)
    assert "exp_name" in agent.said
    given = np.frombuffer(secrets.token_bytes(PAGE), np.uint8)
    came = np.ones(PAGE, np.uint8)
    checked(driver.cuMemcpyDtoH(came.ctypes.data, region.address, PAGE))
    assert not came.any()  # zeros at first
    checked(driver.cuMemcpyHtoD(region.address, given.ctypes.data, PAGE))
    checked(driver.cuMemcpyDtoH(came.ctypes.data, region.address, PAGE))
    assert np.array_equal(came, given)
    for _ in range(2):
        region.close()
    os.close(agent.kept)


def test_memory_is_given_back_where_the_agent_refuses_it() -> None:
    if not exports_dmabufs():
        pytest.skip("the driver exports no dma-bufs")

    def refuse(fd: int, size_bytes: int) -> int:
        os.close(fd)
        raise SessionError("bad-dmabuf")

    free = int(checked(driver.cuMemGetInfo())[0])
    for _ in range(4):
        with pytest.raises(SessionError, match="bad-dmabuf"):
            made(1 << 30, refuse)
    assert free - int(checked(driver.cuMemGetInfo())[0]) < 1 << 30


def test_a_rank_names_the_gpu_of_its_context() -> None:
    listed = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True,
        text=True, check=True, timeout=60,
    ).stdout.split()  # fmt: skip
    assert gpu_in_use() in listed


def test_a_rank_without_a_context_names_no_gpu() -> None:
    """The driver is there, and the thread has let go of its context."""
    context = checked(driver.cuCtxPopCurrent())
    try:
        assert gpu_in_use() is None
    finally:
        checked(driver.cuCtxPushCurrent(context))
