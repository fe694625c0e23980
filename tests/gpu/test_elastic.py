"""ElasticBuffer on torch's tensors. Several ranks are processes (test_devices.py, `elastic`): torch
works in every call, and the driver may load its kernels only when none waits for another rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="epfabric.ElasticBuffer works on torch's tensors")

import torch.distributed as distributed  # noqa: E402
from epfabric import SessionError  # noqa: E402
from gpu.buffer_ranks import Batch  # noqa: E402
from gpu.device_trips import Side, Size  # noqa: E402
from gpu.elastic_trips import SMS, WAYS, Way, elastic, elastic_trip  # noqa: E402

REPLAYS, CHECKED, BATCHES = 2_000, 40, 6  # of graphs; others are looked at at random too
SIZE = Size(tokens=96, hidden=1024, local=12, topk=4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    file: Path = tmp_path_factory.mktemp("meet") / "file"
    torch.cuda.set_device(0)
    distributed.init_process_group("gloo", init_method=f"file://{file}", world_size=1, rank=0)
    yield Side(1, 0, 0, SIZE)
    distributed.destroy_process_group()


def test_tokens_come_by_rank_or_by_expert_and_go_back_summed(alone: Side) -> None:
    with elastic(alone) as buffer:
        for call in range(2 * len(WAYS)):
            elastic_trip(alone, buffer, call)


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_graph_is_replayed_with_changing_routing(alone: Side, calls: int, expand: bool) -> None:
    way = Way(sync=False, expand=expand)
    with elastic(alone) as buffer:
        elastic_trip(alone, buffer, WAYS.index(Way(sync=False)))
        batch = alone.batches(alone.seed(), full=True)[0]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                out, _, weights, handle, _ = buffer.dispatch(
                    batch.x, batch.topk, batch.weights, num_experts=alone.experts, num_sms=SMS,
                    do_cpu_sync=False, do_handle_copy=False, do_expand=expand,
                )  # fmt: skip
                combined, back, _ = buffer.combine(out, handle, topk_weights=weights)
        stored = [alone.batches(alone.seed(), full=True)[0] for _ in range(BATCHES)]
        stored[1].topk.fill_(-1)
        rng = np.random.default_rng(alone.seed())
        looks = list(range(CHECKED - 1, REPLAYS, CHECKED))
        looks += rng.integers(0, REPLAYS, 20).tolist()
        for replay in range(REPLAYS):
            fresh = stored[int(rng.integers(BATCHES))]
            for old, new in zip(vars(batch).values(), vars(fresh).values(), strict=True):
                old.copy_(new)
            if replay in looks:
                for tensor in (out, weights, combined, back):
                    tensor.fill_(float("nan"))
            graph.replay()
            if replay not in looks:
                continue
            named = batch.topk >= 0
            times = named.sum(dim=1) if way.expand else named.any(dim=1)
            total = batch.x.double() * times[:, None]
            assert ((combined.double() - total).abs() <= total.abs() * 2.0**-7).all()
            assert torch.equal(back, torch.where(named, batch.weights, 0.0))
            if replay in looks[::5]:
                elastic_trip(alone, buffer, looks.index(replay) // 5)  # without a graph


def test_what_cannot_be_is_refused_before_another_rank_is_told(alone: Side) -> None:
    with elastic(alone) as buffer:
        batch = Batch.random(1, 40, SIZE.hidden, alone.experts, SIZE.topk)
        good: dict[str, Any] = {"x": batch.x, "topk_idx": batch.topk, "num_experts": alone.experts}
        good |= {"topk_weights": batch.weights}
        changes: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"topk_idx": batch.topk[1:]}, ValueError, "topk_idx must be shaped"),
            ({"topk_idx": batch.topk.int()}, ValueError, "topk_idx must be of"),
            ({"topk_weights": batch.weights[1:]}, ValueError, "topk_weights must be shaped"),
            ({"x": batch.x.t().contiguous().t()}, ValueError, "contiguous"),
            ({"x": (batch.x, batch.x)}, ValueError, "scales must be of float32 or int32"),
            ({"num_sms": 130}, SessionError, "64 at most|need .* bytes"),
            ({"num_max_tokens_per_rank": 39}, ValueError, "x has 40 tokens"),
        ]
        for change, error, text in changes:
            with pytest.raises(error, match=text):
                buffer.dispatch(**good | change)
        handle = buffer.dispatch(**good)[3]
        with pytest.raises(ValueError, match="a dispatch of 40 tokens"):
            buffer.dispatch(batch.x[1:], handle=handle)
        with pytest.raises(ValueError, match="x must be shaped"):
            buffer.combine(batch.x[:1], handle)
    for call in (buffer.barrier, lambda: buffer.combine(batch.x, handle)):
        with pytest.raises(ValueError, match="destroyed"):
            call()
