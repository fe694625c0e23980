"""How often a kubelet is asked for GPUs, and how long it is waited for, whatever ranks do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from epfabric import messages
from epfabric_agent.groups.local_rank import Refusal
from epfabric_agent.kube.pod_resources import Pace
from epfabric_agent.pods import Pod
from epfabric_agent.session.gpus import Gpus, numa_of
from epfabric_agent.session.opening import open_session
from unit.agent.test_gpus import FIRST, SECOND, Kubelet, gpus, kubelet, pod, refused

__all__ = ["kubelet"]  # the fixture
WAIT_S = 60.0
RANKS = 24


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not check():
            await asyncio.sleep(0.01)


async def all_of(*tasks: Coroutine[Any, Any, Any]) -> list[Any]:
    return await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)


async def test_ranks_that_come_at_once_do_not_ask_once_each(kubelet: Kubelet) -> None:
    pods = [kubelet.give(f"p{n}", [("nvidia.com/gpu", SECOND)]) for n in range(RANKS)]
    asked = gpus(kubelet.path)
    kubelet.answers.clear()
    first = asyncio.create_task(asked.named(SECOND, pods[0]))
    await until(lambda: kubelet.asked == 1)
    others = [asyncio.create_task(asked.named(SECOND, one)) for one in pods]
    await asyncio.sleep(0)
    first.cancel()  # the others' query goes on
    kubelet.answers.set()
    found = await all_of(*(asyncio.wait_for(one, WAIT_S) for one in others))
    assert [numa_of(gpu) for gpu in found] == [1] * RANKS
    assert numa_of(await asked.named(SECOND, pods[0])) == 1
    assert kubelet.asked == 1
    # Those that the answer does not have share one more.
    assert len(await all_of(*(refused(asked, FIRST, one) for one in [*pods, pod("x")]))) > RANKS
    assert kubelet.asked == 2


async def test_an_answer_of_before_refuses_no_pod(kubelet: Kubelet) -> None:
    """One that came since, and one that came back under its name with another GPU."""
    one = kubelet.give("one", [("nvidia.com/gpu", FIRST)])
    asked = gpus(kubelet.path)
    assert numa_of(await asked.named(FIRST, one)) == 0
    two = kubelet.give("two", [("nvidia.com/gpu", SECOND)])
    assert numa_of(await asked.named(SECOND, two)) == 1
    kubelet.give("one", [("nvidia.com/gpu", SECOND)])
    assert numa_of(await asked.named(SECOND, one)) == 1
    assert kubelet.asked == 3


async def test_an_answer_under_way_refuses_no_pod_that_came_since(kubelet: Kubelet) -> None:
    one = kubelet.give("one", [("nvidia.com/gpu", FIRST)])
    asked = gpus(kubelet.path)
    kubelet.answers.clear()
    early = asyncio.create_task(refused(asked, SECOND, one))
    await until(lambda: kubelet.asked == 1)
    late = asyncio.create_task(refused(asked, SECOND, one))
    await asyncio.sleep(0)
    kubelet.answers.set()
    await all_of(asyncio.wait_for(early, WAIT_S), asyncio.wait_for(late, WAIT_S))
    assert kubelet.asked == 2


async def test_a_pod_that_loops_takes_nothing_from_the_others(kubelet: Kubelet) -> None:
    one = kubelet.give("one", [("nvidia.com/gpu", SECOND)])
    asked = gpus(kubelet.path, Pace(answer_s=60, kept_s=3600, pause_s=3600))
    await refused(asked, SECOND, pod("loops"))
    loops = [asyncio.create_task(refused(asked, SECOND, pod("loops"))) for _ in range(RANKS)]
    done, _ = await asyncio.wait(loops, timeout=0.5)
    assert not done, "the kubelet was asked before the pause was over"
    assert numa_of(await asked.named(SECOND, one)) == 1
    assert kubelet.asked == 1
    for loop in loops:
        loop.cancel()


async def test_only_the_first_waits_for_a_kubelet_that_hangs(kubelet: Kubelet) -> None:
    one = kubelet.give("one", [("nvidia.com/gpu", SECOND)])
    kubelet.answers.clear()
    asked = gpus(kubelet.path, Pace(answer_s=0.5, silent_s=3600))
    for _ in range(2):  # the second at the latest finds that the query is over
        await refused(asked, SECOND, one)
    kubelet.answers.set()
    said = await refused(asked, SECOND, one)
    assert "does not say which GPUs ns/one has (DEADLINE_EXCEEDED" in said
    assert kubelet.asked <= 1


async def test_a_kubelet_that_was_silent_is_asked_again(kubelet: Kubelet) -> None:
    one = kubelet.give("one", [("nvidia.com/gpu", SECOND)])
    kubelet.answers.clear()
    asked = gpus(kubelet.path, Pace(answer_s=0.5, pause_s=0, silent_s=0))
    await refused(asked, SECOND, one)
    kubelet.answers.set()
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                assert numa_of(await asked.named(SECOND, one)) == 1
                break
            except Refusal:
                await asyncio.sleep(0)


async def test_a_kubelet_that_has_too_many_calls_is_asked_again_for_a_while(
    kubelet: Kubelet,
) -> None:
    one = kubelet.give("one", [("nvidia.com/gpu", SECOND)])
    kubelet.busy = 3
    assert numa_of(await gpus(kubelet.path).named(SECOND, one)) == 1
    assert kubelet.asked == 4
    kubelet.busy = 1 << 30
    await refused(gpus(kubelet.path, Pace(answer_s=0.5, pause_s=0.1)), SECOND, one)


async def test_a_rank_that_is_refused_anyway_asks_no_kubelet(tmp_path: Path) -> None:
    asked: list[Pod] = []

    async def held(one: Pod, _: object) -> None:
        asked.append(one)

    async def services() -> object:
        hub = SimpleNamespace(living=lambda: ())
        return SimpleNamespace(cordon="it is cordoned", hub=hub, node="n")

    current = cast(Any, SimpleNamespace(gpus=Gpus(held, lambda: ()), services=services))
    for rank, code in ((2, "rank"), (0, "cordoned")):
        hello = messages.Hello(abi=1, oldest=1, rank=rank, world_size=2, gpu=FIRST, pid=1)
        with pytest.raises(Refusal) as caught:
            await open_session(hello, pod("one"), cast(Any, None), current)
        assert caught.value.code == code
    assert asked == []
