"""Draws a bench's samples; for `make bench PLOT=1`.

Drawing needs matplotlib, which nothing else does: where this interpreter has none, `draw()` runs
this file in an environment of its own, made from the dependency group `bench` of uv.lock.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DRAW_LIMIT_S = 600


class PlotError(Exception):
    """The plot could not be drawn."""


def draw(samples: Path) -> Path:
    """Writes <bench>.svg beside `samples`, a file that __main__.py wrote."""
    target = samples.with_name(samples.name.replace(".samples.json", ".svg"))
    done = subprocess.run(
        [*interpreter(), __file__, str(samples), str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DRAW_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise PlotError(f"drawing {samples.name} failed: {done.stderr[-2000:]}")
    return target


def interpreter() -> list[str]:
    """A Python that has matplotlib."""
    if importlib.util.find_spec("matplotlib") is not None:
        return [sys.executable]
    uv = next(cache().glob("uv-*/bin/uv"), None)
    if uv is None:
        raise PlotError("uv is not in the cache: bash tests/harness/bootstrap.sh installs it")
    return [str(uv), "run", "--frozen", "--isolated", "--only-group", "bench", "python"]


def cache() -> Path:
    """As in tests/harness/bootstrap.sh."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("EPFABRIC_CACHE") or Path(base) / "epfabric")


def render(samples: Path, target: Path) -> None:
    """One panel a metric: times over tokens as lines, else samples as boxes; beside the peer's."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    found: dict[str, Any] = json.loads(samples.read_text())
    metrics: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for series in found["series"]:
        metrics.setdefault((series["metric"], series["unit"]), []).append(series)
    figure, panels = pyplot.subplots(len(metrics), 1, squeeze=False, figsize=(9, 4 * len(metrics)))
    for axes, ((metric, unit), rows) in zip(panels[:, 0], metrics.items(), strict=True):
        if lines := over_tokens(rows):
            draw_lines(axes, lines)
            axes.set_ylabel(f"{metric} ({unit}); bars up to 99 %")
        else:
            draw_boxes(axes, rows)
            axes.set_xlabel(f"{metric} ({unit}); whiskers at 1 % and 99 %")
    machine = found["machine"]
    figure.suptitle(f"{found['bench']}, {machine['cpu']}, {machine['date'][:10]}", fontsize=9)
    figure.tight_layout()
    figure.savefig(target)


def over_tokens(rows: list[dict[str, Any]]) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """What is measured → its rows by how many tokens; empty where a case does not name them."""
    out: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for row in rows:
        match = re.fullmatch(r"(\d+) tokens(?:, (.+))?", row["case"])
        if match is None:
            return {}
        out.setdefault(match[2] or "", []).append((int(match[1]), row))
    return {name: sorted(points, key=lambda point: point[0]) for name, points in out.items()}


def draw_lines(axes: Any, lines: dict[str, list[tuple[int, dict[str, Any]]]]) -> None:
    """Medians, and up to what 99 % of the samples reach; peers dashed, in the same colour."""
    for name, points in lines.items():
        tokens = [count for count, _ in points]
        samples = [sorted(value for one in row["ours"] for value in one) for _, row in points]
        medians = [statistics.median(one) for one in samples]
        above = [
            one[int(0.99 * (len(one) - 1))] - median
            for one, median in zip(samples, medians, strict=True)
        ]
        below = [0.0] * len(points)
        bar = axes.errorbar(tokens, medians, (below, above), marker="o", capsize=2, label=name)
        peers = [(n, row) for n, row in points if row["peer_name"] is not None]
        if not peers:
            continue
        times = [statistics.median(v for one in row["peer"] for v in one) for _, row in peers]
        label = f"{name}: {peers[0][1]['peer_name']}"
        colour = bar.lines[0].get_color()
        axes.plot([n for n, _ in peers], times, linestyle="--", color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="tokens a rank")
    ticks = sorted({count for points in lines.values() for count, _ in points})
    axes.set_xticks(ticks, [str(count) for count in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def draw_boxes(axes: Any, rows: list[dict[str, Any]]) -> None:
    labels, boxes = [], []
    for row in rows:
        labels.append(row["case"])
        boxes.append([value for one in row["ours"] for value in one])
        if row["peer_name"] is not None:
            labels.append(f"{row['case']}\n({row['peer_name']})")
            boxes.append([value for one in row["peer"] for value in one])
    axes.boxplot(boxes, vert=False, whis=(1, 99), showfliers=False)
    axes.set_yticks(range(1, len(labels) + 1), labels, fontsize=7)
    axes.set_xlim(left=0)


if __name__ == "__main__":
    render(Path(sys.argv[1]), Path(sys.argv[2]))
