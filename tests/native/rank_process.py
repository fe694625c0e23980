"""One agent process with its ranks, run by test_processes.py; talks JSON lines by stdio."""

from __future__ import annotations

import json
import secrets
import sys
import time
from random import Random

import numpy as np
from epfabric_agent import _native
from native.pod import Node, Pod, add, barrier, cas, drain, until, write

BLOCK = 7168
NODES = [[0, 1], [2, 3], [4, 5], [6, 7]]
WORLD = 8
RINGS = 4


def say(**message: object) -> None:
    print(json.dumps(message), flush=True)


def hear() -> dict[str, object]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(3)
    return dict(json.loads(line))


def payload(source: int, destination: int, round_: int) -> np.ndarray:
    seed = (source * WORLD + destination) * 1000 + round_
    return np.random.default_rng(seed).integers(0, 256, BLOCK, dtype=np.uint8)


def exchange(pods: list[Pod], rounds: int) -> None:
    """Every rank writes a block to every rank; who got the signal checks every byte."""
    for round_ in range(rounds):
        for pod in pods:
            for other in range(WORLD):
                pod.regions[0][other * BLOCK : (other + 1) * BLOCK] = payload(
                    pod.rank, other, round_
                )
                target = (WORLD + pod.rank) * BLOCK
                ring = (pod.rank + other) % RINGS
                pod.push(ring, write(other, other * BLOCK, target, BLOCK, signal=0, advance=1))
        for pod in pods:
            for source in range(WORLD):
                ring = (source + pod.rank) % RINGS
                until(lambda: pod.signal_value(source, ring, 0) > round_, "a signal")  # noqa: B023
                got = pod.regions[0][(WORLD + source) * BLOCK : (WORLD + source + 1) * BLOCK]
                assert np.array_equal(got, payload(source, pod.rank, round_)), (source, pod.rank)
        meet(pods)


def hammer(pods: list[Pod]) -> list[list[int]]:
    """ADD and CAS of every rank on one word of rank 5: [old, new] of each that changed it.

    Operands are draws of 64 bits, so that the word never holds a value twice.
    """
    seed = secrets.randbits(64)
    print(f"rank {pods[0].rank}: seed {seed}", file=sys.stderr)
    random = Random(seed)
    offset = 2 * WORLD * BLOCK
    changes: list[list[int]] = []
    for _ in range(60):
        asked: list[tuple[Pod, int, int | None, int]] = []
        for pod in pods:
            addend, swap = random.getrandbits(64), random.getrandbits(64)
            asked.append((pod, pod.push(2, add(5, offset, addend)), None, addend))
            before = changes[-1][1] if changes else 0
            first, second = cas(5, offset, before, swap)
            ticket = pod.push(3, first)
            pod.push(3, second)
            asked.append((pod, ticket, before, swap))
        for pod, ticket, expected, value in asked:
            ring = 2 if expected is None else 3
            pod.wait(ring, ticket)
            old = pod.result(ring, ticket)
            assert old is not None
            if expected is None:
                changes.append([old, (old + value) % (1 << 64)])
            elif old == expected:
                changes.append([old, value])
    return changes


def meet(pods: list[Pod]) -> None:
    for pod in pods:
        for ring in range(RINGS):
            pod.push(ring, drain(pod.head[ring]))
    tickets = [(pod, pod.push(0, barrier())) for pod in pods]
    for pod, ticket in tickets:
        pod.wait(0, ticket)


def main() -> None:
    index, (what, _, gated) = int(sys.argv[1]), sys.argv[2].partition("-")
    core = _native.Core(
        address=f"127.0.1.{index + 1}",
        stall_timeout_ms=2000 if what == "stall" else 20000,
        gated=bool(gated),
    )
    node = Node(core, NODES[index])
    node.open(WORLD, RINGS, 64, 2, 1 + index % 2, 16 * BLOCK * 4)
    say(blobs=[pod.session.describe().hex() for pod in node.pods])
    blobs = hear()["blobs"]
    assert isinstance(blobs, list)
    remote = [
        _native.RemoteRank(rank, i, bytes.fromhex(blobs[rank]))
        for i, ranks in enumerate(NODES)
        for rank in ranks
        if i != index
    ]
    core.open_epoch(1, 1, [pod.session for pod in node.pods], remote, 0, NODES, 20000)
    say(opened=True)
    hear()
    core.start_epoch(1)
    if what == "exchange":
        exchange(node.pods, 5)
        changes = hammer(node.pods)
        for _ in range(1000):
            tickets = [(pod, pod.push(0, barrier())) for pod in node.pods]
            for pod, ticket in tickets:
                pod.wait(0, ticket)
        # The last one's times are written once it has let go.
        until(lambda: core.barrier_stats(1)["phases"]["total"]["count"] >= 1005, "its times")
        stats = core.barrier_stats(1)["phases"]["total"]
        held = [int(p.regions[0].view(np.uint64)[2 * WORLD * BLOCK // 8]) for p in node.pods]
        events = [event.detail for event in core.events()]
        say(barriers=stats["count"], events=events, changes=changes, held=held)
    else:
        exchange(node.pods, 1)
        say(done=True)
        wait_for_failure(core, node)
    hear()
    core.close()


def wait_for_failure(core: _native.Core, node: Node) -> None:
    """Goes on writing to rank 2, whose process the test has killed or stopped."""
    hear()
    end = time.monotonic() + 60
    while not (events := core.events()):
        assert time.monotonic() < end, "no event"
        for pod in node.pods:
            if pod.head[3] - pod.counter(3, "completed") < 8:
                pod.push(3, write(2, 0, 0, 16))
        time.sleep(0.01)
    event = events[0]
    say(
        kind=event.kind,
        rank=event.rank,
        detail=event.detail,
        aborted=[pod.aborted() for pod in node.pods],
    )


if __name__ == "__main__":
    main()
