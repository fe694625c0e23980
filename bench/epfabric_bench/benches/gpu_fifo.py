"""A GPU pushes to the proxies of a real core; round trips stand beside a bare ping-pong.

Every command is a signal of the rank to itself or, in one case, a write with a signal: checked,
carried out and counted like any other. Times are the GPU's; what the word and the core's counters
say is compared with what was pushed, and the GPU looks at what a proxy copied.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from epfabric.command import Write, pack_signal, pack_write
from epfabric.layout import AGENT_ABORT, POD_ABORT, RING_COMPLETED, RING_TAIL
from epfabric.limits import OFFSET_UNIT
from numpy.typing import NDArray

from .. import native
from ..run import Bench, Run
from ..series import LESS, MORE, OURS, Limit, Line

if TYPE_CHECKING:
    from epfabric.cuda.rank import Mapped, RankOnDevice
    from epfabric_agent import _native
    from harness.device import Gpu, Words
    from native.pod import Pod

KERNELS = Path(__file__).resolve().parents[2] / "gpu" / "fifo.cu"
RINGS, DEPTH, SIGNALS, PROXIES = 32, 1024, 1, 4
FLOOR = "two words, no ring"
TIMEOUT_S = 20.0
WARPS = 8
PAYLOAD = 7168  # bytes; the region has two of them
REGION = 4 * mmap.PAGESIZE
THREADS = {
    "one_thread": 1,
    "one_warp_a_ring": 32,
    "shared_rings": 32 * WARPS,
    "round_trips": 32,
    "bare_ping_pong": 1,
    "offered": 64,
}  # of a block
OFFERED = (1, 7, 20)  # million commands a second, over all rings


class Stage:
    """One rank with all of its rings on the GPU; its proxies have cores of their own."""

    def __init__(self, stack: ExitStack) -> None:
        from epfabric.cuda.rank import Mapped
        from epfabric_agent import _native
        from harness.device import Gpu, Words, rank_on_device
        from native.pod import Pod

        self.gpu: Gpu = Gpu(KERNELS)
        self.core: _native.Core = _native.Core(address="127.0.0.1", provider="", idle="spin")
        stack.callback(self.core.close)
        cpus = sorted(os.sched_getaffinity(0))[1 : PROXIES + 1]
        if len(cpus) < PROXIES:
            raise native.BenchError(f"{PROXIES + 1} cores are needed, one for each proxy")
        session = self.core.open_session(
            group=1, rank=0, world=1, rings=RINGS, depth=DEPTH, signals=SIGNALS, cpus=cpus
        )
        stack.callback(session.close)
        self.pod: Pod = Pod(session, RINGS, DEPTH, SIGNALS, 1)
        region = self.pod.register(REGION)
        self.region: Mapped = Mapped(region.ctypes.data, REGION)
        stack.callback(self.region.close)
        self.core.open_epoch(1, 1, [session], [], 0, [[0]], 30_000)
        self.core.start_epoch(1)
        stack.callback(self.core.close_epoch, 1)
        self.rank: RankOnDevice = stack.enter_context(rank_on_device(self.pod, TIMEOUT_S))
        self.stream = self.gpu.stream()
        self.failed: Words = Words(1, np.uint32)
        self.pushed = [0] * RINGS
        self._words = Words

    def launch(self, kernel: str, grid: int, block: int, *values: np.generic) -> None:
        address = np.uint64(self.rank.address)
        self.gpu.launch(self.stream, kernel, grid, block, address, *values, self.failed.address)
        self.stream.sync()

    def timed(
        self, side: str, number: int, count: int, kernel: str, trip: Trip, right: Callable[[], bool]
    ) -> Line:
        """Runs a kernel of round trips; its cycles as seconds, by its clock in nanoseconds."""
        if not trip.lo:
            trip.lo, trip.hi = pack_signal(0, 0, 1)
        trip.timeout_ns = int(TIMEOUT_S * 1e9)
        at = self.words(ctypes.sizeof(trip) // 8)
        at.write(np.frombuffer(bytes(trip), np.uint64))
        cycles, times = self.words(count), self.words(3)
        values = [at.address, np.uint32(count), cycles.address, times.address, self.failed.address]
        self.gpu.launch(self.stream, kernel, 1, THREADS[kernel], *values)
        self.stream.sync()
        verified = bool(self.failed.read()[0] == 0 and right())
        taken = cycles.read().astype(float)
        begin, _, end = times.read()
        seconds = taken * (float(end - begin) / 1e9 / taken.sum())
        for words in (at, cycles, times):
            words.close()
        samples = tuple(seconds.tolist())
        return Line("", "round_trip_seconds", "s", LESS, side, number, verified, samples)

    def words(self, count: int) -> Words:
        return self._words(count, np.uint64)

    def took(self, rings: range, count: int) -> bool:
        """Whether exactly `count` more commands of each ring did their work."""
        for ring in rings:
            self.pushed[ring] += count
        counts = self.pod.session.counters()["rings"]
        return self.failed.read()[0] == 0 and all(
            self.pod.signal_value(0, ring, 0) == self.pushed[ring]
            and sum(counts[ring]["ops"].values()) == self.pushed[ring]
            and not counts[ring]["refused"]
            for ring in rings
        )


def measure(run: Run) -> list[Line]:
    with ExitStack() as stack:
        stage = Stage(stack)
        lines: list[Line] = []
        for number in range(-1, run.rounds):  # the first one warms up
            run.say(f"round {number + 1} of {run.rounds}")
            found = [*rates(stage, run, number), *trips(stage, run, number)]
            found += offered(stage, run, number)
            lines += found if number >= 0 else []
        return lines


def rates(stage: Stage, run: Run, number: int) -> Iterator[Line]:
    count = run.scaled(full=1 << 20, small=1 << 12)
    each = run.scaled(full=1 << 18, small=1 << 10)
    one, all_rings = range(1), range(RINGS)
    for batch in (1, 8):
        yield from rate(
            stage, number, f"one thread, batch {batch}", "one_thread", one, count, batch
        )
    for lanes in (8, 32):
        case = f"one warp, {lanes} at once"
        yield from rate(stage, number, case, "one_warp_a_ring", one, count, lanes)
    case = f"{RINGS} rings, a warp each, {PROXIES} proxies"
    yield from rate(stage, number, case, "one_warp_a_ring", all_rings, each, 32)
    case = f"one ring, shared by {WARPS} warps"
    yield from rate(stage, number, case, "shared_rings", one, count, None)
    case = f"{RINGS} rings, each shared by {WARPS} warps, {PROXIES} proxies"
    yield from rate(stage, number, case, "shared_rings", all_rings, each, None)


def rate(
    stage: Stage, number: int, case: str, kernel: str, rings: range, count: int, share: int | None
) -> Iterator[Line]:
    """count: of each ring. From the first push to the last store, and to the last completion."""
    times = stage.words(3 * RINGS)
    numbers = [count] if share is None else [count, share]
    values: list[np.generic] = [*(np.uint32(number) for number in numbers), times.address]
    stage.launch(kernel, len(rings), THREADS[kernel], *values)
    verified = stage.took(rings, count)
    begin, pushed, completed = times.read().reshape(-1, 3)[: len(rings)].T
    times.close()
    total = count * len(rings)
    for metric, end in (("pushed_per_second", pushed), ("completed_per_second", completed)):
        seconds = float(end.max() - begin.min()) / 1e9
        yield Line(case, metric, "commands/s", MORE, OURS, number, verified, (total / seconds,))


def offered(stage: Stage, run: Run, number: int) -> Iterator[Line]:
    """From when a command is due until the GPU sees what its proxy posted: what lies between a push
    and the post, and one look over PCIe. The first half of the commands only warms up.
    """
    each = run.scaled(full=8192, small=64)
    for millions in OFFERED:
        seen = stage.words(each)
        period_ns, watched = np.uint32(RINGS * 1000 // millions), np.uint32(number % RINGS)
        values: list[np.generic] = [np.uint32(each), period_ns, watched, seen.address]
        stage.launch("offered", RINGS, THREADS["offered"], *values)
        verified = stage.took(range(RINGS), each)
        samples = seen.read()[each // 2 :] / 1e9
        seen.close()
        case = f"{millions} M offered a second on {RINGS} rings"
        metric = "due_to_posted_seconds"
        yield Line(case, metric, "s", LESS, OURS, number, verified, tuple(samples.tolist()))


def trips(stage: Stage, run: Run, number: int) -> Iterator[Line]:
    """Push → completed, as a GPU thread sees it: by a proxy, by a bare consumer; then two words."""
    count = run.scaled(full=5_000, small=100)
    proxied = _proxied(stage, number, count, 0)
    copied = _proxied(stage, number, count, PAYLOAD)
    ring = _bare_ring(stage, number, count, 0)
    loaded = _bare_ring(stage, number, count, PAYLOAD)
    floor = _bare_words(stage, number, count)
    for case, ours in (
        ("proxy with its checks", proxied),
        ("proxy that copies 7 KiB, written first", copied),
        ("bare consumer", ring),
        ("bare consumer, 7 KiB written first", loaded),
    ):
        yield replace(ours, case=case)
        yield replace(floor, case=case)


def _proxied(stage: Stage, number: int, count: int, payload: int) -> Line:
    """payload: bytes that each trip writes, and has its proxy copy within the region."""
    at, layout = stage.rank, stage.pod.at
    counters = at.agent_address + layout["counters"]
    trip = Trip(
        slots=at.pod_address + layout["slots"],
        tail=counters + RING_TAIL,
        completed=counters + RING_COMPLETED,
        head=at.heads_address,
        pod_abort=at.pod_address + POD_ABORT,
        agent_abort=at.agent_address + AGENT_ABORT,
        depth=DEPTH,
    )
    if payload:
        units = payload // OFFSET_UNIT
        trip.lo, trip.hi = pack_write(
            Write(rank=0, source=0, destination=units, units=units, advance=1)
        )
        trip.payload, trip.vectors = stage.region.address, payload // 16
        trip.copied = stage.region.address + payload
    return stage.timed(
        OURS, number, count, "round_trips", trip, lambda: stage.took(range(1), count)
    )


def _bare_ring(stage: Stage, number: int, count: int, payload: int) -> Line:
    with answering(count, DEPTH) as (shared, words, ended):
        head = stage.words(2)
        zero = int(head.address) + 8
        trip = Trip(
            slots=shared.address + mmap.PAGESIZE,
            tail=shared.address + 128,
            completed=shared.address + 192,
            head=int(head.address),
            pod_abort=zero,
            agent_abort=zero,
            depth=DEPTH,
            payload=stage.region.address,
            vectors=payload // 16,
        )
        line = stage.timed(
            OURS, number, count, "round_trips", trip, lambda: ended() and words[24] == count
        )
        head.close()
    return line


def _bare_words(stage: Stage, number: int, count: int) -> Line:
    with answering(count, 0) as (shared, words, ended):
        trip = Trip(tail=shared.address + 64, head=shared.address)
        return stage.timed(
            FLOOR, number, count, "bare_ping_pong", trip, lambda: ended() and words[8] == count
        )


class Trip(ctypes.Structure):
    """Mirror of the kernels' struct of that name."""

    _fields_ = [
        ("slots", ctypes.c_uint64),
        ("tail", ctypes.c_uint64),
        ("completed", ctypes.c_uint64),
        ("head", ctypes.c_uint64),
        ("pod_abort", ctypes.c_uint64),
        ("agent_abort", ctypes.c_uint64),
        ("lo", ctypes.c_uint64),
        ("hi", ctypes.c_uint64),
        ("timeout_ns", ctypes.c_uint64),
        ("depth", ctypes.c_uint64),
        ("payload", ctypes.c_uint64),
        ("vectors", ctypes.c_uint64),
        ("copied", ctypes.c_uint64),
    ]


