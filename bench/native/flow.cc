// What the cap on operations under way does to a write's time, from its push to its completion, on
// a link whose queue has an end: one rank writes to one, and eight write to one. In the time of
// priced_network.h.
#include <epfabric/command.h>
#include <epfabric/fifo.h>

#include <deque>

#include "bench.h"
#include "hand_group.h"
#include "priced_network.h"

using namespace epfabric;
using namespace epfabric::bench;

namespace {

using Group = test::HandGroup<PricedNetwork, PricedEndpoint>;

constexpr uint32_t kDepth = 1024, kBytes = 4096, kPlaces = 1024, kBurst = 96;
constexpr uint64_t kStepNs = 400;
constexpr Metric kLatency{"write_completed_seconds", "s of the model", false};
constexpr Metric kRate{"bytes_per_second", "B/s of the model", true};

struct Way {
  const char* name;
  uint32_t inflight;
  bool adaptive;
};
constexpr std::array<Way, 3> kWays{
    {{"adaptive", 256, true}, {"fixed 256", 256, false}, {"fixed 8", 8, false}}};

// A rank that writes bursts to the last rank; what it reads and writes has its number in it.
struct Writer {
  agent::Session* session;
  Producer ring;
  uint32_t rank, target;
  std::minstd_rand random;
  uint64_t next_ns = 0, made = 0, pushed = 0, seen = 0;
  std::deque<uint64_t> made_ns;  // of those that are not completed

  uint64_t* words() const {
    return reinterpret_cast<uint64_t*>(session->regions()[0].memory.data());
  }
  void push(uint64_t mean_ns, uint64_t now_ns, uint64_t writes) {
    while (made < writes && next_ns <= now_ns) {
      for (uint32_t i = 0; i < kBurst && made < writes; ++i, ++made) made_ns.push_back(next_ns);
      next_ns += mean_ns / 2 + random() % mean_ns;
    }
    for (; pushed < made; ++pushed) {
      words()[(pushed % kPlaces) * kBytes / 8] = pushed + 1;
      const auto place = static_cast<uint32_t>(pushed % kPlaces) * (kBytes / kUnitBytes);
      const uint32_t area = rank * kPlaces * (kBytes / kUnitBytes);
      Slot slot{};
      pack_write({target, place, area + place, kBytes / kUnitBytes, 0, 0}, slot);
      if (!ring.try_push(&slot, 1)) return;
    }
  }
  void take(uint64_t now_ns, std::vector<double>& out) {
    const uint64_t completed = session->segments().counters(0)->completed;
    for (; seen < completed; ++seen, made_ns.pop_front())
      out.push_back(static_cast<double>(now_ns - made_ns.front()) * 1e-9);
  }
};

void measure(uint32_t writers, const Way& way, uint64_t round, uint64_t writes) {
  test::HandShape shape;
  shape.nodes.clear();
  for (uint32_t rank = 0; rank <= writers; ++rank) shape.nodes.push_back({rank});
  shape.rings = 1;
  shape.depth = kDepth;
  shape.region_bytes = uint64_t{writers} * kPlaces * kBytes;
  shape.limits.inflight = way.inflight;
  shape.limits.adaptive = way.adaptive;
  PricedNetwork network({});
  Group group(shape, round + 1, network);
  const auto sessions = group.sessions();
  // Four fifths of what the last line carries.
  const uint64_t mean_ns =
      uint64_t{writers} * kBurst * (kBytes * Prices{}.ns_per_kib / 1024) * 5 / 4;
  std::vector<Writer> all;
  for (uint32_t rank = 0; rank < writers; ++rank) {
    const auto& segments = sessions[rank]->segments();
    all.push_back(
        {sessions[rank],
         {const_cast<Slot*>(segments.slots(0)), &segments.counters(0)->tail, 0, 0, kDepth},
         rank,
         writers,
         std::minstd_rand(static_cast<uint32_t>(17 * round + rank + 1)),
         group.now_ns() + rank * 1000,
         0,
         0,
         0,
         {}});
  }
  std::vector<double> latencies;
  const uint64_t begin = group.now_ns();
  while (latencies.size() < writes * writers) {
    const uint64_t now_ns = group.pass_time(kStepNs);
    for (Writer& writer : all) writer.push(mean_ns, now_ns, writes);
    group.turn_all();
    for (Writer& writer : all) writer.take(now_ns, latencies);
    if (!group.failure().empty()) throw agent::NativeError(group.failure());
  }
  const double seconds = static_cast<double>(group.now_ns() - begin) * 1e-9;
  bool verified = true;
  const auto* got =
      reinterpret_cast<const uint64_t*>(sessions[writers]->regions()[0].memory.data());
  for (const Writer& writer : all) {
    for (uint64_t i = writes - std::min<uint64_t>(writes, kPlaces); i < writes; ++i)
      verified = verified && got[(writer.rank * kPlaces + i % kPlaces) * kBytes / 8] == i + 1;
  }
  const std::string name =
      (writers == 1 ? "one writes to one, " : "eight write to one, ") + std::string(way.name);
  print_samples(name, kLatency, kOurs, round, verified, latencies);
  const std::array rate{static_cast<double>(latencies.size() * kBytes) / seconds};
  print_samples(name, kRate, kOurs, round, verified, rate);
}

}  // namespace

int main(int count, char** values) {
  const Options options(count, values);
  for (uint64_t round = 0; round < options.number("rounds", 9); ++round) {
    for (const uint32_t writers : {1u, 8u}) {
      for (const Way& way : kWays) measure(writers, way, round, options.number("writes", 4000));
    }
  }
}
