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
  Atomic atomic{};     // ADD and CAS
  uint64_t until = 0;  // DRAIN: every ticket below it
  bool rail = false;   // BARRIER
  uint8_t source_region = 0;
  uint8_t destination_region = 0;
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

inline Refusal check_destination(const SessionView& view, uint32_t rank) {
  if (rank >= view.world) return Refusal::kRankOutOfGroup;
  // Partner: Epoch::leave(), as in Epoch::left().
  if (view.states[rank].load(std::memory_order_seq_cst) == kLeft) return Refusal::kRankLeft;
  return Refusal::kNone;
}

inline Refusal check_write(const Slot& slot, const SessionView& view, Command& out) {
  const Write write = unpack_write(slot);
  if (const Refusal bad = check_destination(view, write.rank); bad != Refusal::kNone) return bad;
  if (write.advance == 0 && write.signal != 0) return Refusal::kUnusedField;
  if (write.signal >= view.signals) return Refusal::kSignalOutOfRange;
  const uint64_t size = uint64_t{write.units} * kUnitBytes;
  const int from = region_of(view.own, uint64_t{write.source} * kUnitBytes, size);
  if (from < 0) return Refusal::kSourceOutOfRegion;
  const int to =
      region_of(view.regions[write.rank], uint64_t{write.destination} * kUnitBytes, size);
  if (to < 0) return Refusal::kDestinationOutOfRegion;
  out.op = Op::kWrite;
  out.write = write;
  out.source_region = static_cast<uint8_t>(from);
  out.destination_region = static_cast<uint8_t>(to);
  return Refusal::kNone;
}

inline Refusal check_signal(const Slot& slot, const SessionView& view, Command& out) {
  const Write write = unpack_write(slot);
  if (const Refusal bad = check_destination(view, write.rank); bad != Refusal::kNone) return bad;
  if (write.source != 0 || write.destination != 0 || write.units != 1) {
    return Refusal::kUnusedField;
  }
  if (write.advance == 0) return Refusal::kNoAdvance;
  if (write.signal >= view.signals) return Refusal::kSignalOutOfRange;
  out.op = Op::kSignal;
  out.write = write;
  out.write.units = 0;
  return Refusal::kNone;
}

// Offsets are in words, so that none is unaligned; regions begin at multiples of 64 KiB.
inline Refusal check_atomic(Op op, const Slot& slot, const Slot& second, const SessionView& view,
                            Command& out) {
  const Atomic atomic = unpack_atomic(slot, second);
  if (const Refusal bad = check_destination(view, atomic.rank); bad != Refusal::kNone) return bad;
  constexpr uint64_t kSwapUses = (uint64_t{1} << field::kOperandTop) | head_of(Op::kCasSwap, 0);
  if ((slot.lo & field::kReservedAtomic) != 0 || (op == Op::kCas && (second.lo & ~kSwapUses) != 0))
    return Refusal::kUnusedField;
  const int to = region_of(view.regions[atomic.rank], atomic.word * kWordBytes, kWordBytes);
  if (to < 0) return Refusal::kDestinationOutOfRegion;
  out.op = op;
  out.atomic = atomic;
  out.destination_region = static_cast<uint8_t>(to);
  return Refusal::kNone;
}

}  // namespace detail

// Checks the command in `slot` (without lap bits), which is the ring's `ticket`th; `second` is the
// slot after a CAS, else zeros. An accepted command is unpacked into `out`: its op, and the fields
// that belong to it.
inline Refusal check(const Slot& slot, const Slot& second, uint64_t ticket, uint32_t ring,
                     const SessionView& view, Command& out) {
  const Op op = op_of(slot.lo);
  if (op == Op::kInvalid) return Refusal::kBadOp;
  if (op == Op::kCas && op_of(second.lo) != Op::kCasSwap) return Refusal::kHalfCas;
  if (flag_of(slot.lo | second.lo)) return Refusal::kReservedFlag;
  switch (op) {
    case Op::kWrite:
      return detail::check_write(slot, view, out);
    case Op::kSignal:
      return detail::check_signal(slot, view, out);
    case Op::kDrain:
      if (slot.hi != 0 || (slot.lo & ~field::kLow32) != head_of(Op::kDrain, 0)) {
        return Refusal::kUnusedField;
      }
      out.until = drain_until(ticket, static_cast<uint32_t>(slot.lo));
      if (out.until == kNoTicket) return Refusal::kBadDrain;
      out.op = Op::kDrain;
      return Refusal::kNone;
    case Op::kBarrier:
      if (slot.hi != 0 || (slot.lo & ~head_of(Op::kInvalid, 1)) != head_of(Op::kBarrier, 0))
        return Refusal::kUnusedField;
      if (ring != 0) return Refusal::kUnsupported;
      if (view.departed->load(std::memory_order_acquire)) return Refusal::kRankLeft;
      out.op = Op::kBarrier;
      out.rail = slot.lo != head_of(Op::kBarrier, 0);
      return Refusal::kNone;
    case Op::kAdd:
    case Op::kCas:
      return detail::check_atomic(op, slot, second, view, out);
    default:
      return Refusal::kHalfCas;  // the second slot alone
  }
}

}  // namespace epfabric::agent
