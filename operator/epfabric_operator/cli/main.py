"""The program `kubectl-epfabric`, which kubectl finds on PATH and runs as `kubectl epfabric`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from epfabric_operator.cli.fault import EXIT_CODES, FAILED, INTERRUPTED, Fault

PROGRAM = "kubectl epfabric"
Run = Callable[..., int]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return run(options)
    except Fault as fault:
        print(f"error: {fault}", file=sys.stderr)
        return fault.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def run(options: argparse.Namespace) -> int:
    # Late: the client of the API server is slow to import, and completion does not need it.
    module, _, function = options.run.partition(":")
    command: Run = getattr(importlib.import_module(f"epfabric_operator.cli.{module}"), function)
    if not options.needs_cluster:
        return command(options)
    from epfabric_operator.cli import cluster

    if options.namespace is None:
        options.namespace = cluster.namespace_of(options.kubeconfig, options.context)
    made = cluster.connect(options.kubeconfig, options.context, options.request_timeout_s)
    return command(made, options)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Looks at EPFabric in a cluster: fabrics, nodes, groups, what is wrong.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = made.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: str, text: str, *parents: argparse.ArgumentParser) -> _Parser:
        one = commands.add_parser(
            name,
            help=text,
            description=text,
            parents=[_where(), *parents],
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.set_defaults(run=run, needs_cluster=True)
        return one

    add(
        "status",
        "overview:status",
        "fabrics and whether they are Ready",
        _output(),
        _name("fabric"),
    )
    _of_fabric(add("nodes", "overview:nodes", "nodes of fabrics", _output(), _name("node")))
    groups = add("groups", "overview:groups", "groups of ranks", _output(), _name("group"))
    _of_fabric(groups).add_argument(
        "-A", "--all-namespaces", action="store_true", help="groups of all namespaces"
    )
    add(
        "doctor",
        "doctor.command:run",
        "looks for known faults, explains them, says what to do",
        _output(),
    )
    _gather(add("gather", "gather:run", "writes a support bundle that holds no secrets"))
    _bench(add("bench", "bench:run", "runs a benchmark of a fabric as a Job", _output()))
    _top(add("top", "top:run", "fabrics, groups and nodes, live", _output()))
    shell = commands.add_parser(
        "completion",
        help="prints what makes a shell complete",
        description="Prints what makes a shell complete this command. kubectl's own completion"
        " needs nothing but kubectl_complete-epfabric on PATH.",
    )
    shell.add_argument("shell", choices=["bash", "zsh", "fish"])
    shell.set_defaults(run="completion:script", needs_cluster=False)
    return made


_Parser = argparse.ArgumentParser


def _where() -> _Parser:
    made = argparse.ArgumentParser(add_help=False)
    made.add_argument("--kubeconfig", metavar="FILE", help="default: KUBECONFIG, ~/.kube/config")
    made.add_argument("--context", help="context of the kubeconfig; default: its current one")
    made.add_argument("-n", "--namespace", help="default: that of the context")
    made.add_argument(
        "--request-timeout-s",
        type=_positive,
        default=30,
        metavar="N",
        help="how long the API server may take for one answer (default 30)",
    )
    return made


def _output() -> _Parser:
    made = argparse.ArgumentParser(add_help=False)
    made.add_argument("-o", "--output", choices=["table", "json"], default="table")
    return made


def _name(what: str) -> _Parser:
    made = argparse.ArgumentParser(add_help=False)
    made.add_argument("name", nargs="?", metavar=what.upper(), help=f"only this {what}")
    return made


def _of_fabric(made: _Parser) -> _Parser:
    made.add_argument("--fabric", help="only those of this fabric")
    return made


def _gather(made: _Parser) -> None:
    made.add_argument(
        "--file", metavar="FILE", help="default: epfabric-TIME.tar.gz in the current folder"
    )
    made.add_argument(
        "--log-lines",
        type=_count,
        default=2000,
        metavar="N",
        help="of each of our containers, the last N lines (default 2000; 0: none)",
    )


def _bench(made: _Parser) -> None:
    made.add_argument("--fabric", required=True, help="the fabric to measure")
    made.add_argument("--ranks", type=_count, default=2, help="pods, one rank each (default 2)")
    made.add_argument("--image", help="client image; default: the one that the chart names")
    made.add_argument(
        "--iterations", type=_positive, default=200, help="of each case (default 200)"
    )
    made.add_argument(
        "--timeout-s", type=_positive, default=300, help="for the whole Job (default 300)"
    )
    made.add_argument("--keep", action="store_true", help="leave the Job for a look at its pods")


def _top(made: _Parser) -> None:
    made.add_argument("--once", action="store_true", help="print once and end")
    made.add_argument(
        "--interval-s", type=_positive, default=2, help="seconds between two looks (default 2)"
    )


def _positive(text: str) -> int:
    value = _count(text)
    if not value:
        raise argparse.ArgumentTypeError("0 is not enough")
    return value


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 1000000")
    return value


if __name__ == "__main__":
    sys.exit(main())
