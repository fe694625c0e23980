"""Runs benches; for `make bench`. Prints a table and writes build/bench/<name>.json for each.

Ends with 1 when moved data was not as it should be or a bound was missed; a missed goal is only
said.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from . import machine, native, report
from .benches import BENCHES
from .plot import PlotError, draw
from .run import Bench, Run
from .series import Series, group, verdicts

OUTPUT = native.ROOT / "build" / "bench"
SIZES = ("nodes", "pods", "ranks")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make bench",
        description=__doc__,
        epilog="; ".join(f"{bench.name}: {bench.about}" for bench in BENCHES.values()),
    )
    parser.add_argument("bench", nargs="*", metavar="BENCH", help=", ".join(BENCHES))
    parser.add_argument("--plot", action="store_true", help="also draw build/bench/<name>.svg")
    parser.add_argument("--small", action="store_true", help="a look that all works, in seconds")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the results")
    for size in SIZES:
        about = f"how many {size} `scale` has"
        parser.add_argument(f"--{size}", type=_count, help=about)
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.bench) - set(BENCHES):
        parser.error(f"no bench {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    wanted = chosen.bench or [name for name, bench in BENCHES.items() if not bench.named]
    missing = {n: why for n in wanted if (why := BENCHES[n].missing())}
    for name, why in missing.items():
        print(f"== left out: {name} ({why})", file=sys.stderr)
    # Ranks that share a process wait for each other: no two of their streams may share a queue.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    failed = [f"{name}: {missing[name]}" for name in chosen.bench if name in missing]
    runnable = [name for name in wanted if name not in missing]
    sizes = {size: value for size in SIZES if (value := getattr(chosen, size)) is not None}
    try:
        if any(BENCHES[name].native for name in runnable):
            native.build(lambda text: print(f"== {text}", file=sys.stderr, flush=True))
        for name in runnable:
            failed += run(BENCHES[name], Run(chosen.small, sizes), chosen.output)
            if chosen.plot:
                print(f"drew {draw(chosen.output / f'{name}.samples.json')}")
    except (native.BenchError, PlotError) as error:
        print(f"== {error}", file=sys.stderr)
        return 1
    for failure in failed:
        print(f"== {failure}", file=sys.stderr)
    return 1 if failed else 0


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def run(bench: Bench, how: Run, output: Path) -> list[str]:
    """Measures, prints, writes; returns what failed."""
    print(f"== {bench.name}: {bench.about}", flush=True)
    before = machine.describe()
    series = group(bench.measure(how))
    after = machine.finish(before)
    print(report.table(series, bench.limits))
    print(f"load {before['load_before']} before, {after['load_after']} after\n", flush=True)
    output.mkdir(parents=True, exist_ok=True)
    results = report.document(bench.name, after, series)
    (output / f"{bench.name}.json").write_text(json.dumps(results, indent=1) + "\n")
    samples = {"bench": bench.name, "machine": after, "series": [asdict(one) for one in series]}
    (output / f"{bench.name}.samples.json").write_text(json.dumps(samples) + "\n")
    return failures(bench, how, series)


def failures(bench: Bench, how: Run, series: Sequence[Series]) -> list[str]:
    """A small run is too short for its speed to mean anything: only the data counts."""
    found = []
    for one in series:
        what = f"{bench.name}: {one.case} {one.metric}"
        if not one.verified:
            found.append(f"{what}: the data moved was not as it should be")
        if not how.small and "BOUND MISSED" in verdicts(one, bench.limits):
            found.append(f"{what}: bound missed with {report.amount(one.value)} {one.unit}")
    return found


if __name__ == "__main__":
    sys.exit(main())
