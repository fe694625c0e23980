"""What the API server refuses, and in which words; a step of the demo."""

from __future__ import annotations

import copy
import json
from typing import Any

import yaml
from harness.demo.checks import Wrong
from harness.demo.site import EXAMPLES, Site


def show(site: Site) -> None:
    """Three mistakes that people make; each must be refused with a sentence."""
    site.show.step("make three mistakes on purpose")
    pod = template()
    fabric = yaml.safe_load((EXAMPLES / "moe.yaml").read_text())
    wrong = copy.deepcopy(fabric)
    wrong["spec"]["proxies"]["perGPU"] = -1
    misspelt = copy.deepcopy(pod)
    misspelt["metadata"]["annotations"]["epfabric.io/fabric"] = "meo"
    elsewhere = copy.deepcopy(pod)
    elsewhere["metadata"]["namespace"] = "default"
    namespace = yaml.safe_load_all((EXAMPLES / "moe-job.yaml").read_text())
    site.kubectl("apply", "-f", "-", stdin=json.dumps(next(iter(namespace))))
    refused(site, "a fabric with -1 proxies", wrong, "perGPU")
    refused(site, "a pod that names the fabric `meo`", misspelt, "meo")
    refused(site, "a pod in a namespace that may not opt in", elsewhere, "namespace")


def template() -> dict[str, Any]:
    """The pod of the example's job."""
    objects = yaml.safe_load_all((EXAMPLES / "moe-job.yaml").read_text())
    job = next(item for item in objects if item["kind"] == "Job")
    pod: dict[str, Any] = copy.deepcopy(job["spec"]["template"])
    pod |= {"apiVersion": "v1", "kind": "Pod"}
    pod["metadata"] |= {"name": "mistake", "namespace": job["metadata"]["namespace"]}
    return pod


def refused(site: Site, what: str, manifest: dict[str, Any], word: str) -> None:
    done = site.cluster.try_kubectl(
        "create", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest)
    )
    if done.returncode == 0:
        raise Wrong(f"{what} was not refused")
    if word not in done.stderr:
        raise Wrong(f"the refusal of {what} does not mention {word!r}: {done.stderr}")
    site.show.note(f"{what}:\n  {done.stderr.strip()}")
