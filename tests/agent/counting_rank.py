"""A rank that counts, together with others, in words of the first and the last rank by ATOMICs.

Arguments: socket, rank, world, how often it changes each word. Prints one line of JSON: what each
of its ADDs and each CAS that stored made of which word ([old, new], by the word's name), and what
its own words hold once all ranks have ended.
"""

import json
import sys

import epfabric
import numpy as np

WAIT_S = 60.0
AT_ONCE = 4
TRIES = 100_000


def main() -> None:
    path, rank, world, times = sys.argv[1], *map(int, sys.argv[2:])
    changes: dict[str, list[tuple[int, int]]] = {}
    with epfabric.connect(path, rank, world, timeout_s=WAIT_S) as session:
        region = session.register(4096)
        session.join()
        for owner in (0, world - 1):
            changes[f"add {owner}"] = add(session, owner, region.offset, times)
            changes[f"cas {owner}"] = swap(session, owner, region.offset + 8, times)
        session.barrier(WAIT_S)
        add_word, cas_word = region.array[:16].view(np.uint64).tolist()
        print(json.dumps({"changes": changes, "add": add_word, "cas": cas_word}), flush=True)


def add(session: epfabric.Session, owner: int, offset: int, times: int) -> list[tuple[int, int]]:
    ring, value = session.ring(0), session.rank + 1
    done: list[tuple[int, int]] = []
    for _ in range(times // AT_ONCE):
        tickets = [ring.atomic_add(owner, offset, value) for _ in range(AT_ONCE)]
        for ticket in tickets:
            old = ring.result(ticket, WAIT_S)
            assert old is not None
            done.append((old, old + value))
    return done


def swap(session: epfabric.Session, owner: int, offset: int, times: int) -> list[tuple[int, int]]:
    ring, seen = session.ring(1), 0
    done: list[tuple[int, int]] = []
    for _ in range(TRIES):
        if len(done) == times:
            return done
        new = seen + session.rank + 1
        old = ring.result(ring.atomic_cas(owner, offset, seen, new), WAIT_S)
        assert old is not None
        if old == seen:
            done.append((old, new))
            seen = new
        else:
            seen = old
    raise AssertionError(f"only {len(done)} of {TRIES} CAS stored anything")


if __name__ == "__main__":
    main()
