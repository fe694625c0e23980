// How much of the agent's memory the queues of verbs take. Their form is the driver's: they are
// counted as mlx5's in rdma-core lays them out, whose entries are long. Pure. For the agent's
// `budget` and the admission of sessions, by module_nics.h.
#pragma once

#include <epfabric/layout.h>

#include <bit>
#include <cstdint>

#include "verbs_choice.h"

namespace epfabric::agent {

struct QueueMemory {
  uint64_t endpoint;  // bytes of one: its completion queue, shared receive queue, datagrams
  uint64_t link;      // of one queue pair
};

// `overhead`: of an entry, before what it carries itself, or 16 bytes that say where that is.
constexpr uint64_t send_queue_bytes(uint32_t entries, uint32_t overhead, uint32_t inlined) {
  constexpr uint64_t kBlock = 64, kNotes = 16;  // the driver's own, for each block
  const uint64_t carried = inlined == 0 ? 16 : round_up(4 + uint64_t{inlined}, 16);
  const uint64_t queue = std::bit_ceil(entries * round_up(overhead + carried, kBlock));
  return queue + queue / kBlock * kNotes;
}

constexpr QueueMemory queue_memory(const QueueSizes& sizes, uint32_t inlined) {
  constexpr uint32_t kOverhead = 192, kDatagram = 64;
  constexpr uint64_t kCompletion = 64, kReceive = 32, kPlace = 16, kName = 8;
  QueueMemory out{};
  out.link = send_queue_bytes(sizes.send, kOverhead, inlined);
  out.endpoint = std::bit_ceil(uint64_t{sizes.total} + 1) * kCompletion;
  out.endpoint += std::bit_ceil(uint64_t{sizes.receive} + 1) * (kReceive + kName);
  out.endpoint += send_queue_bytes(kGreetings, kDatagram, 0) + kGreetings * (kPlace + kName);
  return out;
}

}  // namespace epfabric::agent
