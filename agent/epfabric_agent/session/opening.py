"""Makes the session of a rank that says hello: checks, memory, CPUs, the core's part.

Used by session.conversation.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from epfabric import limits, messages
from epfabric.layout import layout_of
from epfabric_crds.node import Gpu

from epfabric_agent.budget import mailbox_bytes, queue_bytes
from epfabric_agent.groups.local_rank import LocalRank, Refusal
from epfabric_agent.groups.part import Part
from epfabric_agent.pods import Pod
from epfabric_agent.session.gpus import numa_of
from epfabric_agent.session.nic_turns import Turn
from epfabric_agent.session.packets import Connection
from epfabric_agent.session.quota import Grant, QuotaError
from epfabric_agent.session.room import PROXY_BYTES, Held
from epfabric_agent.session.services import Current, Services, Unserved
from epfabric_agent.threads import serving


@dataclass(frozen=True)
class Opened:
    part: Part
    local: LocalRank
    services: Services
    reply: messages.HelloReply


@dataclass(frozen=True)
class Memory:
    """What the pod is charged for, and room in the agent's memory for its session and its links."""

    grant: Grant
    opening: Held
    linking: Held

    def settle(self) -> None:
        self.opening.settle()
        self.linking.settle()


async def open_session(
    hello: messages.Hello, pod: Pod, connection: Connection, current: Current
) -> Opened:
    """Raises Refusal; then nothing is left behind."""
    check(hello)
    await admitted(current, pod)  # before the kubelet is asked: what is refused then comes again
    gpu = await current.gpus.named(hello.gpu, pod)
    last_epoch = await current.hub.last_epoch(pod) if hello.rank == 0 else 0
    await current.hub.ended(pod, hello.rank)
    # A pod that gets CPUs of its own takes them from the others' just before it starts.
    await current.cpus.look()
    services = await admitted(current, pod)
    # No pause from here on until the rank is taken: a core with ranks is not replaced.
    part = services.hub.part_for(pod, hello.rank, last_epoch)
    who = f"{pod.label} (process {connection.process})" if connection.process else pod.label
    try:
        handle = part.admit(hello.rank, hello.world_size, who)
        memory = admit_memory(hello, pod, services)
    except (Refusal, QuotaError) as error:
        services.changed()
        if isinstance(error, QuotaError):
            raise Refusal(error.code, str(error)) from error
        raise
    proxies = services.settings.proxies.per_gpu
    nics = services.nics.take(services.ports, gpu, proxies, services.lines)
    local = make_rank(hello, who, handle, pod, connection, services, memory, nics, gpu)
    # From here on the rank is taken, and it is the part that ends it.
    part.ranks[hello.rank] = local
    local.opening = asyncio.create_task(open_native(local, pod, services, memory, nics))
    try:
        await asyncio.shield(local.opening)
    except BaseException:
        await asyncio.shield(part.lost(local, "its hello was not finished"))
        raise
    services.changed()
    return Opened(part, local, services, reply(hello, pod, services))


def check(hello: messages.Hello) -> None:
    if hello.rank >= hello.world_size:
        raise Refusal(
            "rank",
            f"rank {hello.rank} is outside a world of {hello.world_size} ranks: "
            "check RANK and WORLD_SIZE",
        )


async def admitted(current: Current, pod: Pod) -> Services:
    """A group that is here keeps a cordoned node anyway: its other ranks may still come."""
    try:
        services = await current.services()
    except Unserved as error:
        raise Refusal("unsupported", str(error)) from error
    if services.cordon and pod.group_key not in services.hub.living():
        raise Refusal(
            "cordoned",
            f"node {services.node} admits no new group: {services.cordon}; wait, or start the pod "
            "on another node",
        )
    return services


