"""A rank of a Buffer in a process of its own; run by test_buffer.py: FILE WORLD RANK."""

from __future__ import annotations

import sys

import torch
import torch.distributed as distributed
from epfabric import Buffer

TOKENS, HIDDEN, EXPERTS, TOPK, CALLS = 24, 2048, 8, 4, 5


def main() -> None:
    file, world, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    distributed.init_process_group(
        "gloo", init_method=f"file://{file}", world_size=world, rank=rank
    )
    size = Buffer.get_low_latency_rdma_size_hint(TOKENS, HIDDEN, world, EXPERTS)
    group = distributed.group.WORLD
    buffer = Buffer(group, num_rdma_bytes=size, low_latency_mode=True, explicitly_destroy=True)
    assert (buffer.rank, buffer.group_size) == (rank, world)
    for call in range(CALLS):
        torch.manual_seed(call * world + rank)
        x = torch.randn(TOKENS, HIDDEN, device="cuda").bfloat16()
        topk = torch.rand(TOKENS, EXPERTS, device="cuda").argsort(dim=1)[:, :TOPK].contiguous()
        weights = torch.rand(TOKENS, TOPK, device="cuda")
        rows, _, handle, _, hook = buffer.low_latency_dispatch(
            x, topk, TOKENS, EXPERTS, use_fp8=False, return_recv_hook=True
        )
        assert hook is not None
        hook()
        combined, _, _ = buffer.low_latency_combine(rows, topk, weights, handle)
        wanted = x.double() * weights.double().sum(dim=1, keepdim=True)
        assert ((combined.double() - wanted).abs() <= wanted.abs() * 2.0**-6).all()
    buffer.destroy()
    distributed.barrier()
    distributed.destroy_process_group()
    print("all came back")


if __name__ == "__main__":
    main()
