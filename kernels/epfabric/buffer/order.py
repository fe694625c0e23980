"""On which stream a call of a buffer runs, and after what; for the calls of both buffers."""

from __future__ import annotations

from typing import Any

from epfabric.buffer.event import EventHandle, EventOverlap
from epfabric.cuda.rank import checked


class Order:
    """Calls of one buffer run one after another, whatever streams they are made on.

    A call runs on torch's current stream, or, when it need not be waited for, on `comm`. Replays of
    a CUDA graph are not seen here: their order is that of the streams they are launched on.
    """

    def __init__(self) -> None:
        import torch
        from cuda.bindings import driver

        self._cuda = torch.cuda
        self._device = torch.cuda.current_device()
        self._raw_stream = torch._C._cuda_getCurrentRawStream
        self._current: Any = None  # as it was when it was last asked for
        self._context = int(checked(driver.cuCtxGetCurrent()))
        spare = _SPARE.setdefault(self._context, [])
        self.comm = spare.pop() if spare else _new_stream()
        self._last: int | None = None  # the stream of the last call
        self._done = torch.cuda.Event()  # its end
        self._captured = False  # the last call was captured into a graph

    def begin(self, aside: bool, after: EventOverlap | None = None) -> Any:
        """The stream to launch on; aside: on `comm`, after `after` or what was current before."""
        current = self._current_stream()
        stream = self.comm if aside else current
        event = after.event if after is not None else None
        if event is not None:
            stream.wait_event(event.event)
        elif aside:
            stream.wait_stream(current)
        elsewhere = self._last is not None and self._last != stream.cuda_stream
        if elsewhere and self._captured == self._cuda.is_current_stream_capturing():
            stream.wait_event(self._done)
        return stream

    def end(self, stream: Any, aside: bool, alive: tuple[Any, ...] = ()) -> EventOverlap:
        """After the launch; alive: tensors that the event keeps, and torch until both streams are
        done with them (a graph keeps its own memory)."""
        self._done.record(stream)
        self._last = stream.cuda_stream
        self._captured = self._cuda.is_current_stream_capturing()
        if not aside:
            return EventOverlap()
        if not self._captured:
            for tensor in alive:
                if tensor is not None:
                    tensor.record_stream(stream)
                    tensor.record_stream(self._current_stream())
        return EventOverlap(EventHandle(stream), alive)

    def _current_stream(self) -> Any:
        """torch's, of this buffer's GPU; asking for its handle alone takes the host microseconds
        less."""
        handle = self._raw_stream(self._device)
        if self._current is None or self._current.cuda_stream != handle:
            self._current = self._cuda.current_stream(self._device)
        return self._current

    def close(self) -> None:
        """After the last call. The stream is left for the next buffer: torch may still ask it, when
        tensors are freed, whether it is done with them."""
        _SPARE[self._context].append(self.comm)


_SPARE: dict[int, list[Any]] = {}  # streams of buffers that are gone, by context


def _new_stream() -> Any:
    """Not one of torch's own: those share the GPU's few queues with many others."""
    import torch
    from cuda.bindings import driver

    not_blocking, priority = 1, checked(driver.cuCtxGetStreamPriorityRange())[1]
    own = checked(driver.cuStreamCreateWithPriority(not_blocking, priority))
    return torch.cuda.ExternalStream(int(own))
