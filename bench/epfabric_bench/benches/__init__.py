"""The benches there are, by name, in the order in which `make bench` runs them."""

from __future__ import annotations

from ..run import Bench
from . import fifo, gpu_fifo, proxy

BENCHES: dict[str, Bench] = {
    bench.name: bench for bench in (fifo.BENCH, proxy.BENCH, gpu_fifo.BENCH)
}
