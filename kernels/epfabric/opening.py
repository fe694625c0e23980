"""How a process opens its session: epfabric.connect()."""

from __future__ import annotations

import os
import socket as sockets
import time

from epfabric import messages, wire
from epfabric.errors import SessionError
from epfabric.identity import gpu_in_use, rank_and_world
from epfabric.limits import ABI_OLDEST, ABI_VERSION
from epfabric.session import Session

DEFAULT_SOCKET = "/var/run/epfabric/agent.sock"


def connect(
    socket: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    gpu: str | None = None,
    timeout_s: float = 60.0,
) -> Session:
    """Opens this process's session with the agent of its node.

    socket: the agent's socket, by default EPFABRIC_SOCKET or where the volume is mounted.
    rank, world_size: by default from RANK and WORLD_SIZE, then JOB_COMPLETION_INDEX,
    LWS_WORKER_INDEX, the pod's ordinal. gpu: the UUID of the GPU that this process uses, near which
    its proxies then run and whose NICs they use; by default that of the current CUDA context, and
    none where its agent does not take that one. "": none. timeout_s: bound of connecting and of
    every later wait that is given none. Raises SessionError with what to do.
    """
    try:
        from epfabric_host import _producer
    except ImportError as error:
        raise SessionError(
            "a CPU process needs the native producer: pip install 'epfabric[host]'"
        ) from error

    rank, world_size = rank_and_world(os.environ, sockets.gethostname(), rank, world_size)
    path = socket or os.environ.get("EPFABRIC_SOCKET") or DEFAULT_SOCKET
    deadline = time.monotonic() + timeout_s
    try:
        hello = messages.Hello(
            abi=ABI_VERSION, oldest=ABI_OLDEST, rank=rank, world_size=world_size,
            gpu=gpu_in_use() if gpu is None else gpu or None, pid=os.getpid(),
        )  # fmt: skip
    except messages.MessageError as error:
        raise SessionError(str(error)) from error
    sock, reply, fds = wire.attach(path, hello, deadline, gpu_asked=gpu is not None)
    try:
        try:
            segments = _producer.Segments(
                *fds, reply.rings, reply.depth, reply.signals, reply.world_size
            )
        except (ValueError, OSError) as error:
            raise SessionError(str(error)) from error
        finally:
            for fd in fds:
                os.close(fd)
        return Session(sock, reply, segments, timeout_s)
    except BaseException:
        sock.close()
        raise
