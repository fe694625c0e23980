"""The benches there are, by name, in the order in which `make bench` runs them."""

from __future__ import annotations

from ..run import Bench
from . import (
    atomics,
    barrier,
    buffer,
    elastic,
    fifo,
    flow,
    gpu_fifo,
    idle,
    internode,
    joining,
    low_latency,
    proxied,
    proxy,
    scale,
    stripes,
    transport,
    two_gpus,
    verbs,
    verbs_barrier,
)

BENCHES: dict[str, Bench] = {
    bench.name: bench
    for bench in (
        fifo.BENCH,
        proxy.BENCH,
        idle.BENCH,
        barrier.BENCH,
        transport.BENCH,
        verbs.BENCH,
        verbs_barrier.BENCH,
        atomics.BENCH,
        flow.BENCH,
        joining.BENCH,
        stripes.BENCH,
        gpu_fifo.BENCH,
        low_latency.BENCH,
        proxied.BENCH,
        internode.BENCH,
        buffer.BENCH,
        elastic.BENCH,
        two_gpus.BENCH,
        scale.BENCH,
    )
}
