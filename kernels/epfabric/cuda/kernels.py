"""The compiled kernels of one source file, and how they are launched; for this package's ends."""

from __future__ import annotations

import ctypes
from importlib.resources import files
from pathlib import Path
from typing import Any

from epfabric.cuda import compiler
from epfabric.cuda.rank import checked
from epfabric.errors import SessionError

THREADS = 1024  # of a block


class Kernels:
    """Those of `source`, a file's path or its name in this package, in the current context.

    defines: as those of compiler.cubin().
    """

    def __init__(self, source: str | Path, defines: tuple[str, ...] = ()) -> None:
        from cuda.bindings import driver

        device = checked(driver.cuCtxGetDevice())
        attribute = driver.CUdevice_attribute
        major, minor, self.processors = (
            int(checked(driver.cuDeviceGetAttribute(which, device)))
            for which in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )
        )
        path = source if isinstance(source, Path) else files("epfabric.cuda").joinpath(source)
        code = compiler.cubin(path.read_text(), path.name, f"sm_{major}{minor}", defines)
        self._driver, self.launcher = driver, driver.cuLaunchKernel
        self._module = checked(driver.cuModuleLoadData(code))
        self._functions: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        found = self._functions.get(name)
        if found is None:
            driver = self._driver
            found = checked(driver.cuModuleGetFunction(self._module, name.encode()))
            # Else the driver does it at the first launch, and waits for all kernels before.
            checked(driver.cuFuncLoad(found))
            self._functions[name] = found
        return found

    def check_resident(self, name: str, blocks: int) -> None:
        """Raises SessionError where a grid of so many blocks would wait for blocks not started."""
        from cuda.bindings import driver

        each = checked(
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function(name), THREADS, 0)
        )
        if not 1 <= blocks <= each * self.processors:
            raise SessionError(
                f"{blocks} blocks cannot be on the GPU at once: it has room for "
                f"{each * self.processors} of {name}"
            )

    def launch(self, name: str, blocks: int, stream: int, *values: Any) -> None:
        """values: ctypes objects, which are copied at once."""
        Launch(self, name, blocks, values)(stream)


class Launch:
    """Of a kernel, as often as wanted, with what its values hold then: for calls that have only
    microseconds, of which finding the kernel and the values takes some."""

    def __init__(self, kernels: Kernels, name: str, blocks: int, values: tuple[Any, ...]) -> None:
        self._launch, self._function = kernels.launcher, kernels.function(name)
        self._blocks, self._values = blocks, values
        self._parameters = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self._address = ctypes.addressof(self._parameters)

    def __call__(self, stream: int) -> None:
        result = self._launch(
            self._function, self._blocks, 1, 1, THREADS, 1, 1, 0, stream, self._address, 0
        )
        if result[0] != 0:
            checked(result)
