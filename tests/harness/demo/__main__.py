"""`make demo`: a fabric from kubectl apply to telemetry, on this machine, without a mock.

Ends with DEMO OK only if every check held; whatever happens, no process or mount remains.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from harness.demo import as_pods, builds, checks, ranks, refusals, site, without_kubernetes
from harness.demo.checks import Work, Wrong
from harness.demo.show import Show, table
from harness.demo.tables import Telemetry, barrier_table, plain_table
from harness.process import HarnessError, Processes, private_mounts

STEPS = 10
KEPT = Path(__file__).resolve().parents[3] / "build" / "demo"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.demo", description=__doc__)
    parser.add_argument("--small", action="store_true", help="few tokens and barriers")
    small = parser.parse_args().small
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        private_mounts()
        with Processes("epfabric-demo-") as processes:
            tempfile.tempdir = str(processes.folder)  # libraries' files, too, are removed then
            try:
                run(processes, small)
            except Exception:
                keep_logs(processes.folder)
                raise
    except (HarnessError, Wrong) as error:
        print(f"\n{error}\n\nDEMO FAILED; the logs lie in {KEPT}", flush=True)
        return 1
    except KeyboardInterrupt:
        print("\nended by Ctrl-C; nothing is left", flush=True)
        return 130
    print("\nDEMO OK", flush=True)
    return 0


def run(processes: Processes, small: bool) -> None:
    show = Show(STEPS)
    few = Work(world_size=4, tokens=16, iterations=2, barriers=100)
    work = Work(tokens=16, iterations=1, barriers=100) if small else Work()
    build = builds.start(processes)
    without_kubernetes.exchange(processes, show, few)
    builds.wait(build, show)
    with as_pods.furnished(as_pods.started(processes, show)) as running:
        site.apply_fabric(running)
        refusals.show(running)
        ranks.create(running, work)
        results, carried = ranks.exchange(running, work)
        report(running, work, results, carried)
        ranks.delete(running)
        site.delete_fabric(running)


def report(
    running: site.Site,
    work: Work,
    results: list[dict[str, object]],
    carried: dict[tuple[str, str], int],
) -> None:
    """The tables; the byte counts of kernel and agents must both reach the payload."""
    show = running.show
    show.step("report")
    show.note(running.kubectl("get", "epf,epfn,epg", "--all-namespaces"))
    telemetry = Telemetry(running.prometheus, ranks.NAMESPACE, group_of(results))
    expected = checks.payload_between(results, work)
    telemetry.await_counts(
        lambda: all(telemetry.bytes_by_pair().get(pair, 0) >= expected[pair] for pair in expected),
        f"the payload between each two agents, {expected}",
    )
    telemetry.await_counts(
        lambda: all(count > work.barriers for count in telemetry.ask("barrier_count").values()),
        f"{work.barriers} barriers of each agent",
    )
    checks.check_carried(carried, expected, "tcp, as the kernel counts")
    show.note("")
    barrier_table(telemetry, show)
    for name in ("commands_per_second", "commands", "transport", "slowest_rank"):
        plain_table(telemetry, show, name)
    heads = ["from", "to", "payload (numpy)", "agents (Prometheus)", "tcp (kernel)"]
    rows = checks.rows_by_pair(expected, telemetry.bytes_by_pair(), carried)
    show.note(f"Bytes per pair of agents\n{table(heads, rows)}")
    verified = sum(int(str(result["bytes_verified"])) for result in results)
    show.note(f"\nthe ranks compared {verified:,} bytes (rows, combined tokens): all equal")


def group_of(results: list[dict[str, object]]) -> str:
    """Ranks know their group as namespace/name."""
    names = {str(result["group"]) for result in results}
    if len(names) != 1:
        raise Wrong(f"the ranks are in several groups: {names}")
    return names.pop().partition("/")[2]


def keep_logs(folder: Path) -> None:
    """Copies the logs out of the folder that is about to be removed."""
    shutil.rmtree(KEPT, ignore_errors=True)
    found = [*folder.glob("logs/*.log"), *folder.glob("*/disk/var-log/pods/*/*/*.log")]
    for log in found:
        target = KEPT / log.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, target)


if __name__ == "__main__":
    sys.exit(main())
