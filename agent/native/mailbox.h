// The two ends of a mailbox: a ring of control records in the receiver's memory that one peer
// writes. The sender never has more records under way than the receiver has slots: it counts what
// the receiver said it consumed. Used by the libfabric transport; knows no network.
#pragma once

#include <cstddef>
#include <cstring>

#include "record.h"

namespace epfabric::agent {

inline constexpr uint32_t kMailboxSlots = 64;
inline constexpr uint32_t kMailboxBytes = kMailboxSlots * sizeof(ControlRecord);
inline constexpr uint32_t kMailboxReserve = 8;  // slots for credits and barrier records
// ATOMICs that may wait for an answer on a link, and slots for the answers to them: so many are
// free whenever a request comes, so that an answer waits for no credit (docs/ordering.md).
inline constexpr uint32_t kMaxAtomics = 8;
inline constexpr uint32_t kMailboxOrders = kMailboxSlots - kMailboxReserve - kMaxAtomics;
static_assert((kMailboxSlots & (kMailboxSlots - 1)) == 0);
static_assert(kMailboxSlots <= 16384, "sequences beyond what the receiver acknowledged");

class Outbox {
 public:
  // `staging` mirrors the receiver's slots: a record stays there until its credit is back.
  explicit Outbox(ControlRecord* staging = nullptr, uint64_t first = 0)
      : staging_(staging), sent_(first), acknowledged_(first) {}

  bool room(RecordKind kind) const {
    return sent_ - acknowledged_ < (is_order(kind) ? kMailboxOrders : kMailboxSlots);
  }
  uint16_t sequence() const { return static_cast<uint16_t>(sent_); }
  uint32_t slot() const { return static_cast<uint32_t>(sent_ & (kMailboxSlots - 1)); }
  // Where the next record has to lie while it is sent; sent() makes it count.
  ControlRecord* stage(const ControlRecord& record) {
    staging_[slot()] = record;
    return &staging_[slot()];
  }
  void sent() { sent_ += 1; }
  // A record that was sent and not acknowledged.
  ControlRecord* staged(uint64_t number) { return &staging_[number & (kMailboxSlots - 1)]; }

  // The receiver consumed that many records (modulo 2^32). False for more than were sent.
  bool acknowledge(uint32_t consumed) {
    const uint64_t total = acknowledged_ + (consumed - static_cast<uint32_t>(acknowledged_));
    if (total > sent_) return false;
    acknowledged_ = total;
    return true;
  }
  uint64_t total() const { return sent_; }
  uint64_t acknowledged() const { return acknowledged_; }

 private:
  ControlRecord* staging_;
  uint64_t sent_;
  uint64_t acknowledged_;
};

class Inbox {
 public:
  explicit Inbox(const std::byte* slots = nullptr, uint64_t first = 0)
      : slots_(slots), consumed_(first), told_(first) {}

  // Copies the record whose immediate carried `sequence`; false when that is not the next one.
  bool take(uint16_t sequence, ControlRecord& out) {
    if (sequence != static_cast<uint16_t>(consumed_)) return false;
    take(out);
    return true;
  }
  // Copies the next record, which is known to be there.
  void take(ControlRecord& out) {
    std::memcpy(&out, slots_ + (consumed_ & (kMailboxSlots - 1)) * sizeof(ControlRecord),
                sizeof(out));
    consumed_ += 1;
  }
  // To be sent with the next record of the other direction.
  uint32_t credit() {
    told_ = consumed_;
    return static_cast<uint32_t>(consumed_);
  }
  bool owes_credit() const { return consumed_ - told_ >= kMailboxSlots / 2; }
  uint64_t total() const { return consumed_; }

 private:
  const std::byte* slots_;
  uint64_t consumed_;
  uint64_t told_;
};

}  // namespace epfabric::agent
