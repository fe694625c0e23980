// The exchange that begins every high-throughput call: all ranks have come to it, and say what they
// will send. For kernels.
#pragma once

#include "channel_proxied.cuh"

namespace epfabric {

// How a call begins. Without `rank_tokens` the ranks only meet: each is done with the call before.
struct MeetCall {
  const int32_t* rank_tokens;    // [world]: that this rank sends
  const int32_t* expert_tokens;  // [experts]
  int32_t* firsts;               // [world + 1]: the first row of each source, then all
  uint64_t* told;                // [2 + local experts]: 0, rows, rows of each expert; of the host
                                 // or of this GPU
  uint32_t experts, alignment;   // counts of experts are rounded up to multiples
};

// By one block, before the call's other kernel on the same stream. When it has ended, all windows
// are free and, with counts, it is known what will come.
EPF_DEVICE inline void meet(const ChannelBuffer& buffer, const MeetCall& call) {
  EPF_SHARED uint32_t tokens[kChannelRanks + 1];
  const ChannelWindow at{};
  const uint32_t world = buffer.shape.world;
  const uint32_t local = call.experts / world;
  const uint32_t me = platform::thread();
  const uint64_t number = platform::load_device(&buffer.state->calls);
  // The notes of a call that failed may not have been read.
  if (call.rank_tokens != nullptr && !detail::failed(buffer)) {
    for (uint32_t e = me; e < call.experts; e += platform::threads()) {
      detail::counts_to(buffer, e / local)[e % local] =
          static_cast<uint32_t>(call.expert_tokens[e]);
    }
  }
  platform::block_barrier();
  if (platform::ballot(detail::failed(buffer)) == 0) {
    detail::post_notes(buffer, call.rank_tokens, local);
  }
  if (me < world && !detail::failed(buffer)) {
    uint32_t count = 0;
    if (buffer.proxied(me)) {
      detail::await_signal(buffer, detail::met_by(buffer, me), number + 1, ChannelAwaited::kRank,
                           me);
      count = static_cast<uint32_t>(detail::note_from(buffer, me)->tokens);
    } else {
      const uint32_t sends = call.rank_tokens != nullptr ? call.rank_tokens[me] : 0;
      platform::store_release(buffer.at<uint64_t>(me, at.ready) + buffer.rank,
                              detail::say(number, sends));
      const uint64_t* ready = buffer.at<uint64_t>(buffer.rank, at.ready) + me;
      detail::await_rank(buffer, ready, number, me, count);
    }
    tokens[me] = count;
  }
  platform::block_barrier();
  if (me == 0) platform::store_device(&buffer.state->calls, number + 1);
  if (call.rank_tokens == nullptr || detail::failed(buffer)) return;
  for (uint32_t e = me; e < local && call.told != nullptr; e += platform::threads()) {
    uint32_t rows = 0;
    for (uint32_t from = 0; from < world; ++from) rows += detail::counts_from(buffer, from)[e];
    call.told[2 + e] = (rows + call.alignment - 1) / call.alignment * call.alignment;
  }
  platform::block_barrier();
  if (me != 0) return;
  uint32_t rows = 0;
  for (uint32_t from = 0; from < world; ++from) {
    call.firsts[from] = static_cast<int32_t>(rows);
    rows += tokens[from];
  }
  call.firsts[world] = static_cast<int32_t>(rows);
  if (call.told == nullptr) return;
  call.told[1] = rows;
  platform::store_release(call.told, 1);  // the host looks for it
}

}  // namespace epfabric