@contextmanager
def answering(
    count: int, depth: int
) -> Iterator[tuple[Mapped, NDArray[np.uint64], Callable[[], bool]]]:
    """Memory shared with native/ping_pong.cc, which answers `count` times, and whether it did."""
    from epfabric.cuda.rank import Mapped

    size = mmap.PAGESIZE + depth * 16
    fd = os.memfd_create("ping-pong")
    os.ftruncate(fd, size)
    words = np.frombuffer(mmap.mmap(fd, size), np.uint64)
    mapped = Mapped(words.ctypes.data, size)
    command = [str(native.BUILD / "ping_pong"), f"fd={fd}", f"count={count}", f"ring={depth}"]
    with subprocess.Popen(command, pass_fds=[fd]) as process:
        try:
            yield mapped, words, lambda: process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
    mapped.close()
    os.close(fd)


def missing() -> str | None:
    return None if shutil.which("nvidia-smi") else "no NVIDIA GPU here"


BENCH = Bench(
    "gpu_fifo",
    "a GPU pushes to the proxies of a real core",
    measure,
    (
        Limit("pushed_per_second", None, 6.4e6, case="one thread, batch 8"),
        Limit(
            "completed_per_second",
            None,
            80e6,
            case=f"{RINGS} rings, a warp each, {PROXIES} proxies",
        ),
        Limit("round_trip_seconds", None, 1.2, of="ratio", case="bare consumer"),
        Limit(
            "due_to_posted_seconds",
            None,
            6e-6,
            of="p99",
            case=f"7 M offered a second on {RINGS} rings",
        ),
    ),
    missing,
)
