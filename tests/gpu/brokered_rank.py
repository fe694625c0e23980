"""A rank whose memory its agent brokers; run by test_brokered.py: SOCKET WORLD RANK DEVICE SEED
END.

Every rank makes the batches of all from the seed, so that each can check alone what comes. Prints
one line of JSON: its IPC namespace, what the trial at join said, whether a Buffer works. END is
`together`, or `lost`: the last rank ends without a word, and the others say how their calls ended,
or `masked`: the last rank prints IDLE and is killed then, and the others go on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import epfabric
import torch
from epfabric import Buffer
from gpu.buffer_ranks import Batch, check_rows_of_experts, rows_of

TOKENS, HIDDEN, EXPERTS, TOPK, CALLS = 48, 2048, 8, 4, 6
IDLE = "no rank has work on its GPU"
WAIT_S = 60.0


def batches_of(seed: int, world: int, call: int) -> list[Batch]:
    """One rank has no token in some calls."""
    counts = [(seed >> 3 * rank) % (TOKENS + 1) for rank in range(world)]
    counts[call % world] = (TOKENS, 0)[call % 2]
    return [
        Batch.random(seed + 1000 * call + rank, count, HIDDEN, EXPERTS, TOPK)
        for rank, count in enumerate(counts)
    ]


def factor(experts: Any) -> Any:
    """What an expert does to a row: a power of two, so that no bit is lost."""
    return 2.0 ** (experts % 4)


def exchange(buffer: Any, batches: list[Batch], use_fp8: bool, lost: int | None = None) -> None:
    """lost: a rank that is masked."""
    world, rank, local = len(batches), buffer.rank, EXPERTS // len(batches)
    batch = batches[rank]
    out = buffer.low_latency_dispatch(batch.x, batch.topk, TOKENS, EXPERTS, use_fp8=use_fp8)
    torch.cuda.synchronize()
    topk = batch.topk
    if lost is not None:
        batches[lost] = Batch(*(value[:0] for value in vars(batches[lost]).values()))
        topk = torch.where(topk // local == lost, -1, topk)
    check_rows_of_experts(batches, rank, out, EXPERTS)
    shape = (local, world * TOKENS, HIDDEN)
    rows = torch.full(shape, float("nan"), device="cuda", dtype=torch.bfloat16)
    for expert in range(local):
        for source in range(world):
            mine = rows_of(out[2], expert, source)
            tokens = batches[source].x[out[2][0][expert, mine].long()]
            rows[expert, mine] = tokens * factor(torch.tensor(rank * local + expert))
    combined, _, _ = buffer.low_latency_combine(rows, batch.topk, batch.weights, out[2])
    weights = (batch.weights.double() * factor(topk.double()) * (topk >= 0)).sum(dim=1)
    wanted = batch.x.double() * weights[:, None]
    assert ((combined.double() - wanted).abs() <= wanted.abs() * 2.0**-6).all()


def without_the_last(buffer: Any, batch: Batch) -> str:
    """Why calls that the last rank does not come to ended, and all after them."""
    if buffer.rank == buffer.group_size - 1:
        os._exit(0)
    why = ""
    for _ in range(3):
        try:
            buffer.low_latency_dispatch(batch.x, batch.topk, TOKENS, EXPERTS)
            torch.cuda.synchronize()
        except epfabric.SessionError as error:
            why = str(error)
    return why


def after_the_last(buffer: Any, session: epfabric.Session, seed: int) -> dict[str, Any]:
    """The others go on when their session says that it is lost: whom buffer and session mask."""
    world, lost = buffer.group_size, buffer.group_size - 1
    torch.cuda.synchronize()
    session.barrier(WAIT_S)
    if buffer.rank == lost:
        print(IDLE, flush=True)
        time.sleep(WAIT_S)
        sys.exit("nobody killed it")
    end = time.monotonic() + WAIT_S
    while lost not in session.masked_ranks():
        assert time.monotonic() < end, "the lost rank was not masked"
        time.sleep(0.01)
    buffer.low_latency_update_mask_buffer(lost, True)
    for call in range(CALLS):
        exchange(buffer, batches_of(seed, world, call), use_fp8=call % 3 == 2, lost=lost)
    status = torch.full((world,), 7, dtype=torch.int32, device="cuda")
    buffer.low_latency_query_mask_buffer(status)
    session.barrier(WAIT_S)
    return {"masked": status.tolist(), "session": sorted(session.masked_ranks())}


def main() -> int:
    path, (world, rank, device, seed) = sys.argv[1], map(int, sys.argv[2:6])
    lost, masked = (sys.argv[6] == end for end in ("lost", "masked"))
    if lost:
        Buffer.timeout_s = 10_000.0  # only an abort ends a wait
    torch.cuda.set_device(device)
    torch.zeros(1, device="cuda")  # there is a context from here on
    size = Buffer.get_low_latency_rdma_size_hint(TOKENS, HIDDEN, world, EXPERTS)
    with epfabric.connect(path, rank, world, timeout_s=120) as session:
        session.join()
        nvlink, reason = session.nvlink
        said: dict[str, Any] = {"nvlink": nvlink, "reason": reason}
        said |= {"ipc": os.readlink("/proc/self/ns/ipc"), "works": False, "error": ""}
        try:
            buffer = Buffer(
                None,
                num_rdma_bytes=size,
                low_latency_mode=True,
                explicitly_destroy=True,
                enable_shrink=masked,
                session=session,
            )
        except epfabric.SessionError as error:
            said["error"] = str(error)
            print(json.dumps(said), flush=True)
            return 0
        assert (buffer.rank, buffer.group_size) == (rank, world)
        for call in range(CALLS):
            exchange(buffer, batches_of(seed, world, call), use_fp8=call % 3 == 2)
        if lost:
            said["error"] = without_the_last(buffer, batches_of(seed, world, 0)[rank])
            print(json.dumps(said), flush=True)
            os._exit(0)
        if masked:
            said |= after_the_last(buffer, session, seed)
        buffer.destroy()
        said["works"], said["after"] = True, session.nvlink[1]
    print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
