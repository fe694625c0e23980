// Mailboxes: sequence, credits and validation of what another agent wrote.
#include "mailbox.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <random>

using namespace epfabric::agent;

namespace {

// One direction of a connection; the network is a memcpy.
struct Pair {
  std::array<ControlRecord, kMailboxSlots> staging{};
  std::array<ControlRecord, kMailboxSlots> slots{};
  Outbox outbox{staging.data()};
  Inbox inbox{reinterpret_cast<const std::byte*>(slots.data())};

  uint16_t send(uint64_t value) {
    ControlRecord record;
    record.kind = RecordKind::kSignal;
    record.value = value;
    const uint16_t sequence = outbox.sequence();
    slots[outbox.slot()] = *outbox.stage(record);
    outbox.sent();
    return sequence;
  }
};

constexpr RecordView kView{7, 2, 5, 8, 16, 4, 1, 2, 1};

ControlRecord good() {
  ControlRecord record;
  record.kind = RecordKind::kSignal;
  record.ring = 5;  // 5 % 4 == 1
  record.index = 15;
  record.source = 2;
  record.destination = 5;
  record.epoch = 7;
  record.value = 1;
  return record;
}

}  // namespace

TEST_CASE("immediates keep type, domain and sequence apart at their limits") {
  for (const Imm imm : {Imm{kImmControl, 0, 0}, Imm{kImmControl, 4095, 65535}, Imm{15, 1, 32768}}) {
    const Imm back = unpack_imm(pack_imm(imm));
    CHECK(back.type == imm.type);
    CHECK(back.domain == imm.domain);
    CHECK(back.sequence == imm.sequence);
  }
}

TEST_CASE("a sender without credit stops, and urgent records still have room") {
  Pair pair;
  uint32_t sent = 0;
  while (pair.outbox.room(RecordKind::kSignal)) {
    pair.send(++sent);
  }
  CHECK(sent == kMailboxOrders);
  while (pair.outbox.room(RecordKind::kCredit)) pair.send(++sent);
  CHECK(sent == kMailboxSlots);
}

TEST_CASE("sequences wrap at 16 bits without a lost or doubled record") {
  Pair pair;
  constexpr uint64_t kRecords = 3 * 65536 + 17;
  const uint64_t seed = std::random_device{}();
  std::printf("mailbox_test seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  uint64_t sent = 0, received = 0;
  while (received < kRecords) {
    for (uint64_t n = random() % 40;
         n > 0 && sent < kRecords && pair.outbox.room(RecordKind::kSignal); --n) {
      pair.send(++sent);
    }
    for (uint64_t n = random() % 40; n > 0 && received < sent; --n) {
      ControlRecord record;
      REQUIRE(pair.inbox.take(static_cast<uint16_t>(received), record));
      REQUIRE(record.value == ++received);
    }
    if (pair.inbox.owes_credit()) REQUIRE(pair.outbox.acknowledge(pair.inbox.credit()));
  }
  CHECK(pair.outbox.total() == kRecords);
}

TEST_CASE("a record out of sequence and credit for what was not sent are refused") {
  Pair pair;
  const uint16_t first = pair.send(1);
  pair.send(2);
  ControlRecord record;
  CHECK_FALSE(pair.inbox.take(static_cast<uint16_t>(first + 1), record));
  CHECK(pair.inbox.take(first, record));
  CHECK_FALSE(pair.inbox.take(first, record));
  CHECK_FALSE(pair.outbox.acknowledge(3));
  CHECK(pair.outbox.acknowledge(2));
  CHECK_FALSE(pair.outbox.acknowledge(1));  // going back would mean 2^32 - 1 more
}

TEST_CASE("every field of a record is checked") {
  CHECK(fault_of(good(), kView) == nullptr);
  const auto faulty = [](auto&& change) {
    ControlRecord record = good();
    change(record);
    return fault_of(record, kView) != nullptr;
  };
  CHECK(faulty([](ControlRecord& r) { r.epoch = 6; }));
  CHECK(faulty([](ControlRecord& r) { r.source = 3; }));
  CHECK(faulty([](ControlRecord& r) { r.destination = 4; }));
  CHECK(faulty([](ControlRecord& r) { r.ring = 8; }));
  CHECK(faulty([](ControlRecord& r) { r.ring = 9; }));
  CHECK(faulty([](ControlRecord& r) { r.ring = 4; }));  // of another proxy
  CHECK(faulty([](ControlRecord& r) { r.index = 16; }));
  CHECK(faulty([](ControlRecord& r) { r.value = 0; }));
  for (const RecordKind kind : {RecordKind::kAdd, RecordKind::kExpect, RecordKind::kSwap}) {
    CHECK_FALSE(faulty([kind](ControlRecord& r) { r.kind = kind, r.index = 65535, r.value = 0; }));
    CHECK(faulty([kind](ControlRecord& r) { r.kind = kind, r.ring = 4; }));
    CHECK(faulty([kind](ControlRecord& r) { r.kind = kind, r.ring = 9; }));
  }
  CHECK_FALSE(faulty([](ControlRecord& r) { r.kind = RecordKind::kOld, r.ring = 3; }));
  CHECK(faulty([](ControlRecord& r) { r.kind = RecordKind::kOld, r.ring = 4; }));
  CHECK(faulty([](ControlRecord& r) { r.kind = RecordKind::kOld, r.ring = 9; }));
  CHECK(faulty([](ControlRecord& r) { r.kind = RecordKind::kInvalid; }));
  CHECK(faulty([](ControlRecord& r) { r.kind = static_cast<RecordKind>(12); }));
}
