"""A pod's connection whose process has ended while another one still holds the socket."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from epfabric_agent.session.packets import Closed, Connection, Orphaned
from epfabric_agent.session.pod_thread import PodThread

WAIT_S = 30.0
HOLDER = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
if os.fork() == 0:
    sys.stdin.read()
os._exit(0)
"""


@asynccontextmanager
async def orphan(
    folder: Path, orphan_s: float
) -> AsyncIterator[tuple[Connection, subprocess.Popen[bytes]]]:
    """Its process has ended; a child holds the socket until `stdin` is closed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "sock"))
        listener.listen()
        listener.settimeout(WAIT_S)
        command = [sys.executable, "-c", HOLDER, str(folder / "sock")]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            connection = Connection(listener.accept()[0], PodThread(), orphan_s)
            try:
                yield connection, process
            finally:
                await connection.close()


async def test_nobody_is_said_to_hold_a_socket_that_is_closed_soon_after_its_process_ended(
    tmp_path: Path,
) -> None:
    async with orphan(tmp_path, WAIT_S) as (connection, process):
        received = asyncio.create_task(connection.receive())
        async with asyncio.timeout(WAIT_S):
            while not connection.hung_up():
                await asyncio.sleep(0.01)
        await asyncio.sleep(0)  # what was to be said at once is said now
        assert not received.done()
        assert process.stdin is not None
        process.stdin.close()
        with pytest.raises(Closed, match="end of file") as told:
            await asyncio.wait_for(received, WAIT_S)
        assert not isinstance(told.value, Orphaned)


async def test_a_socket_that_another_process_holds_is_not_waited_for(tmp_path: Path) -> None:
    async with orphan(tmp_path, 0.05) as (connection, _):
        with pytest.raises(Orphaned):
            await asyncio.wait_for(connection.receive(), WAIT_S)
