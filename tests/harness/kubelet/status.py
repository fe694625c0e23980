"""The status of a pod from the states of its containers; pure, for the kubelet's pods."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.kubelet.plan import Json


@dataclass(frozen=True)
class Ended:
    code: int
    reason: str
    message: str
    started: str
    finished: str
    run_id: str


@dataclass(frozen=True)
class State:
    """What is known of one container. Waiting when neither running nor ended.

    `ended` is its current state, `last` the end of the run before.
    """

    name: str
    image: str
    reason: str = "ContainerCreating"
    message: str = ""
    running_since: str = ""
    run_id: str = ""
    ended: Ended | None = None
    last: Ended | None = None
    restarts: int = 0
    started: bool = False
    ready: bool = False

    @property
    def running(self) -> bool:
        return bool(self.running_since)

    def waits(self, reason: str, message: str = "") -> State:
        return replace(
            self,
            reason=reason,
            message=message,
            running_since="",
            ended=None,
            last=self.ended or self.last,
            started=False,
            ready=False,
        )

    def runs(self, run_id: str) -> State:
        return replace(
            self, running_since=stamp(), run_id=run_id, ended=None, last=self.ended or self.last
        )

    def ends(self, code: int, reason: str, message: str) -> State:
        started = self.running_since or stamp()
        end = Ended(code, reason, message, started, stamp(), self.run_id)
        return replace(self, running_since="", ended=end, started=False, ready=False)


def stamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def container_status(state: State) -> Json:
    made: Json = {
        "name": state.name,
        "image": state.image,
        "imageID": "",
        "containerID": f"process://{state.run_id}" if state.run_id else "",
        "restartCount": state.restarts,
        "started": state.started,
        "ready": state.ready,
        "lastState": {"terminated": terminated(state.last)} if state.last else {},
    }
    if state.running:
        made["state"] = {"running": {"startedAt": state.running_since}}
    elif state.ended is not None:
        made["state"] = {"terminated": terminated(state.ended)}
    else:
        waiting = {"reason": state.reason}
        if state.message:
            waiting["message"] = state.message[:1000]
        made["state"] = {"waiting": waiting}
    return made


def terminated(end: Ended) -> Json:
    made: Json = {
        "exitCode": end.code,
        "reason": end.reason,
        "startedAt": end.started,
        "finishedAt": end.finished,
        "containerID": f"process://{end.run_id}",
    }
    if end.message:
        made["message"] = end.message[:1000]
    return made


def phase(
    policy: str, initialized: bool, init: Sequence[State], main: Sequence[State], ending: bool
) -> str:
    """As kubelets decide it; `ending`: the pod is being deleted and will not start again."""
    failed_init = any(s.ended is not None and s.ended.code != 0 for s in init)
    if not initialized:
        return "Failed" if failed_init and (policy == "Never" or ending) else "Pending"
    if any(s.running for s in main):
        return "Running"
    if all(s.ended is None and s.last is None for s in main):
        return "Pending"
    if any(s.ended is None for s in main):
        return "Running"
    codes = [s.ended.code for s in main if s.ended is not None]
    if ending or policy == "Never":
        return "Failed" if any(codes) else "Succeeded"
    if policy == "OnFailure":
        return "Running" if any(codes) else "Succeeded"
    return "Running"


def conditions(pod_phase: str, initialized: bool, main: Sequence[State]) -> dict[str, Json]:
    """Type → status and reason, without times."""
    over = pod_phase in ("Succeeded", "Failed")
    unready = [s.name for s in main if not s.ready]
    ready: Json = {"status": "False" if unready else "True"}
    if over:
        ready = {
            "status": "False",
            "reason": "PodCompleted" if pod_phase == "Succeeded" else "PodFailed",
        }
    elif unready:
        ready["reason"] = "ContainersNotReady"
        ready["message"] = f"containers with unready status: [{' '.join(unready)}]"
    first: Json = {"status": "True"} if initialized else {"status": "False"}
    if not initialized:
        first["reason"] = "ContainersNotInitialized"
    return {"Initialized": first, "ContainersReady": ready, "Ready": ready}


def with_times(found: dict[str, Json], before: dict[str, Json]) -> dict[str, Json]:
    """Keeps the time of every condition whose status stayed."""
    timed = {}
    for kind, condition in found.items():
        old = before.get(kind)
        same = old is not None and old["status"] == condition["status"]
        when = old["lastTransitionTime"] if same and old is not None else stamp()
        empty = {"reason": None, "message": None}  # a merge patch removes what is None
        timed[kind] = {**empty, **condition, "lastTransitionTime": when}
    return timed
