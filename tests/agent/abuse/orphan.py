"""A rank that joins, leaves a child behind and dies: by os.fork() (the library lets go of the
session in it) or by the C library's fork (the child keeps the socket open).

Prints the child's pid; by then the child has let go of what it does not keep.
"""

import ctypes
import os
import sys
import time

import epfabric


def main() -> None:
    path, rank, world, how = sys.argv[1:]
    session = epfabric.connect(path, int(rank), int(world), timeout_s=60)
    session.join()
    forked, tell = os.pipe()
    child = os.fork() if how == "python" else ctypes.CDLL(None).fork()
    if child == 0:
        os.write(tell, b"1")
        time.sleep(120)
    else:
        os.read(forked, 1)
        print(child, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
