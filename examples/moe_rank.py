"""One rank of an expert-parallel exchange that checks every byte; started once per pod.

    pip install 'epfabric[host]'
    RANK=0 WORLD_SIZE=8 python moe_rank.py --iterations 4 --barriers 1000

Each iteration dispatches every token to the ranks of its experts, runs the experts there, and
combines the results at the token's home. What arrived is compared with what moe_plan.py computes
from the seed. Where the fabric masks lost ranks, the others go on without their tokens and experts.
Prints one line of JSON; the exit status is 0 only if everything was right.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import epfabric
import moe_plan
import numpy as np
from moe_plan import COUNT_BYTES, Areas, Bytes, Floats, Shape, Source
from numpy.typing import NDArray

# Signal words of each (source rank, ring); all only grow.
COUNT, ROW, COMBINED, DONE = 0, 1, 2, 3
CANARY = 0xA5


class WrongBytes(Exception):
    """Something arrived that differs from what its sender must have sent."""


@dataclass
class Tally:
    """What this rank did, for the result."""

    sent_bytes: NDArray[np.int64]
    commands: int = 0
    rows_verified: int = 0
    bytes_verified: int = 0
    waited_for: dict[tuple[int, int], int] = field(default_factory=dict)


class Rank:
    """The exchange of one rank over its session; one region holds all areas."""

    def __init__(self, session: epfabric.Session, shape: Shape) -> None:
        self.session = session
        self.shape = shape
        self.me = session.rank
        self.areas: Areas = moe_plan.areas(shape)
        self.region = session.register(self.areas.total)
        self.region.array[self.areas.received :] = CANARY
        self.tally = Tally(np.zeros(shape.world_size, np.int64))
        self.most_rows = np.zeros(shape.world_size, np.int64)
        self.last_ticket: dict[int, int] = {}
        self.lost: set[int] = set()
        self.partners: list[int] = []  # whose sums the last combine had

    def rows(self, start: int, count: int, row: int) -> Bytes:
        """count rows of row bytes from start on."""
        return self.region.array[start : start + count * row].reshape(count, row)

    def pair_area(self, start: int, rank: int, row: int) -> int:
        """Where rank's rows begin in an area that has one part per rank."""
        return start + rank * self.shape.tokens * row

    def ring_to(self, rank: int) -> epfabric.Ring:
        return self.session.ring((self.me + rank) % self.session.rings)

    def write(self, rank: int, source: int, destination: int, nbytes: int, word: int) -> None:
        """Writes to the same layout at another rank, and lets a signal word grow by one.

        All ranks register one region of one size, so its base is the same everywhere.
        """
        ring, base = self.ring_to(rank), self.region.offset
        ticket = ring.write(rank, base + source, base + destination, nbytes, word, 1)
        self.last_ticket[ring.index] = ticket
        self.tally.commands += 1
        self.tally.sent_bytes[rank] += nbytes

    def signal(self, rank: int, word: int) -> None:
        ring = self.ring_to(rank)
        self.last_ticket[ring.index] = ring.signal(rank, word)
        self.tally.commands += 1

    def flush(self) -> None:
        for index in self.last_ticket:
            self.session.ring(index).flush()

    def wait(self, rank: int, word: int, more: int) -> bool:
        """Waits until a word that rank writes here has grown by more since the last wait.

        False for ever after the rank was masked before that.
        """
        target = self.tally.waited_for.get((rank, word), 0) + more
        self.tally.waited_for[rank, word] = target
        ring = (self.me + rank) % self.session.rings
        if rank in self.lost or not self.session.wait_signal(rank, ring, word, target):
            self.lost.add(rank)
        return rank not in self.lost

    def verify(self, got: NDArray[Any], expected: NDArray[Any], what: str) -> None:
        """Bit-equality; a difference says where the first wrong byte lies."""
        left = np.ascontiguousarray(got).view(np.uint8).ravel()
        right = np.ascontiguousarray(expected).view(np.uint8).ravel()
        if left.size != right.size or not np.array_equal(left, right):
            wrong = np.flatnonzero(left != right) if left.size == right.size else [-1]
            raise WrongBytes(f"{what}: {len(wrong)} of {right.size} bytes differ, from {wrong[0]}")
        self.tally.bytes_verified += right.size

    def dispatch(self, mine: Source) -> None:
        """Sends each token once to each rank that has one of its experts."""
        row = self.shape.dispatch_row
        self.rows(self.areas.staging, len(mine.rows), row)[:] = mine.rows
        counts = self.rows(self.areas.count_staging, self.shape.world_size, COUNT_BYTES)
        for rank, tokens in enumerate(mine.to_rank):
            if rank in self.lost:
                continue
            counts[rank] = np.array([len(tokens), self.me, 0, 0], "<u4").view(np.uint8)
            self.write(
                rank,
                self.areas.count_staging + rank * COUNT_BYTES,
                self.areas.counts + self.me * COUNT_BYTES,
                COUNT_BYTES,
                COUNT,
            )
            target = self.pair_area(self.areas.received, self.me, row)
            for slot, token in enumerate(tokens):
                source = self.areas.staging + int(token) * row
                self.write(rank, source, target + slot * row, row, ROW)
        self.flush()

    def serve(self, source_rank: int, iteration: int) -> None:
        """Receives one rank's tokens, checks them, runs the experts, sends the sums back."""
        if not self.wait(source_rank, COUNT, 1):
            return
        cell = self.areas.counts + source_rank * COUNT_BYTES
        count, sender, _, _ = self.region.array[cell : cell + COUNT_BYTES].view("<u4")
        if not self.wait(source_rank, ROW, int(count)):
            return
        shape = self.shape
        received = self.pair_area(self.areas.received, source_rank, shape.dispatch_row)
        rows = self.rows(received, int(count), shape.dispatch_row)

        theirs = moe_plan.source(shape, source_rank, iteration)
        expected = theirs.rows[theirs.to_rank[self.me]]
        if (count, sender) != (len(expected), source_rank):
            raise WrongBytes(f"rank {sender} announced {count} rows, expected {len(expected)}")
        self.verify(rows, expected, f"dispatch from rank {source_rank}")
        self.tally.rows_verified += len(expected)
        self.most_rows[source_rank] = max(self.most_rows[source_rank], count)

        sums = moe_plan.partial_sums(shape, self.me, *moe_plan.unpack_rows(shape, rows))
        size = shape.combine_row
        staging = self.pair_area(self.areas.partials, source_rank, size)
        self.rows(staging, int(count), size)[:] = sums.view(np.uint8)
        target = self.pair_area(self.areas.combined, self.me, size)
        for slot in range(int(count)):
            self.write(source_rank, staging + slot * size, target + slot * size, size, COMBINED)
        self.signal(source_rank, DONE)
        self.flush()

    def combine(self, mine: Source) -> None:
        """Receives the sums of this rank's tokens and adds them in rank order."""
        size = self.shape.combine_row
        rows: dict[int, Floats] = {}
        for rank, tokens in enumerate(mine.to_rank):
            if self.wait(rank, COMBINED, len(tokens)) and self.wait(rank, DONE, 1):
                start = self.pair_area(self.areas.combined, rank, size)
                rows[rank] = self.rows(start, len(tokens), size).view(np.float32)
        self.partners = list(rows)
        total = moe_plan.sum_in_rank_order(mine, rows)
        self.verify(total, moe_plan.reference(self.shape, mine, rows), "combined tokens")
        self.tally.rows_verified += len(total)

    def exchange(self, iteration: int) -> None:
        """One iteration. DONE of every other rank means that all areas may be written again."""
        mine = moe_plan.source(self.shape, self.me, iteration)
        self.dispatch(mine)
        for step in range(self.shape.world_size):
            self.serve((self.me + step) % self.shape.world_size, iteration)
        self.combine(mine)
        for index, ticket in self.last_ticket.items():
            self.session.ring(index).wait(ticket)

    def check_untouched(self) -> None:
        """Rows that nobody may have written still hold what was put there first."""
        for rank in set(range(self.shape.world_size)) - self.session.masked_ranks():
            start = self.pair_area(self.areas.received, rank, self.shape.dispatch_row)
            rows = self.rows(start, self.shape.tokens, self.shape.dispatch_row)
            if (rows[self.most_rows[rank] :] != CANARY).any():
                raise WrongBytes(f"rank {rank} wrote behind its last row")


