// Decides whether a command may run: a pure function of the copied slot and of what the agent knows
// about the session and its group. Called by the ring's proxy (ring.h), once for each command.
#pragma once

#include <epfabric/command.h>

#include <atomic>
#include <span>

namespace epfabric::agent {

// Bytes [begin, end) of a rank's offset space that one region covers.
struct Extent {
  uint64_t begin;
  uint64_t end;
};

// Where a rank of a running epoch is; written by Epoch, from the top down only.
enum RankState : uint8_t {
  kPresent = 0,
  kLeft,      // in good order: commands to it are refused
  kMasked,    // lost: commands to it complete without effect
  kExcluded,  // masked everywhere, so that barriers wait for it no more
};

// What a session's commands are checked against. The spans belong to the epoch and outlive the
// proxy's use.
struct SessionView {
  uint32_t world = 0;
  uint32_t signals = 0;
  std::span<const Extent> own;
  std::span<const std::span<const Extent>> regions;  // by destination rank
  std::span<const std::atomic<uint8_t>> states;      // by rank: a RankState
  const std::atomic<uint32_t>* departed = nullptr;   // how many ranks left
};

// A command that was read once, unpacked and accepted.
struct Command {
  Op op = Op::kInvalid;
  Write write{};       // WRITE and SIGNAL
  uint64_t until = 0;  // DRAIN: every ticket below it
  uint8_t source_region = 0;
  uint8_t destination_region = 0;
};

struct Checked {
  Refusal refusal;
  Command command;
};

// Index of the region that holds all of [begin, begin + size), or -1.
inline int region_of(std::span<const Extent> regions, uint64_t begin, uint64_t size) {
  for (size_t i = 0; i < regions.size(); ++i) {
    if (begin >= regions[i].begin && begin + size <= regions[i].end) return static_cast<int>(i);
  }
  return -1;
}

// Ticket that a DRAIN names by its low 32 bits, given the DRAIN's own ticket; kNoTicket for one
// that lies ahead or before the ring began.
inline constexpr uint64_t kNoTicket = ~uint64_t{0};
inline uint64_t drain_until(uint64_t ticket, uint32_t low) {
  const uint32_t back = static_cast<uint32_t>(ticket) - low;
  if (back >= (1u << 31) || back > ticket) return kNoTicket;
  return ticket - back;
}

namespace detail {

inline Refusal check_destination(const SessionView& view, const Write& write) {
  if (write.rank >= view.world) return Refusal::kRankOutOfGroup;
  // Partner: Epoch::leave(), as in Epoch::left().
  if (view.states[write.rank].load(std::memory_order_seq_cst) == kLeft) return Refusal::kRankLeft;
  return Refusal::kNone;
}

inline Checked check_write(const Slot& slot, const SessionView& view) {
  const Write write = unpack_write(slot);
  const auto refuse = [](Refusal refusal) { return Checked{refusal, {}}; };
  if (const Refusal bad = check_destination(view, write); bad != Refusal::kNone) return refuse(bad);
  if (write.advance == 0 && write.signal != 0) return refuse(Refusal::kUnusedField);
  if (write.signal >= view.signals) return refuse(Refusal::kSignalOutOfRange);
  const uint64_t size = uint64_t{write.units} * kUnitBytes;
  const int from = region_of(view.own, uint64_t{write.source} * kUnitBytes, size);
  if (from < 0) return refuse(Refusal::kSourceOutOfRegion);
  const int to =
      region_of(view.regions[write.rank], uint64_t{write.destination} * kUnitBytes, size);
  if (to < 0) return refuse(Refusal::kDestinationOutOfRegion);
  return {Refusal::kNone,
          {Op::kWrite, write, 0, static_cast<uint8_t>(from), static_cast<uint8_t>(to)}};
}

inline Checked check_signal(const Slot& slot, const SessionView& view) {
  Write write = unpack_write(slot);
  const auto refuse = [](Refusal refusal) { return Checked{refusal, {}}; };
  if (const Refusal bad = check_destination(view, write); bad != Refusal::kNone) return refuse(bad);
  if (write.source != 0 || write.destination != 0 || write.units != 1) {
    return refuse(Refusal::kUnusedField);
  }
  if (write.advance == 0) return refuse(Refusal::kNoAdvance);
  if (write.signal >= view.signals) return refuse(Refusal::kSignalOutOfRange);
  write.units = 0;
  return {Refusal::kNone, {Op::kSignal, write}};
}

}  // namespace detail

// Checks the command in `slot` (without lap bits), which is the ring's `ticket`th. CAS is decided
// by its first slot; the ring looks at its second.
inline Checked check(const Slot& slot, uint64_t ticket, uint32_t ring, const SessionView& view) {
  const auto refuse = [](Refusal refusal) { return Checked{refusal, {}}; };
  const Op op = op_of(slot.lo);
  if (op == Op::kInvalid) return refuse(Refusal::kBadOp);
  if (flag_of(slot.lo)) return refuse(Refusal::kReservedFlag);
  switch (op) {
    case Op::kWrite:
      return detail::check_write(slot, view);
    case Op::kSignal:
      return detail::check_signal(slot, view);
    case Op::kDrain: {
      if (slot.hi != 0 || (slot.lo & ~field::kLow32) != head_of(Op::kDrain, 0)) {
        return refuse(Refusal::kUnusedField);
      }
      const uint64_t until = drain_until(ticket, static_cast<uint32_t>(slot.lo));
      if (until == kNoTicket) return refuse(Refusal::kBadDrain);
      return {Refusal::kNone, {Op::kDrain, {}, until}};
    }
    case Op::kBarrier:
      if (slot.hi != 0 || slot.lo != head_of(Op::kBarrier, 0)) return refuse(Refusal::kUnusedField);
      if (ring != 0) return refuse(Refusal::kUnsupported);
      if (view.departed->load(std::memory_order_acquire)) return refuse(Refusal::kRankLeft);
      return {Refusal::kNone, {Op::kBarrier}};
    case Op::kCasSwap:
      return refuse(Refusal::kHalfCas);
    default:
      return refuse(Refusal::kUnsupported);
  }
}

}  // namespace epfabric::agent
