"""What get_dispatch_layout's kernel counts, against numpy."""

from __future__ import annotations

import ctypes
import secrets

import numpy as np
import pytest
from cuda.bindings import driver
from epfabric.cuda.kernels import Kernels
from epfabric.cuda.rank import checked
from epfabric.cuda.routing import RoutingCall, route
from gpu.expert_ranks import Array
from harness.device import Gpu

CASES = [  # tokens, k, world, experts, ranks of a node
    (0, 8, 2, 64, 0),
    (1, 1, 1, 1, 0),
    (4096, 8, 8, 256, 0),
    (4099, 6, 64, 256, 8),
    (37, 16, 144, 1008, 8),
    (300, 2, 3, 6, 1),
]


@pytest.fixture(scope="module")
def kernels(gpu: Gpu) -> Kernels:
    return Kernels("routing.cu")


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_every_token_is_counted_where_it_goes(kernels: Kernels, case: tuple[int, ...]) -> None:
    count, k, world, experts, node_ranks = case
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    nodes = world // node_ranks if node_ranks else 0
    for _ in range(5):
        topk = rng.integers(-2, experts + 1, (count, k))  # some twice, some none, some too high
        arrays = Array((max(count, 1), k), np.int64), Array((count, world), np.uint8)
        counts = Array((world + experts + nodes,), np.int32)
        arrays[0].write(topk)
        addresses = [array.address for array in (*arrays, counts)]
        route(kernels, *addresses, shape=(count, k), world=world, experts=experts, stream=0,
              node_ranks=node_ranks)  # fmt: skip
        checked(driver.cuCtxSynchronize())
        chosen = np.zeros((count, experts), bool)
        rows, places = np.nonzero((topk >= 0) & (topk < experts))
        chosen[rows, topk[rows, places]] = True
        ranks = chosen.reshape(count, world, experts // world).any(axis=2)
        wanted = [ranks.sum(axis=0), chosen.sum(axis=0)]
        if nodes:
            wanted.append(ranks.reshape(count, nodes, node_ranks).any(axis=2).sum(axis=0))
        assert np.array_equal(counts.read(), np.concatenate(wanted))
        assert np.array_equal(arrays[1].read(), ranks)
        for array in (*arrays, counts):
            array.close()


def test_the_mirror_of_a_routing_call_equals_the_compiled_one(kernels: Kernels) -> None:
    out = Array((1,), np.uint64)
    kernels.launch("routing_mirror", 1, 0, ctypes.c_uint64(out.address))
    checked(driver.cuCtxSynchronize())
    assert out.read()[0] == ctypes.sizeof(RoutingCall)
    out.close()
