"""A rank's session with the agent of its node: what epfabric.connect() returns."""

from __future__ import annotations

import contextlib
import os
import queue
import socket as sockets
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from epfabric import messages, wire
from epfabric.broker import Broker
from epfabric.errors import GroupFailed, SessionError, Timeout
from epfabric.failure import Failure, wait_until
from epfabric.lending import Lending, Loan
from epfabric.region import Region, make_memfd
from epfabric.ring import Ring
from epfabric.trial import Cuda, Maker, Trial
from epfabric.watch import Answer, Watch

if TYPE_CHECKING:
    from epfabric_host import _producer

    from epfabric.cuda.gpu_region import GpuRegion

_LEAVE_TIMEOUT_S = 30.0
_ANSWER_MARGIN_S = 10.0
_OPEN_S = 60.0  # once all ranks are there; the agent's bound and a margin

R = TypeVar("R", bound=messages.Reply)
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


class Session:
    """One rank of one group. Made by connect(); ends with close(), or as a context manager.

    Leaving the with-block by an exception ends the session without the orderly leave, so that
    the other ranks learn at once that this one is lost.
    """

    def __init__(
        self,
        sock: sockets.socket,
        hello: messages.HelloReply,
        segments: _producer.Segments,
        timeout_s: float,
    ) -> None:
        self._sock = sock
        self._segments = segments
        self._timeout_s = timeout_s
        self._hello = hello
        self._failure = Failure(hello.node)
        self._rings: dict[int, Ring] = {}
        self.lending = Lending(hello.rings, hello.signals)
        self._drained: dict[int, int] = {}
        self._closed = False
        self._asking = threading.RLock()
        self._joining = False
        self._joined: messages.Reply | None = None
        self._watch = Watch(
            sock, hello.node, self._failure, segments.heartbeat, segments.set_pod_abort
        )
        self._maker: Maker = Cuda()
        self.broker = Broker(self._exchange)
        self.epoch: int | None = None
        self.region_bytes: tuple[int, ...] = ()
        _sessions.add(self)

    @property
    def rank(self) -> int:
        return self._hello.rank

    @property
    def world_size(self) -> int:
        return self._hello.world_size

    @property
    def rings(self) -> int:
        """How many rings the session has."""
        return self._hello.rings

    @property
    def signals(self) -> int:
        """How many signal words each (writing rank, ring) has."""
        return self._hello.signals

    @property
    def depth(self) -> int:
        """Slots of one ring."""
        return self._hello.depth

    @property
    def node(self) -> str:
        return self._hello.node

    @property
    def group(self) -> str:
        return self._hello.group

    @property
    def fabric(self) -> str:
        return self._hello.fabric

    @property
    def nvlink(self) -> tuple[messages.NvlinkKind, str]:
        """How this rank reaches the GPU memory of its node's other ranks, posix_fd or none; why."""
        return self.broker.nvlink

    def register(self, size_bytes: int) -> Region:
        """Makes memory that other ranks may write and this rank may send from; before join()."""
        self._before_join()
        fd, array = make_memfd(size_bytes)
        return Region(self._register("memfd", fd, array.nbytes), array[:size_bytes])

    def register_gpu(self, size_bytes: int) -> GpuRegion:
        """The same in memory of the current context's GPU, from and to which NICs move it by
        themselves. Raises SessionError where the GPU, its driver or the node's NICs cannot."""
        from epfabric.cuda.gpu_region import made

        self._before_join()
        return made(size_bytes, lambda fd, whole: self._register("dmabuf", fd, whole))

    def _register(self, kind: str, fd: int, size_bytes: int) -> int:
        """Where it begins; the descriptor is closed."""
        try:
            request = messages.Register(kind=kind, bytes=size_bytes)
            return self._ask(request, messages.RegisterReply, self._timeout_s, fds=(fd,)).offset
        finally:
            os.close(fd)

    def _before_join(self) -> None:
        if self.epoch is not None:
            raise SessionError("register comes before join(): peers were told all regions there")

    def join(self) -> None:
        """Waits until all ranks of the group are there; bounded by the fabric's joinTimeout.

        Where a CUDA context is current, the ranks of the node try each other's GPU memory before.
        """
        if self.epoch is not None:
            raise SessionError("this session has joined its group already")
        limit = self._hello.join_timeout_ms / 1000 + _OPEN_S
        trial = Trial(self.broker, self.rank, self._maker)
        with self._asking, trial, self._in_step():
            self._send(messages.Join())
            self._joining = True
            while self._joining:
                reply, _ = self._next(messages.Join.TYPE, limit)
                if isinstance(reply, messages.Trial):
                    limit = _OPEN_S
                    trial.run(reply.ranks)
                else:
                    self._joined, self._joining = reply, False
            assert self._joined is not None
            joined = wire.expect(self._joined, messages.JoinReply)
        self.broker.nvlink, self.broker.neighbours = trial.result, trial.ranks
        self.epoch = joined.epoch
        self.region_bytes = joined.regions

    def ring(self, index: int) -> Ring:
        """The ring with this index, from 0."""
        self._check_open()
        self.lending.check(index)
        if index not in self._rings:
            from epfabric_host import _producer

            native = _producer.Ring(self._segments, index, self._hello.batch)
            self._rings[index] = Ring(native, index, self._failure, self._timeout_s)
        return self._rings[index]

    def lend(self, words: int) -> tuple[Loan, int, int]:
        """To kernels, until lending.back(): what they get, where the pod's and the agent's segment
        lie."""
        self._check_open()
        return self.lending.take(words, self._rings), *self._segments.addresses

    def signal_value(self, src_rank: int, ring: int, index: int) -> int:
        """A signal word that (src_rank, ring) writes at this rank; what it announces is visible."""
        self._check_open()
        return self._segments.signal(src_rank, ring, index)

    def wait_signal(
        self, src_rank: int, ring: int, index: int, at_least: int, timeout_s: float | None = None
    ) -> bool:
        """Waits until a signal word has reached at_least. Raises Timeout or GroupFailed.

        False: src_rank is masked and its word did not get there. What it had under way may come
        until the next barrier returns; nothing does after that.
        """
        self._check_open()
        segments = self._segments
        return wait_until(
            lambda ns: segments.wait_signal(src_rank, ring, index, at_least, ns),
            self._failure,
            self._timeout_s if timeout_s is None else timeout_s,
            f"signal {index} of rank {src_rank}, ring {ring}, to reach {at_least}",
        )

    def masked_ranks(self) -> frozenset[int]:
        """Lost ranks that the group goes on without (onRankLoss: Mask); it only grows.

        What is written to them completes without effect. Whoever leaves a barrier in which a rank
        was not, sees that rank here.
        """
        self._check_open()
        return frozenset(self._segments.masked())

    def barrier(self, timeout_s: float | None = None, *, rail: bool = False) -> None:
        """Returns when every rank that is not masked is here and all earlier writes are readable.

        rail: only the ranks that have this one's place on their nodes (its rail) wait for each
        other, without the other ranks of the nodes.

        Drains each ring that was used since the last barrier, then enters. The default bound is
        the fabric's barrier timeout with a margin.
        """
        self._check_open()
        if self.epoch is None:
            raise SessionError("barrier() comes after join()")
        if timeout_s is None:
            timeout_s = self._hello.barrier_timeout_ms / 1000 + _ANSWER_MARGIN_S
        gate = self.ring(0)
        drains = []
        for ring in self._rings.values():
            if ring.next_ticket != self._drained.get(ring.index, 0):
                drains.append((ring, ring.drain()))
                ring.flush()
        for ring, ticket in drains:
            ring.wait(ticket, timeout_s, f"the writes of ring {ring.index} before the barrier")
            self._drained[ring.index] = ring.next_ticket
        gate.wait(gate.push_barrier(rail), timeout_s, "the other ranks to enter the barrier")
        self._drained[0] = gate.next_ticket

    def when_failed(self, call: Callable[[str], None]) -> Callable[[], None]:
        """call(reason) once, from any thread, when the session fails or is aborted; at once where
        it has failed. Returns what takes it back. close() calls nothing."""
        return self._failure.when_set(call)

    def close(self) -> None:
        """Leaves the group: outstanding commands end first, the other ranks go on."""
        if self._closed:
            return
        try:
            if not self._failure.happened:
                for ring in self._rings.values():
                    ring.flush()
                self._ask(messages.Leave(), messages.LeaveReply, _LEAVE_TIMEOUT_S)
        except GroupFailed:
            pass  # nothing is left to leave
        finally:
            self._end()

    def abort(self) -> None:
        """Ends the session at once: the group fails, and every wait of this rank with it."""
        if not self._closed:
            self._end(aborted=True)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _ask(
        self, request: messages.Request, expected: type[R], timeout_s: float,
        fds: tuple[int, ...] = (),
    ) -> R:  # fmt: skip
        return self._exchange(request, expected, timeout_s, fds)[0]

    def _exchange(
        self, request: messages.Request, expected: type[R], timeout_s: float,
        fds: tuple[int, ...] = (),
    ) -> tuple[R, tuple[int, ...]]:  # fmt: skip
        """The answer and its descriptors, which are the caller's."""
        with self._asking, self._in_step():
            self._send(request, fds)
            reply, found = self._next(request.TYPE, timeout_s)
            if self._joining and wire.ends_join(reply):  # the agent waits for a trial no longer
                self._joined, self._joining = reply, False
                reply, found = self._next(request.TYPE, timeout_s)
        try:
            return wire.expect(reply, expected), found
        except SessionError:
            wire.close_all(found)
            raise

    @contextlib.contextmanager
    def _in_step(self) -> Iterator[None]:
        """Where a request is interrupted, the session ends: what is answered later would be taken
        for another request's answer."""
        try:
            yield
        except SessionError:
            raise
        except BaseException:
            self.abort()
            raise

    def _send(self, request: messages.Request, fds: tuple[int, ...] = ()) -> None:
        self._check_open()
        if self._failure.happened:
            raise self._failure.error()
        wire.send(self._sock, request, fds)

    def _next(self, what: str, timeout_s: float) -> Answer:
        try:
            answer = self._watch.answer(timeout_s)
        except queue.Empty:
            self.abort()
            raise Timeout(
                f"the agent of node {self.node} did not answer {what} in {timeout_s:g} s"
            ) from None
        if answer is None:
            raise self._failure.error()
        return answer

    def _check_open(self) -> None:
        if self._closed:
            raise SessionError("this session is closed")

    def _end(self, *, aborted: bool = False) -> None:
        self._closed = True
        self.broker.end()
        self._failure.close(aborted=aborted)
        if self._segments.attached:
            self._segments.set_pod_abort()  # ends the waits of other threads
        self._watch.stop()
        self._sock.close()

    def _forget(self) -> None:
        """In a forked child: lets go of everything without a word to the agent."""
        self._closed = True
        self._segments.detach()
        self._sock.close()


def _forget_all() -> None:
    for session in list(_sessions):
        session._forget()


os.register_at_fork(after_in_child=_forget_all)
