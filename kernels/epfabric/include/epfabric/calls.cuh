// How a block begins and ends a call of a low-latency buffer, and how it waits for other ranks. For
// kernels, as dispatch.cuh.
#pragma once

#include "proxied.cuh"

namespace epfabric {

// By a block, first of all. False: do nothing, the buffer has failed. The last block tells every
// rank which calls this one is done with: the kernels that read what they brought have ended.
EPF_DEVICE inline bool look(const DeviceBuffer& buffer, Kind kind, Here& here) {
  const uint32_t me = platform::thread();
  if (me == platform::threads() - 1) here.failed = platform::load_device(&buffer.state->failed);
  if (me == platform::threads() - 2) {
    const BlockCalls calls = buffer.calls[platform::block()];
    here.calls = calls;
    here.sent = kind == Kind::kDispatch ? calls.dispatch_sent : calls.combine_sent;
    here.received = kind == Kind::kDispatch ? calls.dispatch_received : calls.combine_received;
    here.told_tokens = platform::load_device(&buffer.state->told_tokens);
    here.told_rows = platform::load_device(&buffer.state->told_rows);
  }
  for (uint32_t rank = me; rank < buffer.shape.world; rank += platform::threads()) {
    here.windows[rank] = buffer.windows[rank];
    here.masked[rank] = platform::load_device(buffer.masked + rank) != 0;
  }
  platform::block_barrier();
  if (here.failed != 0) return false;
  if (platform::block() != platform::blocks() - 1) return true;
  const Window at = window_of(buffer.shape);
  const uint32_t first = platform::threads() - 1 - me;  // not those that wait first
  for (uint32_t to = first; to < buffer.shape.world; to += platform::threads()) {
    if (here.masked[to] != 0 || here.proxied(to)) continue;
    // Partner: await_credits(). The kernels that read what they brought have ended: there is
    // nothing left to be ordered before.
    platform::store_relaxed(here.at<uint64_t>(to, at.dispatch_credits) + buffer.rank,
                            here.calls.dispatch_received);
    platform::store_relaxed(here.at<uint64_t>(to, at.combine_credits) + buffer.rank,
                            here.calls.combine_received);
  }
  detail::post_credits(buffer, here);
  return true;
}

// By a block, last of all: it has been through the phases of a call.
EPF_DEVICE inline void count_call(const DeviceBuffer& buffer, Kind kind, const Here& here,
                                  bool sent, bool received, bool weighted = false) {
  if (platform::thread() != 0) return;
  BlockCalls& calls = buffer.calls[platform::block()];
  if (kind == Kind::kDispatch) {
    calls.dispatch_sent = here.sent + (sent ? 1 : 0);
    calls.dispatch_received = here.received + (received ? 1 : 0);
  } else {
    calls.combine_sent = here.sent + (sent ? 1 : 0);
    calls.combine_received = here.received + (received ? 1 : 0);
    calls.weighted = here.calls.weighted + (sent && weighted ? 1 : 0);
  }
}

namespace detail {

// Host memory is looked at by few: the reads of all blocks would keep the agent from writing there
// for hundreds of microseconds. Block 0, which waits for all that others wait for, hands on what it
// sees to GPU memory: words of proxied ranks where those of others are, and that a rank is lost.
EPF_DEVICE inline bool relays() { return platform::block() == 0; }

// `there()` looks with an acquire load. False at the bound, at an abort, when `from` is masked or
// its agent says that it is lost, or when the buffer has failed.
template <typename There>
EPF_DEVICE bool comes(const DeviceBuffer& buffer, uint32_t from, There there) {
  uint64_t begin = 0;
  const uint32_t seldom = relays() ? 63 : 4095;
  for (uint32_t look = 0;; ++look) {
    if (there()) return true;
    if (begin == 0) begin = platform::clock_ns();
    if ((look & 63) == 63) {
      if (platform::clock_ns() - begin > buffer.timeout_ns) return false;
      if (platform::load_device(buffer.masked + from) != 0) return false;
      if (platform::load_device(&buffer.state->failed) != 0) return false;
    }
    if ((look & seldom) == seldom) {
      if (buffer.aborts.set()) return false;
      if (buffer.agent != nullptr && buffer.agent->masked(from)) return there();
    }
    platform::pause(look);
  }
}

// Whether `from` came in time is asked by every block, and a rank may come just when the first of
// them gives it up. What the first one says holds for all blocks of the call.
EPF_DEVICE inline bool agreed(uint64_t* verdict, uint64_t call, bool came) {
  const uint64_t mine = (call + 1) * 2 + (came ? 1 : 0);
  for (uint64_t seen = platform::load_device(verdict);;) {
    if (seen / 2 > call) return (seen & 1) != 0;
    const uint64_t before = platform::exchange_device(verdict, seen, mine);
    if (before == seen) return came;
    seen = before;
  }
}

// Whether what `call` needs of `from` came; alike for all blocks. here.masked follows.
template <typename There>
EPF_DEVICE bool await(const DeviceBuffer& buffer, Here& here, uint32_t from, Awaited what,
                      uint64_t call, There there) {
  const bool came = here.masked[from] == 0 && comes(buffer, from, there);
  if (buffer.mask == 0) {
    if (!came && here.masked[from] == 0) fail(buffer, from, what);
    here.masked[from] |= came ? 0 : 1;
    return came;
  }
  const uint64_t place = uint64_t{static_cast<uint32_t>(what)} * buffer.shape.world + from;
  const bool counts = agreed(buffer.verdicts + place, call, came);
  here.masked[from] = counts ? 0 : 1;
  if (!counts) platform::store_device(buffer.masked + from, 1);
  // Another block has seen it, so it is there.
  if (!counts || came || there()) return counts;
  uint64_t begin = platform::clock_ns();
  for (uint32_t look = 0; !there(); ++look) {
    if (platform::clock_ns() - begin > buffer.timeout_ns) {
      fail(buffer, from, what);
      return false;
    }
    platform::pause(look);
  }
  return true;
}

}  // namespace detail

// By one thread: waits until `from` has said of the call what this table holds; its count then.
// 0 when it will not. The first block adds to waits[from] how long it took.
EPF_DEVICE inline uint32_t await_word(const DeviceBuffer& buffer, Here& here, uint64_t table,
                                      uint64_t call, uint32_t from, Awaited what,
                                      uint64_t* waits = nullptr) {
  const bool counts = waits != nullptr && platform::block() == 0;
  const uint64_t begin = counts ? platform::clock_ns() : 0;
  const bool relayed = here.proxied(from) && detail::relays();
  const uint64_t before = what == Awaited::kWeights ? here.calls.weighted : call;
  auto* own = here.at<uint64_t>(buffer.rank, place_of(buffer, table, call, from));
  const uint64_t* word = relayed ? detail::said_by(buffer, from, what) : own;
  uint64_t value = 0;
  const bool came = detail::await(buffer, here, from, what, call, [&] {
    value = platform::load_acquire(word);
    if (relayed) return value > before;
    const uint32_t ahead = static_cast<uint32_t>(value >> 32) - static_cast<uint32_t>(call + 1);
    return ahead < 0x80000000u;
  });
  if (counts) platform::fetch_add_device(waits + from, platform::clock_ns() - begin);
  if (came && relayed) {
    value = what == Awaited::kTokens ? detail::note_from(buffer, call, from)->messages
                                     : word_of(call, 0);
    // Partner: the look of the other blocks. What the agent wrote before its word is handed on too.
    platform::store_release(own, value);
  }
  return came ? static_cast<uint32_t>(value) : 0;
}

// By a block, and known to all of it after a barrier: waits until every rank is done with what this
// one wrote, but for the last `ahead` - 1 calls of the kind. Its last threads wait.
EPF_DEVICE inline void await_credits(const DeviceBuffer& buffer, Here& here, uint64_t table,
                                     uint64_t call, Awaited what, uint32_t ahead = kParities) {
  if (call < ahead && buffer.mask == 0) return;
  const uint32_t first = platform::threads() - 1 - platform::thread();
  for (uint32_t to = first; to < buffer.shape.world; to += platform::threads()) {
    const bool relayed = here.proxied(to) && detail::relays();
    auto* own = here.at<uint64_t>(buffer.rank, table) + to;
    const uint64_t* credit = relayed ? detail::said_by(buffer, to, what) : own;
    uint64_t value = 0;
    const bool came = detail::await(buffer, here, to, what, call, [&] {
      value = platform::load_acquire(credit);
      return value + ahead > call;
    });
    if (came && relayed) platform::store_release(own, value);  // partner: as in await_word()
  }
}

// By a block: true for the last of the grid; what the others did before is then visible to it, and
// to whoever sees a release store of its threads.
EPF_DEVICE inline bool last_block(uint64_t* arrived) {
  EPF_SHARED uint32_t last;
  platform::block_barrier();
  if (platform::thread() == 0) {
    platform::fence_device();
    last = platform::fetch_add_device(arrived, 1) == platform::blocks() - 1;
    if (last != 0) platform::store_device(arrived, 0);
    platform::fence_device();
  }
  platform::block_barrier();
  return last != 0;
}

}  // namespace epfabric
