// How many tokens of a batch go to each rank, node and expert, and which go to which rank; for
// kernels, by any grid of whole warps. Counts are added to what is there: zeros at first.
#pragma once

#include "platform_block.cuh"
#include "window.h"

namespace epfabric {

struct RoutingCall {
  const int64_t* topk;      // [count, k]; outside of the experts: none
  uint8_t* in_rank;         // [count, world]: 1 where the token goes to the rank
  uint32_t* rank_tokens;    // [world]
  uint32_t* node_tokens;    // [world / node_ranks], or nothing
  uint32_t* expert_tokens;  // [experts]
  uint32_t count, k, world, experts, node_ranks;
};

namespace detail {

struct RoutingCounts {
  uint32_t ranks[kWindowRanks];
  uint32_t nodes[kWindowRanks];
  uint32_t experts[kWindowExperts];
};

// By a warp. A token that names an expert, a rank or a node twice counts there once.
EPF_DEVICE inline void route(const RoutingCall& call, uint32_t token, RoutingCounts& counts) {
  const uint32_t local = call.experts / call.world;
  const uint32_t me = platform::lane();
  const int64_t named = me < call.k ? call.topk[uint64_t{token} * call.k + me] : -1;
  const bool names = named >= 0 && named < call.experts;
  const uint64_t expert = names ? static_cast<uint64_t>(named) : ~0u;
  const uint64_t rank = expert / local;
  const uint64_t node = rank / call.node_ranks;
  bool again = !names;
  bool rank_again = !names;
  bool node_again = !names;
  for (uint32_t other = 0; other < call.k; ++other) {
    const uint64_t before = platform::broadcast(expert, other);
    if (other >= me || before == ~0u) continue;
    again = again || before == expert;
    rank_again = rank_again || before / local == rank;
    node_again = node_again || before / local / call.node_ranks == node;
  }
  if (!again) platform::add_block(&counts.experts[expert], 1);
  if (!rank_again) platform::add_block(&counts.ranks[rank], 1);
  if (!node_again) platform::add_block(&counts.nodes[node], 1);
  for (uint32_t first = 0; first < call.world; first += platform::kWarpSize) {
    const uint32_t mine = first + me;
    bool in = false;
    for (uint32_t other = 0; other < call.k; ++other) {
      const uint64_t one = platform::broadcast(names ? rank : ~0u, other);
      in = in || one == mine;
    }
    if (mine < call.world) call.in_rank[uint64_t{token} * call.world + mine] = in ? 1 : 0;
  }
}

}  // namespace detail

EPF_DEVICE inline void route_all(const RoutingCall& call) {
  EPF_SHARED detail::RoutingCounts counts;
  const uint32_t me = platform::thread();
  for (uint32_t i = me; i < kWindowExperts; i += platform::threads()) {
    counts.ranks[i] = counts.nodes[i] = counts.experts[i] = 0;
  }
  platform::block_barrier();
  const uint32_t warps = platform::threads() / platform::kWarpSize;
  const uint32_t first = platform::block() * warps + me / platform::kWarpSize;
  for (uint32_t token = first; token < call.count; token += platform::blocks() * warps) {
    detail::route(call, token, counts);
  }
  platform::block_barrier();
  for (uint32_t i = me; i < call.experts; i += platform::threads()) {
    const uint32_t nodes = call.node_tokens != nullptr ? call.world / call.node_ranks : 0;
    if (counts.experts[i] != 0) platform::add_device(call.expert_tokens + i, counts.experts[i]);
    if (i < call.world && counts.ranks[i] != 0) {
      platform::add_device(call.rank_tokens + i, counts.ranks[i]);
    }
    if (i < nodes && counts.nodes[i] != 0) {
      platform::add_device(call.node_tokens + i, counts.nodes[i]);
    }
  }
}

}  // namespace epfabric
