// Fuzz: immediates, records and the counts that both ends of a link keep, against what a peer may
// say. The counts are compared with a model that remembers everything.
// Input: the kind, then what the peer says, one after the other.
#include <memory>
#include <set>

#include "fuzz.h"
#include "gate.h"

namespace epfabric::agent {
namespace {

// Just below the wraps of 16 and 32 bits.
constexpr uint64_t kFirst = (uint64_t{1} << 32) - 20;

void pack_and_unpack(Input& input) {
  const auto data = input.get<uint32_t>();
  const Imm imm = unpack_imm(data);
  require(imm.domain < kMaxDomains && imm.type < 16, "an immediate within its bits");
  require(pack_imm(imm) == data, "an immediate survives");
  const auto extra = input.get<uint64_t>();
  require(pack_arrival(unpack_arrival(extra)) == extra, "an arrival survives");
  require(pack_round(unpack_round(extra)) == (extra & ~uint64_t{0xfc00}), "a round survives");
}

void judge(Input& input) {
  RecordView view{};
  view.epoch = input.get<uint8_t>();
  view.source = input.get<uint8_t>();
  view.destination = input.get<uint8_t>();
  view.rings = 1 + input.get<uint8_t>() % 64;
  view.signals = 1 + input.get<uint8_t>();
  view.source_proxies = 1 + input.get<uint8_t>() % 16;
  view.own_proxies = 1 + input.get<uint8_t>() % 16;
  view.source_proxy = input.get<uint8_t>() % view.source_proxies;
  view.own_proxy = input.get<uint8_t>() % view.own_proxies;
  const auto record = input.get<ControlRecord>();
  if (fault_of(record, view) != nullptr) return;
  require(record.epoch == view.epoch && record.source == view.source &&
              record.destination == view.destination,
          "a record of this link and epoch");
  if (is_order(record.kind) || record.kind == RecordKind::kOld)
    require(record.ring < view.rings, "a ring that exists");
  if (is_order(record.kind))
    require(record.ring % view.source_proxies == view.source_proxy, "a ring of that proxy");
  if (record.kind == RecordKind::kSignal)
    require(record.index < view.signals && record.value != 0, "a signal word that exists");
}

// Records in a mailbox, and credit for those of the other direction.
void exchange(Input& input) {
  std::array<ControlRecord, kMailboxSlots> staging{}, slots{};
  for (uint32_t i = 0; i < kMailboxSlots; ++i) slots[i].value = i;
  Outbox outbox(staging.data());
  Inbox inbox(reinterpret_cast<const std::byte*>(slots.data()));
  while (input.left() != 0) {
    const auto what = input.get<uint8_t>();
    const uint64_t taken = inbox.total(), acknowledged = outbox.acknowledged();
    if (what % 4 == 0 && outbox.room(RecordKind::kCredit)) {
      outbox.stage({});
      outbox.sent();
    } else if (what % 4 == 1) {
      (void)outbox.acknowledge(input.get<uint32_t>());
    } else if (what % 4 == 2) {
      (void)outbox.acknowledge(static_cast<uint32_t>(acknowledged) + what / 4);
    } else {
      ControlRecord record;
      const auto sequence = static_cast<uint16_t>(taken + (what < 16 ? input.get<uint16_t>() : 0));
      if (inbox.take(sequence, record)) {
        require(sequence == static_cast<uint16_t>(taken) && record.value == taken % kMailboxSlots,
                "the record that is next");
        require(inbox.total() == taken + 1, "one record at a time");
      }
    }
    require(outbox.acknowledged() >= acknowledged && outbox.acknowledged() <= outbox.total(),
            "credit never goes back, nor beyond what was sent");
    require(outbox.total() - outbox.acknowledged() <= kMailboxSlots, "no slot is used twice");
  }
}

struct Model {
  std::set<uint64_t> sent_records;
  std::set<uint64_t> arrived;
  uint64_t taken = kFirst;
};

void arrive(Input& input, Arrivals& arrivals, Model& model, bool far) {
  const uint16_t ahead = far ? input.get<uint16_t>() : input.get<uint8_t>() % 8;
  const auto step = static_cast<Step>(input.get<uint8_t>() % 3);
  const Arrivals::Came came = arrivals.arrive(static_cast<uint16_t>(model.taken + ahead), step);
  const bool fits = ahead < kWindow,
             new_one = fits && model.arrived.insert(model.taken + ahead).second;
  require((came == Arrivals::Came::kNew) == new_one, "a sequence is new exactly once");
  require(fits || came != Arrivals::Came::kNew, "nothing outside of the window is taken");
  for (Step out; arrivals.next(out); ++model.taken)
    require(model.arrived.erase(model.taken) == 1, "sequences come in order");
  require(!model.arrived.contains(model.taken), "what is next is taken");
  require(arrivals.taken() == model.taken, "what was taken is told");
}

void gate(Input& input) {
  const auto departures = std::make_unique<Departures>(kFirst);
  const auto arrivals = std::make_unique<Arrivals>(kFirst);
  Model model;
  while (input.left() != 0) {
    const auto what = input.get<uint8_t>();
    const uint64_t before = departures->acknowledged();
    const size_t under_way =
        model.sent_records.size() - static_cast<size_t>(departures->records_acknowledged());
    if (what % 8 < 2 && departures->room() && under_way < kMailboxSlots) {
      if (what % 8 == 0) model.sent_records.insert(departures->total());
      departures->sent(what % 8 == 0 ? Step::kRecord : Step::kPayload);
    } else if (what % 8 == 2) {
      (void)departures->acknowledge(input.get<uint32_t>());
    } else if (what % 8 == 3) {
      (void)departures->acknowledge(input.get<uint16_t>());
    } else if (what % 8 == 4) {
      (void)departures->acknowledge(static_cast<uint16_t>(before + what / 8));
    } else {
      arrive(input, *arrivals, model, what % 8 == 5);
    }
    require(
        departures->acknowledged() >= before && departures->acknowledged() <= departures->total(),
        "credit never goes back, nor beyond what was sent");
    const auto below = static_cast<uint64_t>(std::distance(
        model.sent_records.begin(), model.sent_records.lower_bound(departures->acknowledged())));
    require(departures->records_acknowledged() == below, "slots come free with their sequence");
  }
}

}  // namespace

void fuzz(Input& input) {
  switch (input.get<uint8_t>() % 4) {
    case 0:
      return pack_and_unpack(input);
    case 1:
      return judge(input);
    case 2:
      return exchange(input);
    default:
      return gate(input);
  }
}

std::vector<std::vector<std::byte>> seeds() {
  Output packed, judged, exchanged, gated;
  packed.put(uint8_t{0});
  packed.put(pack_imm({kImmControl, 4095, 65535}));
  packed.put(pack_round({3, true, true, kViewBits}));
  judged.put(uint8_t{1});
  for (const int value : {7, 2, 5, 8, 16, 3, 1, 1, 1}) judged.put(static_cast<uint8_t>(value));
  judged.put(ControlRecord{RecordKind::kSignal, 5, 15, 2, 5, 7, 0, 1, 0});
  exchanged.put(uint8_t{2});
  gated.put(uint8_t{3});
  for (int i = 0; i < 40; ++i) {
    exchanged.put(static_cast<uint8_t>(i % 4 == 2 ? 6 : i % 4 == 3 ? 19 : 0));
    gated.put(static_cast<uint8_t>(i % 3 == 0 ? 0 : i % 3 == 1 ? 12 : 6));
    if (i % 3 == 2) gated.put(uint16_t{0x0100});
  }
  return {packed.bytes, judged.bytes, exchanged.bytes, gated.bytes};
}

}  // namespace epfabric::agent
