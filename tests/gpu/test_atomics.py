"""ATOMICs that a GPU's threads push take effect once, and bring back what the word held before."""

from __future__ import annotations

import secrets
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from harness.device import Gpu, Words, ranks_of
from native.pod import Group

THREADS, BLOCKS, ROUNDS, FIRST_WORD = 256, 2, 40, 16
MASK = (1 << 64) - 1


@pytest.mark.parametrize(("rings", "depth"), [(BLOCKS, 2 * THREADS), (1, 65536)])
@pytest.mark.parametrize("nodes", [[[0, 1]], [[0], [1]]], ids=["loopback", "tcp"])
def test_the_changes_of_each_word_are_one_chain(
    nodes: list[list[int]], rings: int, depth: int
) -> None:
    """Of threads alone and of warps: blocks with a ring each, or with one ring together."""
    gpu = Gpu(Path(__file__).with_name("atomics.cu"))
    seed = secrets.randbits(63)
    print(f"seed {seed}")
    count = BLOCKS * THREADS * ROUNDS
    changes, failed = Words(5 * count, np.uint64), Words(1, np.uint64)
    with Group(nodes, rings=rings, depth=depth) as group, ranks_of(group) as ranks:
        stream = gpu.stream()
        gpu.launch(
            stream, "change_words", BLOCKS, THREADS, ranks[0].address, np.uint32(1),
            np.uint64(FIRST_WORD), np.uint32(ROUNDS), np.uint64(seed), changes.address,
            failed.address,
        )  # fmt: skip
        stream.sync()
        assert failed.read()[0] == 0
        done = changes.read().reshape(count, 5).tolist()
        held = ranks[1].region.view(np.uint64).tolist()
        counts = ranks[0].pod.session.counters()["rings"]
        assert [ring["refused"] for ring in counts] == [{}] * rings
    changes.close()
    failed.close()
    follows: dict[int, dict[int, int]] = defaultdict(dict)  # by word: what each value became
    stored = missed = effects = 0
    for word, cas, expected, value, old in done:
        if cas and old != expected:
            missed += 1
            continue
        stored, effects = stored + cas, effects + 1
        assert old not in follows[word], "two had the same old value"
        follows[word][old] = value if cas else (old + value) & MASK
    for word, changed in follows.items():
        value = 0
        for _ in range(len(changed)):
            value = changed[value]
        assert value == held[word]
    assert sum(map(len, follows.values())) == effects
    assert stored > 0
    assert missed > 0
