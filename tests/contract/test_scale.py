"""A group of hundreds of ranks costs few writes and a small object."""

from __future__ import annotations

from contract.stand import NAMESPACE, Stand
from epfabric_bench import scale_group


def test_a_group_of_hundreds_costs_few_writes_and_a_small_object(stand: Stand) -> None:
    ranks = 512
    found = list(scale_group.measure(stand.cluster, NAMESPACE, ranks, print, arrive_s=4.0))
    assert all(line.verified for line in found), found
    for line in found:
        if line.metric == "object":
            assert line.samples[0] <= scale_group.MOST_BYTES * ranks / 4096
        if line.metric == "writes_of_an_epoch":
            # The object, once as it begins to form, once more while it does, Ready, its barriers,
            # Completed; a slow API server may see one more.
            assert line.samples[0] <= 7
