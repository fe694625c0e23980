"""A GPU, its kernels, and ranks of the real core that it pushes for; for GPU tests and benches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, ObjectCode, Stream, launch
from epfabric.cuda import compiler
from epfabric.cuda.rank import Mapped, RankOnDevice, Segments, checked
from epfabric.layout import layout_of
from native.pod import Group, Pod


class Gpu:
    """The first GPU, made current, and the kernels of one source file."""

    def __init__(self, source: Path) -> None:
        self.device = Device(0)
        self.device.set_current()
        major, minor = self.device.compute_capability
        self.architecture = f"sm_{major}{minor}"
        code = compiler.cubin(source.read_text(), source.name, self.architecture)
        self._module = ObjectCode.from_cubin(code)

    def stream(self) -> Stream:
        return self.device.create_stream()

    def launch(self, stream: Stream, name: str, grid: int, block: int, *values: Any) -> None:
        """values: numpy scalars of the kernel's parameter types; addresses as uint64."""
        kernel = self._module.get_kernel(name)
        launch(stream, LaunchConfig(grid=grid, block=block), kernel, *values)


class Words:
    """An array in GPU memory: zeros at first."""

    def __init__(self, count: int, kind: type[np.generic]) -> None:
        self._array = np.zeros(count, kind)
        self.address = np.uint64(int(checked(driver.cuMemAlloc(self._array.nbytes))))
        checked(driver.cuMemcpyHtoD(int(self.address), self._array.ctypes.data, self._array.nbytes))

    def write(self, values: np.ndarray) -> None:
        """As many as there are, of the array's own type."""
        self._array[:] = values
        checked(driver.cuMemcpyHtoD(int(self.address), self._array.ctypes.data, self._array.nbytes))

    def read(self) -> np.ndarray:
        array = self._array
        checked(driver.cuMemcpyDtoH(array.ctypes.data, int(self.address), array.nbytes))
        return array.copy()

    def close(self) -> None:
        checked(driver.cuMemFree(int(self.address)))


def rank_on_device(pod: Pod, timeout_s: float) -> RankOnDevice:
    """The pod's rings, for kernels."""
    segments = Segments(
        pod=pod.slots.ctypes.data - pod.at["slots"],
        agent=pod.agent.ctypes.data,
        layout=layout_of(pod.rings, pod.depth, pod.signals, pod.world),
        rings=pod.rings,
        depth=pod.depth,
        signals=pod.signals,
        world=pod.world,
        rank=pod.rank,
    )
    return RankOnDevice(segments, timeout_s=timeout_s)


class Rank:
    """A rank of a group: its pod, its rings on the GPU, its region in memory that both reach."""

    def __init__(self, pod: Pod, stack: ExitStack, timeout_s: float) -> None:
        self.pod = pod
        self.device = stack.enter_context(rank_on_device(pod, timeout_s))
        self.region = pod.regions[0]
        mapped = Mapped(self.region.ctypes.data, self.region.nbytes)
        stack.callback(mapped.close)
        self.region_on_device = mapped.address

    @property
    def address(self) -> np.uint64:
        return np.uint64(self.device.address)


@contextmanager
def ranks_of(group: Group, timeout_s: float = 20.0) -> Iterator[list[Rank]]:
    """Every rank of the group, as the GPU reaches it."""
    with ExitStack() as stack:
        yield [Rank(pod, stack, timeout_s) for pod in group.pods]
