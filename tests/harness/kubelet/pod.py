"""One pod from volumes to its last status, in a thread of its own; for the kubelet."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.kubelet import plan, status
from harness.kubelet.api import Api, ApiError, Json
from harness.kubelet.container import (
    FIRST_BACKOFF_S,
    LONGEST_BACKOFF_S,
    NEVER,
    Container,
)
from harness.kubelet.drivers import Drivers
from harness.kubelet.plan import Ground
from harness.kubelet.volumes import VolumeError, Volumes

log = logging.getLogger("harness.kubelet")

REFRESH_S = 10.0
STOP_GRACE_S = 5.0


@dataclass(frozen=True)
class Place:
    """Where a pod runs: its node's shared folder and drivers; a folder for its logs and roots."""

    ground: Ground
    host: Path
    drivers: Drivers
    folder: Path


class Pod:
    """`report(pod, reason, message)` writes a warning event."""

    def __init__(
        self, api: Api, pod: Json, place: Place, report: Callable[[Json, str, str], None]
    ) -> None:
        self.object = pod
        metadata = pod["metadata"]
        self.key = (metadata["namespace"], metadata["name"])
        self.uid: str = metadata["uid"]
        self.place = place
        self._api = api
        self._report = report
        self._volumes = Volumes(api, place.host, place.drivers, place.ground.address, pod)
        self._sources: dict[str, Path] = {}
        self._changed = threading.Condition()
        self._news = 0
        self._gone = False
        self._stopping = False
        self._initialized = False
        self._ending = False
        self._sent: Json | None = None
        self._conditions: dict[str, Json] = {}
        self._started = status.stamp()
        spec = pod["spec"]
        self.init, self.main = self._make_containers(spec)
        self._thread = threading.Thread(target=self._live, daemon=True, name=f"pod-{self.key[1]}")
        self._thread.start()

    def update(self, pod: Json) -> None:
        self.object = pod
        self.notify()

    def gone(self) -> None:
        """The object is no longer there."""
        self._gone = True
        self.notify()

    def stop(self) -> None:
        """The kubelet ends: end the processes, leave the object. Wait with `join`."""
        self._stopping = True
        self.notify()

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def uses_driver(self) -> bool:
        return any("csi" in volume for volume in self.object["spec"].get("volumes", []))

    def pids(self) -> list[int]:
        """The first process of each running container."""
        runs = [container.run for container in [*self.init, *self.main]]
        return [run.pid for run in runs if run is not None and run.pid is not None]

    def notify(self) -> None:
        with self._changed:
            self._news += 1
            self._changed.notify_all()

    @property
    def _unwanted(self) -> bool:
        return self._gone or self._stopping or "deletionTimestamp" in self.object["metadata"]

    def _make_containers(self, spec: Json) -> tuple[list[Container], list[Container]]:
        """An init container that restarts always is one that runs beside the main ones."""
        policy = spec.get("restartPolicy", "Always")
        init, main = [], []
        for definition in spec.get("initContainers", []):
            if definition.get("restartPolicy") == "Always":
                main.append(self._container(definition, "Always"))
            else:
                init.append(
                    self._container(definition, "OnFailure" if policy == "Always" else policy)
                )
        main += [self._container(definition, policy) for definition in spec["containers"]]
        return init, main

    def _container(self, definition: Json, policy: str) -> Container:
        name = definition["name"]
        ground = self.place.ground

        def make() -> Json:
            try:
                spec = plan.launch(
                    self.object, definition, ground, self._sources, self._volumes.text
                )
            except VolumeError as error:
                raise plan.PlanError(str(error)) from error
            root = self.place.folder / f"root-{name}"
            root.mkdir(parents=True, exist_ok=True)
            return {**spec, "new_root": str(root), "log": str(self.place.folder / f"{name}.log")}

        run_name = f"{self.uid}/{name}"
        return Container(definition, policy, run_name, make, ground.address, self.notify)

    def _live(self) -> None:
        try:
            self._run()
        except Exception as error:
            log.exception("pod %s/%s: the stand-in kubelet failed", *self.key)
            self._report(self.object, "FailedSync", f"the stand-in kubelet failed: {error!r}")
        self._end_containers()
        self._release()
        while not self._unwanted:
            self._publish()
            self._wait(NEVER)
        self._delete()

    def _run(self) -> None:
        phase = (self.object.get("status") or {}).get("phase")
        if phase in ("Succeeded", "Failed"):
            self._sent = self._status()  # an earlier kubelet's word, which stays
        elif self._mount() and self._initialize():
            self._attend(self.main)

    def _wait(self, until: float) -> None:
        """Until something changed, the time is there, or the object is to be refreshed."""
        with self._changed:
            if self._news == 0:
                self._changed.wait(min(REFRESH_S, max(0.0, until - time.monotonic())))
            self._news = 0

    def _mount(self) -> bool:
        """False when the pod is unwanted before its volumes are there."""
        self.place.folder.mkdir(parents=True, exist_ok=True)
        backoff_s = FIRST_BACKOFF_S
        said = ""
        self._publish()
        while not self._unwanted:
            try:
                self._sources = self._volumes.prepare()
                return True
            except (VolumeError, OSError) as error:
                if str(error) != said:
                    said = str(error)
                    self._report(self.object, "FailedMount", said)
            retry_at = time.monotonic() + backoff_s
            while not self._unwanted and time.monotonic() < retry_at:
                self._wait(retry_at)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)
        return False

    def _initialize(self) -> bool:
        """One init container after the other; False when one failed for good."""
        for container in self.init:
            self._attend([container])
            end = container.state.ended
            if end is None or end.code != 0:
                return False
        self._initialized = True
        return not self._unwanted

    def _attend(self, containers: list[Container]) -> None:
        """Keeps containers as their policy says, until all finished or the pod is unwanted."""
        refresh_at = time.monotonic() + REFRESH_S
        while not self._unwanted:
            now = time.monotonic()
            due = min(container.tick(now) for container in containers)
            self._publish()
            if all(container.finished for container in containers):
                return
            if now >= refresh_at:
                refresh_at = now + REFRESH_S
                self._refresh()
            self._wait(min(due, refresh_at))

    def _refresh(self) -> None:
        try:
            self._volumes.refresh()
        except (VolumeError, OSError) as error:
            log.warning("pod %s/%s: %s", *self.key, error)

    def _end_containers(self) -> None:
        """TERM to all, KILL to what is left when the grace, which may shrink meanwhile, is over."""
        began = time.monotonic()
        running = [(c, c.run) for c in [*self.init, *self.main] if c.run is not None]
        for _, run in running:
            run.term()
        while any(not run.over.is_set() for _, run in running):
            until = began + self._grace_s()
            if time.monotonic() >= until:
                break
            self._wait(until)
        for _, run in running:
            run.kill()
        for container, _ in running:
            container.close()
        self._ending = self._unwanted
        self._publish()

    def _grace_s(self) -> float:
        if self._gone:
            return 0.0
        if self._stopping:
            return STOP_GRACE_S
        return float(self.object["metadata"].get("deletionGracePeriodSeconds") or 0)

    def _release(self) -> None:
        """Gives the volumes back; repeats until done, and says so when it does not work."""
        backoff_s = FIRST_BACKOFF_S
        said = ""
        while True:
            try:
                self._volumes.remove()
                return
            except (VolumeError, OSError) as error:
                if str(error) != said:
                    said = str(error)
                    self._report(self.object, "FailedUnmount", said)
            if self._stopping:
                log.error("pod %s/%s: its volumes stay: %s", *self.key, said)
                return
            self._wait(time.monotonic() + backoff_s)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)

    def _delete(self) -> None:
        """The kubelet's last word on a pod that is being deleted."""
        while not self._gone and not self._stopping:
            body: Json = {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "gracePeriodSeconds": 0,
                "preconditions": {"uid": self.uid},
            }
            try:
                self._api.delete(self._path(), body)
                return
            except ApiError as error:
                if error.code in (404, 409):
                    return
                log.warning("pod %s/%s is not deleted: %s", *self.key, error)
            self._wait(time.monotonic() + FIRST_BACKOFF_S)

    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.key[0]}/pods/{self.key[1]}"

    def _publish(self) -> None:
        """Writes the status if it differs from what was written last."""
        if self._gone or self._stopping:
            return
        wanted = self._status()
        if wanted == self._sent:
            return
        body = {"metadata": {"uid": self.uid}, "status": wanted}
        try:
            self._api.patch(f"{self._path()}/status", body)
            self._sent = wanted
        except ApiError as error:
            if error.code not in (404, 409):
                log.warning("status of pod %s/%s: %s", *self.key, error)

    def _status(self) -> Json:
        init = [c.state for c in self.init]
        main = [c.state for c in self.main]
        policy = self.object["spec"].get("restartPolicy", "Always")
        phase = status.phase(policy, self._initialized, init, main, self._ending)
        found = status.conditions(phase, self._initialized, main)
        self._conditions = status.with_times(found, self._conditions)
        address = self.place.ground.address
        return {
            "phase": phase,
            "hostIP": address,
            "hostIPs": [{"ip": address}],
            "podIP": address,
            "podIPs": [{"ip": address}],
            "startTime": self._started,
            "conditions": [{"type": kind, **value} for kind, value in self._conditions.items()],
            "initContainerStatuses": [status.container_status(state) for state in init],
            "containerStatuses": [status.container_status(state) for state in main],
        }


def descendants(pids: list[int]) -> list[int]:
    """The processes themselves and all below them, by /proc."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parents[int(entry)] = int(text.rpartition(")")[2].split()[1])
    found = list(pids)
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found
