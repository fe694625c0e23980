"""A TCP relay to the API server that a test can cut; used where an operator loses its network."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    """Listens on loopback. While it is cut, bytes vanish and nobody is told."""

    def __init__(self, host: str, port: int) -> None:
        self._far = (host, port)
        self._lock = threading.Lock()
        self._cut = False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True, name="relay").start()

    def cut(self) -> None:
        with self._lock:
            self._cut = True

    def close(self) -> None:
        with self._lock:
            self._cut = True
            sockets = [self._listener, *self._sockets]
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._far, timeout=10)
                far.settimeout(None)
                with self._lock:
                    self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self._lock:
                    lost = self._cut
                if not lost:
                    sink.sendall(data)
            with self._lock:
                lost = self._cut
            if not lost:
                sink.shutdown(socket.SHUT_RDWR)
