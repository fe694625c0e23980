"""A rank for this tier: joins, says so, then exchanges and leaves, or stays until the group fails.

Prints `joined EPOCH`, then `done`, or `failed after NS: REASON` and ends with status 3.
"""

import sys
import time

import epfabric
import numpy as np


def main() -> int:
    path, rank, world, *options = sys.argv[1:]
    begin = time.monotonic()
    try:
        with epfabric.connect(path, int(rank), int(world), timeout_s=60) as session:
            region = session.register(64 * 1024 * int(world))
            session.join()
            print(f"joined {session.epoch}", flush=True)
            if "stay" in options:
                while True:
                    session.barrier(30.0)
                    time.sleep(0.02)
            exchange(session, region)
        print("done", flush=True)
    except epfabric.SessionError as error:
        print(f"failed {error.code} after {time.monotonic() - begin:.1f} s: {error}", flush=True)
        return 3
    return 0


def exchange(session: epfabric.Session, region: epfabric.Region) -> None:
    """Every rank writes 64 bytes into its place at every rank; all are read and compared."""
    me, size = session.rank, 64
    region.array[:size] = me + 1
    ring = session.ring(0)
    base = region.offset + 4096
    for to in range(session.world_size):
        ring.write(to, region.offset, base + me * size, size, signal=0, advance=1)
    ring.flush()
    for source in range(session.world_size):
        session.wait_signal(source, 0, 0, 1, 30.0)
    session.barrier()
    for source in range(session.world_size):
        got = region.array[4096 + source * size : 4096 + (source + 1) * size]
        assert np.all(got == source + 1), f"rank {source} wrote {got[:4]}"


if __name__ == "__main__":
    sys.exit(main())
