"""Events of the stream that a buffer's calls run on; for the buffers and their users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class EventHandle:
    """A point of a stream of torch: of the current one if none is given."""

    def __init__(self, stream: Any = None) -> None:
        import torch

        self.event = torch.cuda.Event()
        self.event.record(stream if stream is not None else torch.cuda.current_stream())

    def current_stream_wait(self) -> None:
        """Work that is given to the current stream from now on waits for the point."""
        import torch

        torch.cuda.current_stream().wait_event(self.event)


class EventOverlap:
    """An EventHandle (or none) and what must stay alive until its point is reached.

    As a context: the current stream waits at its end.
    """

    def __init__(
        self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None
    ) -> None:
        self.event = event
        self.extra_tensors = extra_tensors
        self._after: Callable[[], Any] | None = None
        self._release = False

    def current_stream_wait(self, release_handle: bool = False) -> Any:
        """Returns what the hook returned, if there was one."""
        if self.event is None:
            raise ValueError(
                "nothing to wait for: the call was made without async_finish (of an ElasticBuffer: "
                "async_with_compute_stream)"
            )
        self.event.current_stream_wait()
        after, self._after = self._after, None
        result = after() if after is not None else None
        if release_handle:
            self.event = self.extra_tensors = None
        return result

    def wait(self) -> Any:
        return self.current_stream_wait()

    def register_hook_after_wait(self, hook_after_wait: Callable[[], Any]) -> None:
        """Is called once, by the next wait."""
        if self._after is not None:
            raise ValueError("there is a hook already")
        self._after = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        self._release = release_handle
        return self

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_: object) -> None:
        if self.event is not None:
            self.current_stream_wait(release_handle=self._release)
        self._release = False
