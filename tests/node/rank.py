"""What a rank's pod runs in these tests, given to it as text: it exchanges blocks until its end.

When its session is lost it connects again. Each line that it prints is one event.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

import epfabric
import numpy as np

BLOCK = 4096
PAUSE_S = 0.1


def say(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


def block(source: int, number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng([source, number]).integers(0, 256, BLOCK, np.uint8)


def exchange(session: epfabric.Session) -> None:
    """Every rank writes a block to every rank in each round, which is compared there."""
    me, world = session.rank, session.world_size
    region = session.register((1 + world) * BLOCK)
    base, data = region.offset, region.array
    session.join()
    say("joined", epoch=session.epoch, node=session.node, rank=me)
    number = 0
    while True:
        number += 1
        data[:BLOCK] = block(me, number)
        for to in range(world):
            session.ring(to % session.rings).write(to, base, base + (1 + me) * BLOCK, BLOCK)
        session.barrier()
        for source in range(world):
            got = data[(1 + source) * BLOCK : (2 + source) * BLOCK]
            if not np.array_equal(got, block(source, number)):
                say("wrong", source=source, number=number)
                sys.exit(1)
        session.barrier()
        say("round", number=number)
        time.sleep(PAUSE_S)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        try:
            with epfabric.connect(timeout_s=20) as session:
                exchange(session)
        except (epfabric.SessionError, OSError) as error:
            say("lost", error=str(error))
            time.sleep(0.5)


if __name__ == "__main__":
    main()
