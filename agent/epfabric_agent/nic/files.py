"""RoCE mode, ToS and ECN by files of sysfs and configfs below an injected root; for nic.knobs.

configfs shows an RDMA device only while somebody keeps a folder of its name there, so one is made
for the moment where none is. The kernel keeps the values without it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from epfabric_agent.nic.facts import Nic, Reading
from epfabric_agent.topology.machine import Machine, text

PRIORITIES = range(8)
_MODES = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}
_NO_DEVICE = Reading(None, "it has no RDMA device")
_NO_CMA = Reading(
    None, "the kernel offers no rdma_cm in configfs: load rdma_cm and mount /sys/kernel/config"
)


class FileKnobs:
    def __init__(self, machine: Machine) -> None:
        self._configfs = machine.sys / "kernel/config"
        self._net = machine.sys / "class/net"
        self._infiniband = machine.sys / "class/infiniband"

    def read_roce_mode(self, nic: Nic) -> Reading:
        with self._cma(nic) as port:
            if port is None:
                return _NO_CMA if nic.rdma_device else _NO_DEVICE
            shown = text(port / "default_roce_mode")
        found = next((mode for mode, name in _MODES.items() if name == shown), None)
        return Reading(found, "" if found else f"its RDMA device has no RoCE mode ({shown!r})")

    def write_roce_mode(self, nic: Nic, value: str) -> None:
        with self._cma(nic) as port:
            _write(_there(port) / "default_roce_mode", _MODES[value])

    def read_tos(self, nic: Nic) -> Reading:
        with self._cma(nic) as port:
            if port is None:
                return _NO_CMA if nic.rdma_device else _NO_DEVICE
            tos = text(port / "default_roce_tos")
        if not tos.isdigit():
            return Reading(None, "its RDMA device has no ToS")
        own = self._traffic_class(nic)
        if not own.exists():
            return Reading(tos)
        # Where it is not set, the file is empty, and -1 unsets it.
        return Reading(f"{tos}/{text(own).rpartition('=')[2] or '-1'}")

    def write_tos(self, nic: Nic, value: str) -> None:
        tos, _, traffic_class = value.partition("/")
        with self._cma(nic) as port:
            _write(_there(port) / "default_roce_tos", tos)
        if traffic_class:
            _write(self._traffic_class(nic), traffic_class)

    def read_ecn(self, nic: Nic) -> Reading:
        if all(half.is_dir() for half in self._ecn_folders(nic)):
            halves = [
                "".join(text(folder / str(priority)) for priority in PRIORITIES)
                for folder in self._ecn_folders(nic)
            ]
            if any(len(half) != len(PRIORITIES) or set(half) - {"0", "1"} for half in halves):
                return Reading(None, "its files for ECN cannot be read now: its driver is busy")
            return Reading("/".join(halves))
        with self._irdma(nic) as folder:
            if folder is not None and (bit := text(folder / "roce_dcqcn_enable")):
                return Reading("1" if bit in ("1", "on", "Y") else "0")
        driver = nic.driver or "without a driver"
        return Reading(None, f"a NIC {driver} offers no file for ECN: use its vendor's tool")

    def write_ecn(self, nic: Nic, value: str) -> None:
        if "/" not in value:
            with self._irdma(nic) as folder:
                _write(_there(folder) / "roce_dcqcn_enable", value)
            return
        for folder, bits in zip(self._ecn_folders(nic), value.split("/"), strict=True):
            for priority, bit in zip(PRIORITIES, bits, strict=True):
                path = folder / str(priority)
                if text(path) != bit:
                    _write(path, bit)

    def _traffic_class(self, nic: Nic) -> Path:
        return self._infiniband / nic.rdma_device / "tc/1/traffic_class"

    def _ecn_folders(self, nic: Nic) -> list[Path]:
        base = self._net / nic.name / "ecn"
        return [base / "roce_np/enable", base / "roce_rp/enable"]

    @contextlib.contextmanager
    def _cma(self, nic: Nic) -> Iterator[Path | None]:
        with _kept(self._configfs / "rdma_cm", nic.rdma_device) as folder:
            port = folder / "ports/1" if folder else None
            yield port if port and port.is_dir() else None

    @contextlib.contextmanager
    def _irdma(self, nic: Nic) -> Iterator[Path | None]:
        with _kept(self._configfs / "irdma", nic.rdma_device) as folder:
            yield folder


@contextlib.contextmanager
def _kept(parent: Path, device: str) -> Iterator[Path | None]:
    """The device's folder; None where configfs has no such thing, or does not take the device."""
    if not device or not parent.is_dir():
        yield None
        return
    folder = parent / device
    try:
        folder.mkdir()
    except FileExistsError:
        yield folder
        return
    except OSError:  # not a device of that driver, or a read-only mount
        yield None
        return
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _there(path: Path | None) -> Path:
    if path is None:
        raise OSError("its folder in configfs is gone")
    return path


def _write(path: Path, value: str) -> None:
    """One write call and nothing created: these are the kernel's files."""
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
