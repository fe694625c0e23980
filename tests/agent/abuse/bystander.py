"""A rank that minds its own business while others misbehave: exchanges, checks, meets, again.

Writes how many rounds it has done to a file; ends in order when the file `stop` is there.
"""

import sys
import time
from pathlib import Path

import epfabric
import numpy as np

SIZE = 4096


def noise(number: int, source: int, to: int) -> np.ndarray:
    return np.random.default_rng((number, source, to)).integers(0, 256, SIZE, np.uint8)


def main() -> int:
    path, rank, world, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    with epfabric.connect(path, rank, world, timeout_s=60) as session:
        region = session.register(2 * world * SIZE)
        session.join()
        ring, number, going = session.ring(0), 0, True
        while going:
            number += 1
            stop = (folder / "stop").exists()
            for to in range(world):
                region.array[to * SIZE : (to + 1) * SIZE] = noise(number, rank, to)
                place = region.offset + (world + rank) * SIZE
                ring.write(to, region.offset + to * SIZE, place, SIZE, signal=0, advance=2 - stop)
            ring.flush()
            for source in range(world):
                session.wait_signal(source, 0, 0, 2 * number - 1)
            session.barrier()
            for source in range(world):
                got = region.array[(world + source) * SIZE : (world + source + 1) * SIZE]
                assert (got == noise(number, source, rank)).all(), f"wrong bytes of rank {source}"
            # An odd sum: somebody saw the file; it is even as long as nobody has.
            going = all(session.signal_value(s, 0, 0) == 2 * number for s in range(world))
            session.barrier()
            (folder / f"rounds-{rank}").write_text(str(number))
            time.sleep(0.01)
    return 0


if __name__ == "__main__":
    sys.exit(main())
