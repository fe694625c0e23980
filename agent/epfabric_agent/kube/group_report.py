"""Writes EPGroups of the groups that this agent coordinates, and reads those of others.

Writing never holds a group up: the newest report of each group waits for the API server. A group
that forms changes with every rank that comes, thousands of times in a large one: that is told of
now and then, what ends the forming at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from epfabric_crds import names
from epfabric_crds.group import BarrierStatistics

from epfabric_agent.groups.state import GroupState
from epfabric_agent.kube import paths
from epfabric_agent.kube.api import Api, ApiError, Object
from epfabric_agent.kube.group_object import Report, coordinator_of, main_part, status_part
from epfabric_agent.peers.client import Agent, PeerClient
from epfabric_agent.pods import Pod

RETRY_S = 1.0
RETRY_MOST_S = 30.0
MAX_TRIES = 20
NOT_FOUND = 404
REFUSED = (403, 422)  # by an admission policy
LAST_S = 3.0
FORMING_S = 5.0
FORGET_S = 60.0  # the statistics of an epoch may come a little after its end
_log = logging.getLogger(__name__)


class GroupReporter:
    """See groups.hub.Reporter. `run()` does the writing."""

    def __init__(
        self,
        api: Api,
        fabric: str,
        own: Callable[[], Agent],
        statistics: Callable[[int], BarrierStatistics | None],
        refused: Callable[[Pod, str, str], None] = lambda pod, code, message: None,
    ) -> None:
        """`statistics`: of the core's barriers, by handle of the epoch. `refused`: see Reporter."""
        self.refused = refused
        self._api = api
        self._fabric = fabric
        self._own = own
        self._statistics = statistics
        self._reports: dict[str, Report] = {}
        self._dirty: set[str] = set()
        self._mains: dict[str, Object] = {}  # as last written
        self._forming: dict[str, tuple[int, float]] = {}  # epoch told of while it formed, and when
        self._wake = asyncio.Event()
        self._one = threading.Lock()

    async def last_epoch(self, pod: Pod) -> int:
        try:
            found = await asyncio.to_thread(self._api.get, paths.group(pod.namespace, pod.group))
        except ApiError as error:
            _log.warning("the epoch of group %s is not known: %s", pod.group_key, error)
            return 0
        return int(((found or {}).get("status") or {}).get("epoch") or 0)

    def state(self, pod: Pod, state: GroupState) -> None:
        known = self._reports.get(pod.group_key)
        report = known.with_state(pod, state) if known else Report(pod, state)
        self._tell(pod.group_key, report)

    def epoch_ended(self, group: str, epoch: int, handle: int) -> None:
        self.refresh(group, epoch, handle)

    def refresh(self, group: str, epoch: int, handle: int) -> None:
        """Takes the epoch's barrier statistics, if the group is coordinated here."""
        known = self._reports.get(group)
        if known is not None:
            self._tell(group, known.with_barriers(epoch, self._statistics(handle)))

    async def find(self, client: PeerClient, group: str) -> Agent | None:
        """The coordinator by the group's EPGroup."""
        namespace, _, name = group.partition("/")
        try:
            found = await asyncio.to_thread(self._api.get, paths.group(namespace, name))
        except ApiError as error:
            _log.warning("the coordinator of group %s is not known: %s", group, error)
            return None
        return coordinator_of(found, self._own().node)

    async def run(self) -> None:
        """Writes what is new, until cancelled; a refused write is tried again."""
        tries: dict[str, int] = {}
        while True:
            await self._wake.wait()
            self._wake.clear()
            failed, soonest_s = 0, RETRY_MOST_S
            for group in sorted(self._dirty):
                if (held_s := self._held_s(group)) > 0:
                    soonest_s = min(soonest_s, held_s)
                    continue
                self._dirty.discard(group)
                if await self._write(group):
                    tries.pop(group, None)
                    continue
                tries[group] = tries.get(group, 0) + 1
                known = self._reports.get(group)
                if known is None or (tries[group] > MAX_TRIES and known.ended):
                    self._reports.pop(group, None)
                    del tries[group]
                    continue
                failed = max(failed, tries[group])
                self._dirty.add(group)
            if self._dirty:
                pause_s = min(RETRY_S * 2 ** (failed - 1), soonest_s) if failed else soonest_s
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause_s)
                self._wake.set()

    async def close(self) -> None:
        """After run(): writes once what is new, such as the end of groups that end with this agent.

        Nobody else would tell of it. Bounded: an absent API server holds no agent up.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                for group in sorted(self._dirty):
                    await self._write(group)

    def _held_s(self, group: str) -> float:
        """Seconds until the group may be written."""
        report, told = self._reports.get(group), self._forming.get(group)
        if report is None or report.state.phase != "Forming" or told is None:
            return 0.0
        epoch, when = told
        since_s = asyncio.get_running_loop().time() - when
        return FORMING_S - since_s if epoch == report.state.epoch else 0.0

    async def _write(self, group: str) -> bool:
        report = self._reports.get(group)
        if report is None:  # forgotten while another one was being written
            return True
        try:
            await asyncio.to_thread(self._apply_alone, group, report)
        except asyncio.CancelledError:
            self._dirty.add(group)  # it may fail yet: close() writes it once more
            raise
        except ApiError as error:
            self._mains.pop(group, None)  # it may be gone: then it is made anew
            _log.warning("group %s was not written: %s", group, error)
            return False
        loop = asyncio.get_running_loop()
        self._forming.pop(group, None)
        if report.state.phase == "Forming":
            self._forming[group] = (report.state.epoch, loop.time())
        if report.ended:
            loop.call_later(FORGET_S, self._forget, group, report.state.epoch)
        return True

    def _forget(self, group: str, epoch: int) -> None:
        known = self._reports.get(group)
        if known is not None and known.ended and known.state.epoch == epoch:
            del self._reports[group]
            self._mains.pop(group, None)
            self._dirty.discard(group)

    def _apply_alone(self, group: str, report: Report) -> None:
        """A write in which run() was cancelled goes on, and must not be the last one."""
        with self._one:
            self._apply(group, report)

    def _apply(self, group: str, report: Report) -> None:
        path = paths.group(report.pod.namespace, report.pod.group)
        main = main_part(report, self._fabric)
        status = status_part(report, self._own())
        if self._mains.get(group) != main:
            try:
                self._api.apply(path, main, names.AGENT_MANAGER)
            except ApiError as error:
                if error.status not in REFUSED:
                    raise
                # It is another's, who is lost: a greater epoch makes it ours.
                self._take(path + "/status", status, error)
                self._api.apply(path, main, names.AGENT_MANAGER)
            self._mains[group] = main
        self._api.apply(path + "/status", status, names.AGENT_MANAGER)

    def _take(self, path: str, status: Object, refused: ApiError) -> None:
        try:
            self._api.apply(path, status, names.AGENT_MANAGER)
        except ApiError as error:
            raise refused if error.status == NOT_FOUND else error from None

    def _tell(self, group: str, report: Report) -> None:
        if self._reports.get(group) != report:
            self._reports[group] = report
            self._dirty.add(group)
            self._wake.set()
