"""What a buffer owns until it is destroyed; for Buffer and ElasticBuffer."""

from __future__ import annotations

from typing import Any

from epfabric.buffer.parts import Parts


class Owned:
    """Made by all ranks together; each destroys its own."""

    explicitly_destroy: bool
    _parts: Parts | None = None

    def destroy(self) -> None:
        """Frees the memory, once the calls of all ranks are over; the buffer is of no use then."""
        if not self.explicitly_destroy:
            raise ValueError("make the buffer with explicitly_destroy=True to call destroy()")
        self._close()

    def __del__(self) -> None:
        if self._parts is not None and not self.explicitly_destroy:
            self._close()

    def _close(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.close()

    @property
    def parts(self) -> Parts:
        """What the buffer is made of; ValueError after destroy()."""
        if self._parts is None:
            raise ValueError("this buffer was destroyed")
        return self._parts

    def get_comm_stream(self) -> Any:
        """The stream of calls that the current stream does not wait for."""
        return self.parts.order.comm
