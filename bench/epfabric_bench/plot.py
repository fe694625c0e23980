"""Draws a bench's samples; for `make bench PLOT=1`.

Drawing needs matplotlib, which nothing else does: where this interpreter has none, `draw()` runs
this file in an environment of its own, made from the dependency group `bench` of uv.lock.
"""

from __future__ import annotations

import importlib.util
import json
import os
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
    """One panel a metric: each round's samples as a box, ours beside the peer's."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    found: dict[str, Any] = json.loads(samples.read_text())
    metrics: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for series in found["series"]:
        metrics.setdefault((series["metric"], series["unit"]), []).append(series)
    figure, panels = pyplot.subplots(len(metrics), 1, squeeze=False, figsize=(9, 4 * len(metrics)))
    for axes, ((metric, unit), rows) in zip(panels[:, 0], metrics.items(), strict=True):
        labels, boxes = [], []
        for row in rows:
            labels.append(row["case"])
            boxes.append([value for one in row["ours"] for value in one])
            if row["peer_name"] is not None:
                labels.append(f"{row['case']}\n({row['peer_name']})")
                boxes.append([value for one in row["peer"] for value in one])
        axes.boxplot(boxes, vert=False, whis=(1, 99), showfliers=False)
        axes.set_yticks(range(1, len(labels) + 1), labels, fontsize=7)
        axes.set_xlabel(f"{metric} ({unit}); whiskers at 1 % and 99 %")
        axes.set_xlim(left=0)
    machine = found["machine"]
    figure.suptitle(f"{found['bench']}, {machine['cpu']}, {machine['date'][:10]}", fontsize=9)
    figure.tight_layout()
    figure.savefig(target)


if __name__ == "__main__":
    render(Path(sys.argv[1]), Path(sys.argv[2]))
