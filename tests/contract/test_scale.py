"""A group of hundreds of ranks costs few writes and a small object."""

from __future__ import annotations

import time

from contract.stand import NAMESPACE, Stand
from epfabric_agent.kube.group_report import FORMING_S
from epfabric_bench import scale_group


def test_a_group_of_hundreds_costs_few_writes_and_a_small_object(stand: Stand) -> None:
    ranks = 512
    begun = time.monotonic()
    found = list(scale_group.measure(stand.cluster, NAMESPACE, ranks, print, arrive_s=4.0))
    assert all(line.verified for line in found), found
    for line in found:
        if line.metric == "object":
            assert line.samples[0] <= scale_group.MOST_BYTES * ranks / 4096
        if line.metric == "writes_of_an_epoch":
            # The object, as it begins to form, Ready, its barriers, Completed, one or two more, and
            # one for each while that it forms.
            assert line.samples[0] <= 7 + (time.monotonic() - begun) / FORMING_S
