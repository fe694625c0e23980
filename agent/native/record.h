// The control record (32 bytes) that agents write into each other's mailboxes, and the immediate
// that comes with it. Pure: packing, unpacking and validation. Used by mailbox.h and the proxies.
#pragma once

#include <cstdint>

namespace epfabric::agent {

// Of records, mailboxes and session descriptions: agents whose cores differ in it exchange nothing.
inline constexpr uint32_t kRecordVersion = 8;

enum class RecordKind : uint8_t {
  kInvalid = 0,
  kSignal = 1,   // value: what the signal word now is
  kArrive = 2,   // value: barrier number; extra: Arrival
  kRelease = 3,  // value: barrier number; extra: 1 = the barrier is kept as a trace, else 0
  kCredit = 4,   // nothing but `consumed`
  kPresent = 5,  // value: barrier number; extra: bit mask of the node's ranks that have entered
  kRound = 6,    // value: barrier number; extra: Round
  kAsk = 7,      // value: barrier number; wants kPresent
  // ATOMIC; index: the low 16 bits of its ticket. Applied when taken, answered by kOld.
  kAdd = 8,     // value: the addend; extra: the word's offset in units of 8 B
  kExpect = 9,  // the first half of a CAS; value: what is expected; extra: as above
  kSwap = 10,   // the second half, the ring's next such record; value: the new value
  kOld = 11,    // value: what the word held before; ring, index: of the ATOMIC
};

inline constexpr uint16_t kFullScope = 0;
inline constexpr uint16_t kRailScope = 1;

struct ControlRecord {
  RecordKind kind = RecordKind::kInvalid;
  uint8_t ring = 0;
  uint16_t index = 0;        // signal word, end of a ticket, or scope of a barrier
  uint16_t source = 0;       // rank
  uint16_t destination = 0;  // rank
  uint32_t epoch = 0;
  uint32_t consumed = 0;  // of the other direction, modulo 2^32: records that were taken so far, or
                          // on an unordered endpoint sequences
  uint64_t value = 0;
  uint64_t extra = 0;
};
static_assert(sizeof(ControlRecord) == 32);

// What a node says with its arrival: its last rank, and how long its first one has been there.
struct Arrival {
  uint32_t last_rank;
  uint64_t waited_ns;
};

inline constexpr uint64_t kMostWaitedNs = (uint64_t{1} << 48) - 1;

constexpr uint64_t pack_arrival(const Arrival& arrival) {
  const uint64_t waited = arrival.waited_ns < kMostWaitedNs ? arrival.waited_ns : kMostWaitedNs;
  return waited << 16 | (arrival.last_rank & 0xffff);
}
constexpr Arrival unpack_arrival(uint64_t extra) {
  return {static_cast<uint32_t>(extra & 0xffff), extra >> 16};
}

// One round of a dissemination barrier.
struct Round {
  uint8_t round = 0;
  bool over = false;  // the sender knows that all nodes have entered
  bool slow = false;  // the barrier before took long at the sender, or at a node that it heard of
  uint64_t view = 0;  // which nodes the sender has lost, as a hash of 48 bits
};

inline constexpr uint64_t kViewBits = (uint64_t{1} << 48) - 1;

constexpr uint64_t pack_round(const Round& round) {
  return round.view << 16 | uint64_t{round.over} << 9 | uint64_t{round.slow} << 8 | round.round;
}
constexpr Round unpack_round(uint64_t extra) {
  return {static_cast<uint8_t>(extra), (extra >> 9 & 1) != 0, (extra >> 8 & 1) != 0, extra >> 16};
}

// Orders of a ring, which stand behind its earlier writes; the other kinds overtake nothing either,
// but may use the places that a mailbox keeps for them.
constexpr bool is_order(RecordKind kind) {
  return kind == RecordKind::kSignal || kind == RecordKind::kAdd || kind == RecordKind::kExpect ||
         kind == RecordKind::kSwap;
}

// Immediate: type 4 | domain 12 | sequence 16. The domain is the receiver's name for the sender.
inline constexpr uint32_t kImmControl = 1;  // a record is in the mailbox
// The others on unordered endpoints only (gate.h).
inline constexpr uint32_t kImmPayload = 2;
inline constexpr uint32_t kImmAsk = 3;     // credit is asked for
inline constexpr uint32_t kImmCredit = 4;  // in place of a sequence: how many were taken
inline constexpr uint32_t kMaxDomains = 1u << 12;

struct Imm {
  uint32_t type;
  uint32_t domain;
  uint16_t sequence;
};

constexpr uint32_t pack_imm(const Imm& imm) {
  return (imm.type << 28) | ((imm.domain & (kMaxDomains - 1)) << 16) | imm.sequence;
}
constexpr Imm unpack_imm(uint64_t data) {
  return {static_cast<uint32_t>(data >> 28) & 15u,
          static_cast<uint32_t>(data >> 16) & (kMaxDomains - 1), static_cast<uint16_t>(data)};
}

// What a receiving proxy knows about the sender that a record must agree with.
struct RecordView {
  uint32_t epoch;
  uint32_t source;       // rank at the other end
  uint32_t destination;  // own rank
  uint32_t rings;
  uint32_t signals;
  uint32_t source_proxies;  // ring r of the source is served by its proxy r % source_proxies
  uint32_t source_proxy;
  uint32_t own_proxies;  // likewise here
  uint32_t own_proxy;
};

constexpr const char* fault_of_order(const ControlRecord& record, const RecordView& view) {
  if (record.ring >= view.rings) return "a ring that does not exist";
  if (record.ring % view.source_proxies != view.source_proxy) return "a ring of another proxy";
  if (record.kind != RecordKind::kSignal) return nullptr;
  if (record.index >= view.signals) return "a signal word that does not exist";
  if (record.value == 0) return "a signal word that would not grow";
  return nullptr;
}

// Why a record is unacceptable, or nullptr. A bad record fails the group and touches no memory.
constexpr const char* fault_of(const ControlRecord& record, const RecordView& view) {
  if (record.epoch != view.epoch) return "another epoch";
  if (record.source != view.source) return "a source rank that is not at that peer";
  if (record.destination != view.destination) return "a destination rank that is not here";
  switch (record.kind) {
    case RecordKind::kSignal:
    case RecordKind::kAdd:
    case RecordKind::kExpect:
    case RecordKind::kSwap:
      return fault_of_order(record, view);
    case RecordKind::kOld:
      if (record.ring >= view.rings) return "a ring that does not exist";
      if (record.ring % view.own_proxies != view.own_proxy) return "a ring of another proxy";
      return nullptr;
    case RecordKind::kArrive:
    case RecordKind::kRelease:
    case RecordKind::kPresent:
    case RecordKind::kRound:
    case RecordKind::kAsk:
      return record.index <= kRailScope ? nullptr : "a barrier of no scope";
    case RecordKind::kCredit:
      return nullptr;
    default:
      return "an unknown kind";
  }
}

}  // namespace epfabric::agent
