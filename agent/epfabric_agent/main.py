"""The program `epfabric-agent`: one per node; `pki` makes certificates, `nics` restores NICs,
`budget` says what groups take.

Exit status: 0 ended by SIGTERM or SIGINT; 1 failed while it ended; 2 cannot start or go on;
3 a proxy did not end in its time, so that only a new process can go on.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from epfabric_agent import heap
from epfabric_agent.options import (
    Options,
    budget_parser,
    check_issue,
    nics_parser,
    options_of,
    parser,
    pki_parser,
)
from epfabric_agent.statelock import lock

if TYPE_CHECKING:
    from epfabric_agent.manifest.read import Manifest

THREADS = 32
LINGER_S = 2.0
BEFORE_ENDS_S = 135.0  # the longest grace period of a pod and more
_log = logging.getLogger("epfabric-agent")


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given[:1] == ["pki"]:
            return pki(given[1:])
        if given[:1] == ["nics"]:
            return nics(given[1:])
        if given[:1] == ["budget"]:
            return budget(given[1:])
        parsed = parser().parse_args(given)
        logging.basicConfig(
            level=parsed.log_level.upper(),
            stream=sys.stderr,
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
        options = options_of(parsed)
        faulthandler.enable(file=2)  # a crash is told of in the log
        heap.keep_small()
        with ended_at_once():
            return start(options)
    except (ValueError, OSError) as error:
        print(f"epfabric-agent: {error}", file=sys.stderr)
        return 2


@contextmanager
def ended_at_once() -> Iterator[None]:
    """Until serve() takes over, a signal finds nothing to end in order.

    Without a handler the first process of a container would not even see it, so what takes long
    to import is imported under this.
    """
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: os._exit(0)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start(options: Options) -> int:
    from epfabric_agent.manifest.read import read

    manifest = read(options.manifest) if options.manifest else None
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a pod's rank has several files
    held = lock(options.state_dir, 0.0 if manifest else BEFORE_ENDS_S)
    try:
        return asyncio.run(serve(options, manifest))
    finally:
        os.close(held)


def pki(arguments: list[str]) -> int:
    from epfabric_agent.pki import authority
    from epfabric_agent.pki.identity import NodeIdentity

    parsed = pki_parser().parse_args(arguments)
    if parsed.command == "init":
        print(authority.make_authority(parsed.dir, parsed.days))
        return 0
    check_issue(parsed)
    identity = NodeIdentity(parsed.node, parsed.fabric, parsed.address)
    for path in authority.issue(parsed.dir, identity, parsed.days, parsed.out or parsed.dir):
        print(path)
    return 0


def nics(arguments: list[str]) -> int:
    from epfabric_agent.manifest.nics import restore

    parsed = nics_parser().parse_args(arguments)
    logging.basicConfig(level="WARNING", stream=sys.stderr, format="%(message)s")
    held = lock(parsed.state_dir)
    try:
        return 0 if asyncio.run(restore(parsed.state_dir)) else 1
    finally:
        os.close(held)


def budget(arguments: list[str]) -> int:
    from dataclasses import replace

    from epfabric_crds import Settings

    from epfabric_agent._native import NativeError, rdma_limits
    from epfabric_agent.budget import table, verdicts

    parsed = budget_parser().parse_args(arguments)
    wanted = Settings()
    settings = replace(
        wanted,
        proxies=replace(wanted.proxies, per_gpu=parsed.proxies),
        high_throughput=replace(wanted.high_throughput, nics_per_gpu=parsed.nics_per_gpu),
    )
    of_groups = parsed.ranks, parsed.ranks_per_node, parsed.regions
    try:
        if parsed.devices is None:
            print(table(settings, *of_groups))
            return 0
        found = rdma_limits()
        names = parsed.devices or list(found)
        if absent := [name for name in names if name not in found]:
            there = ", ".join(found) or "none"
            raise ValueError(f"no RDMA device {', '.join(absent)} here, only: {there}")
        if not names:
            raise ValueError("no RDMA device is here: look with `rdma link`, or ibv_devices")
        print(verdicts(settings, {name: found[name] for name in names}, *of_groups))
    except NativeError as error:
        raise ValueError(str(error)) from error
    return 0


async def serve(options: Options, manifest: Manifest | None) -> int:
    """Runs until a signal; a second one, or options.stop_s, ends the process at once.

    What still waits for an API server at the end is not waited for. At options.stop_s the log shows
    what every thread does, whatever holds up the loop.
    """
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="agent"))
    stop = asyncio.Event()

    def end() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()
        end_within(options.stop_s)
        _log.info("ending")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        if manifest is not None:
            from epfabric_agent.manifest.mode import run as run_manifest

            await run_manifest(manifest, options, stop)
        else:
            from epfabric_agent.kube.mode import run as run_kube

            await run_kube(options, stop)
    except (ValueError, OSError, RuntimeError) as error:
        if _log.isEnabledFor(logging.DEBUG):
            _log.exception("the agent cannot go on")
        print(f"epfabric-agent: {error}", file=sys.stderr)
        code = 1 if stop.is_set() else 2
    else:
        code = 0
    loop.call_later(LINGER_S, os._exit, code)  # asyncio.run() waits for threads without a bound
    return code


def end_within(seconds: float) -> None:
    """Then the process ends with 1, after it has written what every thread does."""
    last = threading.Timer(seconds + LINGER_S, os._exit, (1,))  # where nobody reads that
    last.daemon = True
    last.start()
    if sys.stderr is not None:
        faulthandler.dump_traceback_later(seconds, exit=True)


def program() -> NoReturn:
    """Ends without Python's own end, which would wait for every thread of every library."""
    code = main()
    logging.shutdown()
    if sys.stdout is not None:
        sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    program()