def admit_memory(hello: messages.Hello, pod: Pod, services: Services) -> Memory:
    """Raises QuotaError; then nothing is kept."""
    settings = services.settings
    proxies, world = settings.proxies.per_gpu, hello.world_size
    layout = layout_of(settings.rings, settings.fifo.depth, settings.fifo.signals, world)
    grant = services.quota.grant(pod, layout.pod_bytes + layout.agent_bytes)
    # All ranks may be elsewhere; then each proxy has a link to each of them.
    lines = services.lines
    endpoint_queues, link_queues = queue_bytes(settings, proxies * world, lines, services.spares)
    endpoint_boxes, link_boxes = mailbox_bytes(settings, world, services.pins)
    own_bytes = grant.bytes + proxies * PROXY_BYTES + endpoint_queues + endpoint_boxes
    try:
        opening, linking = services.room.take(own_bytes, link_boxes + link_queues)
        memory = Memory(grant, opening, linking)
        try:
            services.quota.open_session(pod)
        except QuotaError:
            memory.settle()
            raise
    except QuotaError:
        services.quota.release(grant)
        raise
    return memory


def make_rank(
    hello: messages.Hello,
    who: str,
    handle: int,
    pod: Pod,
    connection: Connection,
    services: Services,
    memory: Memory,
    nics: Turn,
    gpu: Gpu | None,
) -> LocalRank:
    """`gpu`: that of the rank; None: none is named, or nobody knows where it is."""
    wanted = services.settings.proxies
    ledger = services.cpus.ledger
    sample = services.cpus.take(wanted.per_gpu, strict=wanted.numa == "Strict", numa=numa_of(gpu))

    def release() -> None:
        ledger.give_back(sample)
        nics.give_back()
        services.quota.release(memory.grant)
        services.quota.close_session(pod)
        memory.settle()

    return LocalRank(
        rank=hello.rank,
        world_size=hello.world_size,
        pod=who,
        handle=handle,
        sample=sample,
        on_failed=lambda epoch, reason: connection.tell(
            messages.Failed(epoch=epoch, reason=reason)
        ),
        on_trial=lambda ranks: connection.tell(messages.Trial(ranks=ranks)),
        release=release,
        linked=memory.linking.settle,
        shrink=lambda: ledger.keep_first(sample),
        hung_up=connection.hung_up,
    )


async def open_native(
    local: LocalRank, pod: Pod, services: Services, memory: Memory, nics: Turn
) -> None:
    from epfabric_agent._native import NativeError

    settings = services.settings
    cpus = list(services.cpus.ledger.cpus_of(local.sample))

    def call() -> None:
        local.native = services.core.open_session(
            group=local.handle,
            rank=local.rank,
            world=local.world_size,
            rings=settings.rings,
            depth=settings.fifo.depth,
            signals=settings.fifo.signals,
            cpus=cpus,
            max_inflight=services.quota.inflight(pod) or 0,
            nics=list(nics.order),
            nics_used=nics.used,
            quota_bytes=min(settings.memory.per_pod_bytes, limits.REGION_SPACE_BYTES),
        )

    try:
        await serving(call)
    except (NativeError, MemoryError) as error:
        text = str(error) or "it has no memory left"
        raise Refusal("internal", f"the agent cannot open the session: {text}") from error
    finally:
        memory.opening.settle()
    await services.cpus.settle(local)


def reply(hello: messages.Hello, pod: Pod, services: Services) -> messages.HelloReply:
    settings = services.settings
    fifo, barrier = settings.fifo, settings.barrier
    layout = layout_of(settings.rings, fifo.depth, fifo.signals, hello.world_size)
    return messages.HelloReply(
        abi=min(hello.abi, limits.ABI_VERSION),
        node=services.node,
        agent_pid=os.getpid(),
        group=pod.group_key,
        fabric=services.fabric,
        rings=settings.rings,
        depth=fifo.depth,
        batch=fifo.batch,
        signals=fifo.signals,
        world_size=hello.world_size,
        rank=hello.rank,
        max_inflight=settings.proxies.max_inflight,
        barrier_timeout_ms=barrier.timeout_ms,
        join_timeout_ms=barrier.join_timeout_ms,
        pod_bytes=layout.pod_bytes,
        agent_bytes=layout.agent_bytes,
    )
