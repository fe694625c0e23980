"""`epfabric-operator crds|uninstall|check`: the chores' command line; called by main.py."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import yaml
from epfabric_crds import names

from epfabric_operator import logs
from epfabric_operator.chores import definitions, leaving, selfcheck
from epfabric_operator.chores.leaving import Leave
from epfabric_operator.chores.outcome import Refused, Unfinished, persist
from epfabric_operator.kube import ApiError, Kube, load_client

CHORES = ("crds", "uninstall", "check")
DONE, FAILED, NO_ACCESS = 0, 1, 4
EPILOG = """\
exit codes:
  0  done
  1  refused, or not finished in time; the last lines say why and what to do
  2  wrong command line
  4  no access to the cluster, or a request was refused
"""


def parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--timeout-seconds", type=_seconds, default=60.0, help="for the whole (1 to 3600)"
    )
    shared.add_argument(
        "--kubeconfig",
        default=os.environ.get("KUBECONFIG") or None,
        help="kubeconfig; without it the pod's service account (env KUBECONFIG)",
    )
    shared.add_argument(
        "--namespace",
        default=os.environ.get("EPFABRIC_NAMESPACE", names.NAMESPACE),
        help=f"the operator's (env EPFABRIC_NAMESPACE, default {names.NAMESPACE})",
    )
    shared.add_argument(
        "--nodes-namespace",
        default=os.environ.get("EPFABRIC_NODES_NAMESPACE", names.NODES_NAMESPACE),
        help=f"the agents' (env EPFABRIC_NODES_NAMESPACE, default {names.NODES_NAMESPACE})",
    )
    look: Any = {"epilog": EPILOG, "formatter_class": argparse.RawDescriptionHelpFormatter}
    made = argparse.ArgumentParser(prog="epfabric-operator", **look)
    chores = made.add_subparsers(dest="chore", required=True)

    crds = chores.add_parser(
        "crds", parents=[shared], help="EPFabric's CustomResourceDefinitions", **look
    )
    crds.add_argument(
        "action",
        choices=["apply", "print"],
        help="apply by server-side apply, refusing to drop a stored version, and wait until"
        " they are served; or print them as YAML",
    )
    uninstall = chores.add_parser(
        "uninstall", parents=[shared], help="take EPFabric out of the cluster", **look
    )
    uninstall.add_argument(
        "step",
        choices=["prepare", "finish"],
        help="prepare, before the chart goes: fabrics, bindings, labels, groups, refused while pods"
        " use a fabric; finish, after it: certificates, Leases, and the definitions if asked for",
    )
    uninstall.add_argument(
        "--release", default="epfabric", help="name of the Helm release (default epfabric)"
    )
    uninstall.add_argument(
        "--revision", type=int, default=1, help="that the release has, for what to do (default 1)"
    )
    uninstall.add_argument(
        "--force", action="store_true", help="prepare: delete the pods that use a fabric"
    )
    uninstall.add_argument(
        "--delete-crds", action="store_true", help="finish: delete the definitions too"
    )
    uninstall.add_argument(
        "--delete-nodes-namespace", action="store_true", help="finish: delete that namespace too"
    )
    chores.add_parser("check", parents=[shared], help="ask whether all of it works", **look)
    return made


def main(arguments: Sequence[str]) -> int:
    given = parser().parse_args(arguments)
    logs.configure("text", "info")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))
    if given.chore == "crds" and given.action == "print":
        print(yaml.safe_dump_all(definitions.shipped(), sort_keys=False), end="")
        return DONE
    try:
        kube = Kube(load_client(given.kubeconfig, given.chore))
        return persist(lambda left_s: do(given, kube, left_s), given.timeout_seconds)
    except (Refused, Unfinished) as error:
        return told(str(error), FAILED)
    except ApiError as error:
        return told(str(error), NO_ACCESS)


def do(given: argparse.Namespace, kube: Kube, left_s: float) -> int:
    if given.chore == "crds":
        definitions.apply(kube, left_s)
    elif given.chore == "uninstall":
        leave = Leave(
            given.namespace,
            given.nodes_namespace,
            left_s,
            given.release,
            given.revision,
            given.force,
            given.delete_crds,
            given.delete_nodes_namespace,
        )
        (leaving.prepare if given.step == "prepare" else leaving.finish)(kube, leave)
    elif failed := selfcheck.run(kube, given.namespace, given.nodes_namespace, left_s):
        return told("failed: " + "; ".join(failed), FAILED)
    print("done", flush=True)
    return DONE


def told(text: str, code: int) -> int:
    """The last that a pod's log has; its status shows it as well."""
    print(text, file=sys.stderr, flush=True)
    return code


def _seconds(text: str) -> float:
    if not text.isdecimal() or not 1 <= int(text) <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 3600")
    return float(text)
