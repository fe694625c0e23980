"""A rank that shares a memfd, in a process of its own; for test_sharing.py: SOCKET RANK WORLD NEAR.

NEAR: the ranks of its node, as 0,1. It tells the others its memfd's inode, finds theirs, compares,
writes its rank into each, and sees in its own what they wrote.
"""

from __future__ import annotations

import sys

import epfabric
import pytest
from agent.sharing import Memfd, find, offer


def main() -> int:
    path, rank, world, near = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    others = {int(one) for one in near.split(",")} - {rank}
    with epfabric.connect(path, rank, world, timeout_s=60) as session:
        mine = Memfd.made()
        session.join()
        offer(session, "memory", mine, f"{mine.inode}")
        for other in others:
            note = session.broker.find(other, "memory", 30.0).note
            theirs = find(session, other, "memory")
            assert f"{theirs.inode}" == note, (theirs.inode, note)
            assert theirs.inode != mine.inode
            theirs.write(rank, 1000 + rank)
        session.barrier()
        assert [mine.read(other) for other in others] == [1000 + other for other in others]
        for other in set(range(world)) - others - {rank}:
            with pytest.raises(epfabric.SessionError) as caught:
                session.broker.find(other, "memory")
            assert caught.value.code == "not-offered"
            print(f"refused: {caught.value}", flush=True)
        session.barrier()
    print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
