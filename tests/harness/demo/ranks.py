"""The exchange in the cluster: eight pods of a restricted namespace, watched and checked."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import yaml
from harness import images
from harness.demo import checks, memory
from harness.demo.checks import Work, Wrong
from harness.demo.site import EXAMPLES, Site
from harness.demo.wires import Sampler

NAMESPACE = JOB = "moe"
SELECTOR = "app=moe"
PODS_SECONDS = 60.0
RUN_SECONDS = 300.0


def create(site: Site, work: Work) -> None:
    """Applies examples/moe-job.yaml and waits until all pods are there."""
    site.show.step(f"create {work.world_size} annotated pods in a namespace that is `restricted`")
    objects = list(yaml.safe_load_all((EXAMPLES / "moe-job.yaml").read_text()))
    for manifest in objects:
        if manifest["kind"] == "Job":
            container = manifest["spec"]["template"]["spec"]["containers"][0]
            container["command"] += work.arguments()
            container["image"] = images.reference("client")
        site.show.note(site.kubectl("apply", "-f", "-", stdin=json.dumps(manifest)))
    deadline = time.monotonic() + PODS_SECONDS
    while len(pods := site.pods(NAMESPACE, SELECTOR)) < work.world_size:
        if time.monotonic() > deadline:
            events = site.kubectl("get", "events", "-n", NAMESPACE)
            raise Wrong(f"only {len(pods)} of {work.world_size} pods exist\n{events}")
        time.sleep(0.25)
    show_injection(site, pods[0])


def show_injection(site: Site, pod: dict[str, Any]) -> None:
    """What admission added to a pod."""
    spec = pod["spec"]
    container = spec["containers"][0]
    added = {
        "nodeSelector": spec.get("nodeSelector"),
        "volumes": [volume for volume in spec["volumes"] if "csi" in volume],
        "volumeMounts": [m for m in container["volumeMounts"] if m["name"] == "epfabric"],
        "env": [e for e in container["env"] if e["name"].startswith("EPFABRIC_")],
    }
    if not all(added.values()):
        raise Wrong(f"admission did not add all: {added}")
    site.show.note(f"admission added to pod {pod['metadata']['name']}:")
    site.show.note(yaml.safe_dump(added, sort_keys=False))


def exchange(site: Site, work: Work) -> tuple[list[dict[str, Any]], dict[tuple[str, str], int]]:
    """Waits for the job to complete; returns the ranks' results and what the kernel counted."""
    site.show.step("exchange tokens and run barriers")
    seen: dict[str, memory.Mapped] = {}
    agents: dict[str, memory.Mapped] = {}
    with Sampler(site.agents, site.networks) as sampler:
        deadline = time.monotonic() + RUN_SECONDS
        while not finished(site):
            if time.monotonic() > deadline:
                raise Wrong(f"the job did not complete in {RUN_SECONDS:.0f} s\n{logs(site)}")
            look_at_memory(site, seen, agents)
            time.sleep(0.2)
    results = []
    for pod in site.pods(NAMESPACE, SELECTOR):
        name = pod["metadata"]["name"]
        results.append(checks.result_of(site.logs(pod), name))
    results.sort(key=lambda result: int(result["rank"]))
    checks.check_results(results, work)
    site.show.note(pace(results, work))
    shared = memory.check_apart(list(seen.values()), list(agents.values()))
    if len(seen) < work.world_size or not shared:
        raise Wrong(f"looked at the memory of {len(seen)} ranks, {shared} files shared with agents")
    site.show.note(
        f"{len(seen)} ranks map {shared} memory files of their own node's agent, "
        "none of another's, and no code of the agent"
    )
    return results, sampler.carried()


def pace(results: list[dict[str, Any]], work: Work) -> str:
    """How fast it went, by the ranks' own clocks."""
    seconds = max(result["exchange_seconds"] for result in results)
    commands = sum(result["commands"] for result in results)
    verified = sum(result["bytes_verified"] for result in results)
    barriers = max(result["barrier_seconds"] for result in results)
    return (
        f"{work.iterations} rounds of dispatch and combine of {work.tokens} tokens a rank in "
        f"{seconds:.2f} s: {commands / seconds:,.0f} commands/s, "
        f"{verified:,} bytes verified by the ranks\n"
        f"{work.barriers:,} barriers in {barriers:.2f} s"
    )


def look_at_memory(
    site: Site, seen: dict[str, memory.Mapped], agents: dict[str, memory.Mapped]
) -> None:
    """Keeps the fullest view of each rank, and of the agents together with it."""
    for pod in site.pods(NAMESPACE, SELECTOR):
        name = pod["metadata"]["name"]
        for pid in site.pids(pod):
            with contextlib.suppress(OSError):
                view = memory.mapped(f"pod {name}", pod["spec"]["nodeName"], pid)
                if len(view.memory) >= len(seen.get(name, view).memory):
                    seen[name] = view
    for pid, node in site.agents().items():
        with contextlib.suppress(OSError):
            view = memory.mapped(f"agent of {node}", node, pid)
            if len(view.memory) >= len(agents.get(node, view).memory):
                agents[node] = view


def finished(site: Site) -> bool:
    """Wrong when the job failed."""
    conditions = site.get("job", JOB, "-n", NAMESPACE)["status"].get("conditions", [])
    true = {condition["type"] for condition in conditions if condition["status"] == "True"}
    if "Failed" in true:
        raise Wrong(f"the job failed\n{logs(site)}")
    return "Complete" in true


def logs(site: Site) -> str:
    """The end of every rank's log."""
    parts = []
    for pod in site.pods(NAMESPACE, SELECTOR):
        name = pod["metadata"]["name"]
        parts.append(f"--- {name} ({pod['status'].get('phase')})")
        parts.append(site.logs(pod)[-1500:])
    return "\n".join(parts)


def delete(site: Site) -> None:
    site.show.note(site.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s"))
