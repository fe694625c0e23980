"""A pod that truncates, grows and punches its memfd while its core registers it, again and again.

What was registered is then read and written to its last page. Prints how many were; a SIGBUS
would end it before that.
"""

import ctypes
import os
import sys
import threading

from epfabric_agent import _native
from native.pod import LIMIT_S, Pod, make_memfd, write

SIZE = 1 << 20
PUNCH_HOLE = 3  # with KEEP_SIZE
_libc = ctypes.CDLL(None)


def race(fd: int, stop: threading.Event) -> None:
    """Until the seals forbid it."""
    size = ctypes.c_long(SIZE)
    while not stop.is_set():
        try:
            os.ftruncate(fd, 4096)
            os.posix_fallocate(fd, 0, SIZE)
            os.pwrite(fd, bytes(SIZE), 0)
        except OSError:
            return
        _libc.fallocate(fd, PUNCH_HOLE, ctypes.c_long(SIZE // 2), ctypes.c_long(4096))
        _libc.fallocate(fd, 0, ctypes.c_long(0), size)


def attempt(core: _native.Core) -> bool:
    session = core.open_session(group=1, rank=0, world=1, rings=1, depth=16, signals=1, cpus=[-1])
    pod, fd, stop = Pod(session, 1, 16, 1, 1), make_memfd(SIZE), threading.Event()
    racer = threading.Thread(target=race, args=(fd, stop))
    racer.start()
    try:
        session.register_memfd(fd, SIZE)
        registered = True
    except _native.NativeError:
        registered = False
    stop.set()
    racer.join(LIMIT_S)
    if racer.is_alive():
        raise TimeoutError("the racing thread does not end")
    if registered:
        core.open_epoch(1, 1, [session], [], 0, [[0]], 1000)
        core.start_epoch(1)
        pod.run(0, write(0, 0, 0, SIZE))
        core.close_epoch(1)
    session.close()
    os.close(fd)
    return registered


if __name__ == "__main__":
    one = _native.Core(address="", provider="")
    print(sum(attempt(one) for _ in range(int(sys.argv[1]))), flush=True)
    one.close()
