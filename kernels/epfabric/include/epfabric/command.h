// The 16-byte command: what a rank asks of its proxy. Packed by producers (GPU or CPU), unpacked by
// the agent. Offsets and lengths of WRITE are in units of 16 B, offsets of ADD and CAS in units of
// 8 B. Bit 63 of both halves is the lap bit, set by the ring and never by pack_*(). No field
// crosses a half.
#pragma once

#include "platform.h"

namespace epfabric {

inline constexpr uint32_t kAbiVersion = 1;
inline constexpr uint32_t kMaxRanks = 4096;  // 12 bits
inline constexpr uint32_t kMaxAdvance = (1u << 15) - 1;
inline constexpr uint32_t kMaxSignals = 1u << 11;  // per (writing rank, ring)
inline constexpr uint32_t kUnitBytes = 16;
inline constexpr uint32_t kWordBytes = 8;                     // what an ATOMIC changes
inline constexpr uint32_t kMaxUnits = 1u << 20;               // 16 MiB
inline constexpr uint64_t kMaxRankBytes = uint64_t{1} << 36;  // 64 GiB: 32 bits of units
inline constexpr uint64_t kLapBit = uint64_t{1} << 63;

enum class Op : uint8_t {
  kInvalid = 0,
  kWrite = 1,
  kSignal = 2,  // a WRITE without bytes
  kAdd = 3,
  kCas = 4,  // first of two slots: where, and what is expected
  kDrain = 5,
  kBarrier = 6,
  kCasSwap = 7,  // second slot of a CAS: the new value
};

// Why a command was refused; the value stands in the agent's segment and in metrics.
enum class Refusal : uint8_t {
  kNone = 0,
  kBadOp,
  kReservedFlag,
  kUnusedField,
  kRankOutOfGroup,
  kRankLeft,
  kSourceOutOfRegion,
  kDestinationOutOfRegion,
  kSignalOutOfRange,
  kNoAdvance,  // SIGNAL that moves its word by nothing
  kBadDrain,   // a drain of commands that were not pushed yet
  kHalfCas,    // one slot of a CAS without the other
  kUnsupported,
  kCount,
};

struct alignas(16) Slot {
  uint64_t lo;
  uint64_t hi;
};
static_assert(sizeof(Slot) == 16);

// First half, from the top: lap 1, op 3, flag 1, rank 12, advance 15, source offset 32.
// Second half: lap 1, signal word 11, length-1 20, destination offset 32.
struct Write {
  uint32_t rank;         // destination rank
  uint32_t source;       // units, in the writer's offset space
  uint32_t destination;  // units, in the destination rank's offset space
  uint32_t units;        // 1 … kMaxUnits
  uint32_t signal;       // word index, relative to the writing (rank, ring); 0 where advance is 0
  uint32_t advance;      // what the word grows by; 0 = no signal
};

// On the 8-byte word of `rank` at byte offset `word` * kWordBytes.
struct Atomic {
  uint32_t rank;
  uint64_t word;
  uint64_t operand;  // ADD: the addend, modulo 2^64; CAS: what is expected
  uint64_t swap;     // CAS: the new value
};

namespace field {
inline constexpr unsigned kOp = 60, kFlag = 59, kRank = 47, kAdvance = 32;
inline constexpr unsigned kSignal = 52, kLength = 32;
inline constexpr uint64_t kLow32 = 0xffffffffu;
inline constexpr uint64_t kLow33 = (uint64_t{1} << 33) - 1;
inline constexpr unsigned kOperandTop = 33;  // bit 63 of an operand; bits 0–62 fill the second half
inline constexpr uint64_t kReservedAtomic = ((uint64_t{1} << kRank) - 1) & ~((kLow33 << 1) | 1);
}  // namespace field

EPF_HOST_DEVICE constexpr Op op_of(uint64_t lo) { return static_cast<Op>((lo >> field::kOp) & 7); }
EPF_HOST_DEVICE constexpr bool flag_of(uint64_t lo) { return (lo >> field::kFlag) & 1; }
EPF_HOST_DEVICE constexpr uint32_t rank_of(uint64_t lo) {
  return static_cast<uint32_t>(lo >> field::kRank) & (kMaxRanks - 1);
}
EPF_HOST_DEVICE constexpr uint64_t head_of(Op op, uint32_t rank) {
  return (uint64_t{static_cast<uint8_t>(op)} << field::kOp) | (uint64_t{rank} << field::kRank);
}

// Packs a WRITE into `out`; false (and `out` untouched) where a field does not fit.
EPF_HOST_DEVICE constexpr bool pack_write(const Write& write, Slot& out) {
  if (write.rank >= kMaxRanks || write.units == 0 || write.units > kMaxUnits) return false;
  if (write.signal >= kMaxSignals || write.advance > kMaxAdvance) return false;
  if (write.advance == 0 && write.signal != 0) return false;
  out.lo =
      head_of(Op::kWrite, write.rank) | (uint64_t{write.advance} << field::kAdvance) | write.source;
  out.hi = (uint64_t{write.signal} << field::kSignal) |
           (uint64_t{write.units - 1} << field::kLength) | write.destination;
  return true;
}

EPF_HOST_DEVICE constexpr bool pack_signal(uint32_t rank, uint32_t signal, uint32_t advance,
                                           Slot& out) {
  if (rank >= kMaxRanks || signal >= kMaxSignals) return false;
  if (advance == 0 || advance > kMaxAdvance) return false;
  out.lo = head_of(Op::kSignal, rank) | (uint64_t{advance} << field::kAdvance);
  out.hi = uint64_t{signal} << field::kSignal;
  return true;
}

// Unpacks a WRITE or a SIGNAL (whose units come out as 1 and mean nothing).
EPF_HOST_DEVICE constexpr Write unpack_write(const Slot& slot) {
  return Write{
      rank_of(slot.lo),
      static_cast<uint32_t>(slot.lo),
      static_cast<uint32_t>(slot.hi),
      (static_cast<uint32_t>(slot.hi >> field::kLength) & (kMaxUnits - 1)) + 1,
      static_cast<uint32_t>(slot.hi >> field::kSignal) & (kMaxSignals - 1),
      static_cast<uint32_t>(slot.lo >> field::kAdvance) & kMaxAdvance,
  };
}

// Packs a DRAIN of every command of the ring whose ticket is below `until` (at most its own
// ticket).
EPF_HOST_DEVICE constexpr Slot pack_drain(uint64_t until) {
  return Slot{head_of(Op::kDrain, 0) | (until & field::kLow32), 0};
}

// A BARRIER of all ranks, or of those that have the sender's place on their nodes (its rail).
EPF_HOST_DEVICE constexpr Slot pack_barrier(bool rail = false) {
  return Slot{head_of(Op::kBarrier, rail ? 1 : 0), 0};
}

// One slot of an ATOMIC: `op` is kAdd (operand: the addend), kCas (operand: what is expected) or
// kCasSwap (operand: the new value; rank and offset 0). The word's offset is in units of 8 B, 33
// bits.
EPF_HOST_DEVICE constexpr bool pack_atomic(Op op, uint32_t rank, uint64_t offset, uint64_t operand,
                                           Slot& out) {
  if (op != Op::kAdd && op != Op::kCas && op != Op::kCasSwap) return false;
  if (rank >= kMaxRanks || offset > field::kLow33) return false;
  if (op == Op::kCasSwap && (rank != 0 || offset != 0)) return false;
  out.lo = head_of(op, rank) | ((operand >> 63) << field::kOperandTop) | offset;
  out.hi = operand & ~kLapBit;
  return true;
}

// Both slots of a CAS.
EPF_HOST_DEVICE constexpr bool pack_cas(uint32_t rank, uint64_t offset, uint64_t expected,
                                        uint64_t value, Slot (&out)[2]) {
  return pack_atomic(Op::kCas, rank, offset, expected, out[0]) &&
         pack_atomic(Op::kCasSwap, 0, 0, value, out[1]);
}

EPF_HOST_DEVICE constexpr uint64_t operand_of(const Slot& slot) {
  return ((slot.lo >> field::kOperandTop) & 1) << 63 | slot.hi;
}

// Unpacks an ADD, or a CAS with its second slot.
EPF_HOST_DEVICE constexpr Atomic unpack_atomic(const Slot& slot, const Slot& second) {
  return Atomic{rank_of(slot.lo), slot.lo & field::kLow33, operand_of(slot), operand_of(second)};
}

}  // namespace epfabric