def run(
    session: epfabric.Session,
    shape: Shape,
    iterations: int,
    barriers: int,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The whole program of a rank; returns the result that is printed."""
    rank = Rank(session, shape)
    session.join()
    session.barrier()
    begin = time.perf_counter()
    for iteration in range(iterations):
        progress(f"iteration {iteration}")
        rank.exchange(iteration)
    exchanged = time.perf_counter()
    session.barrier()
    rank.check_untouched()
    entered = time.perf_counter()
    progress(f"{barriers} barriers")
    for _ in range(barriers):
        session.barrier()
    end = time.perf_counter()
    tally = rank.tally
    return {
        "rank": rank.me,
        "world_size": shape.world_size,
        "node": session.node,
        "group": session.group,
        "epoch": session.epoch,
        "iterations": iterations,
        "bytes_verified": tally.bytes_verified,
        "rows_verified": tally.rows_verified,
        "sent_bytes": [int(n) for n in tally.sent_bytes],
        "commands": tally.commands,
        "partners": rank.partners,
        "masked": sorted(session.masked_ranks()),
        "exchange_seconds": exchanged - begin,
        "barriers": barriers,
        "barrier_seconds": end - entered,
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--socket", help="the agent's socket (EPFABRIC_SOCKET, or where the volume is mounted)")
    add("--rank", type=int, help="this rank (RANK, or what the pod's controller says)")
    add("--world-size", type=int, help="number of ranks (WORLD_SIZE, …)")
    add("--tokens", type=int, default=128, help="tokens of each rank (128)")
    add("--topk", type=int, default=8, help="experts of a token, at most 8 (8)")
    add("--experts", type=int, default=64, help="experts of all ranks together (64)")
    add("--hidden", type=int, default=3584, help="bfloat16 values of a token (3584: 7 KiB)")
    add("--seed", type=int, default=1, help="from which every rank computes all routing (1)")
    add("--idle-ranks", default="", help="ranks without tokens, such as 2,5")
    add("--iterations", type=int, default=4, help="dispatches and combines (4)")
    add("--barriers", type=int, default=1000, help="barriers after the exchange (1000)")
    add("--hold-s", type=float, default=0.0, help="seconds to stay in the group at the end (0)")
    add("--pause-s", type=float, default=0.0, help="seconds before each round, until SIGUSR1 (0)")
    add("--progress", action="store_true", help="tell on standard error what is being done")
    add("--timeout-s", type=float, default=120.0, help="bound of each wait (120)")
    return parser.parse_args(arguments)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def paced(options: argparse.Namespace) -> Callable[[str], None]:
    """What is called before each round."""
    hurry = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: hurry.set())

    def step(text: str) -> None:
        if options.progress:
            say(text)
        if options.pause_s:
            hurry.wait(options.pause_s)

    return step


def main() -> int:
    options = parse()
    rank = options.rank
    try:
        with epfabric.connect(
            options.socket, options.rank, options.world_size, timeout_s=options.timeout_s
        ) as session:
            rank = session.rank
            shape = Shape(
                world_size=session.world_size,
                tokens=options.tokens,
                topk=options.topk,
                experts=options.experts,
                hidden=options.hidden,
                seed=options.seed,
                idle_ranks=frozenset(int(r) for r in options.idle_ranks.split(",") if r),
            )
            work = options.iterations, options.barriers
            result = run(session, shape, *work, paced(options))
            time.sleep(options.hold_s)
    except (epfabric.SessionError, WrongBytes, ValueError) as error:
        print(json.dumps({"ok": False, "rank": rank, "error": str(error)}), flush=True)
        return 1
    print(json.dumps({"ok": True, **result}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
