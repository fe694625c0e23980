// What it brings to stripe a link's writes over two NICs of different speed, and whether a channel
// whose destination is slow holds others up. In the time of priced_network.h: two networks side by
// side, of 100 and of 50 Gbit/s.
#include <epfabric/command.h>
#include <epfabric/fifo.h>

#include <deque>

#include "bench.h"
#include "hand_group.h"
#include "priced_network.h"
#include "striped_endpoint.h"

using namespace epfabric;
using namespace epfabric::bench;

namespace {

constexpr uint64_t kFast = 82, kSlow = 164;  // ns for 1 KiB: 100 and 50 Gbit/s
constexpr uint64_t kStepNs = 400;
constexpr uint32_t kDepth = 64, kPlaces = 4;
constexpr Metric kRate{"bytes_per_second", "B/s of the model", true};
constexpr Metric kLatency{"write_completed_seconds", "s of the model", false};

struct Lines {
  std::deque<PricedNetwork> networks;
  std::vector<std::reference_wrapper<PricedNetwork>> lines;
  Selection selection;
  size_t made = 0;  // endpoints that have one line

  Lines(std::initializer_list<uint64_t> prices, Selection by) : selection(by) {
    for (const uint64_t price : prices) {
      Prices one;
      one.ns_per_kib = price;
      networks.emplace_back(one);
      lines.emplace_back(networks.back());
    }
  }
  void at(uint64_t now_ns) {
    for (PricedNetwork& network : networks) network.at(now_ns);
  }
  void stop() {
    for (PricedNetwork& network : networks) network.stop();
  }
  std::reference_wrapper<PricedNetwork> next() { return lines[made++ % lines.size()]; }
};

// A proxy's links go over all lines.
class Striped : public StripedEndpoint<PricedEndpoint> {
 public:
  explicit Striped(std::reference_wrapper<Lines> lines) : StripedEndpoint(lines.get()) {}
};
// A rank has as many proxies as there are lines; each has its own.
class Fixed : public PricedEndpoint {
 public:
  explicit Fixed(std::reference_wrapper<Lines> lines) : PricedEndpoint(lines.get().next()) {}
};

template <class E>
using Group = test::HandGroup<Lines, E>;

// A ring that writes to one rank; each write has its number in each of its stripes.
struct Channel {
  agent::Session* session;
  agent::Session* to;
  Producer ring;
  uint32_t index, rank, bytes;
  uint64_t made = 0, pushed = 0, seen = 0, next_ns = 0;
  std::minstd_rand random{};
  std::deque<uint64_t> made_ns{};  // of those that are not completed

  Channel(agent::Session* from, uint32_t ring_index, uint32_t rank_to, agent::Session* session_to,
          uint32_t size)
      : session(from), to(session_to), index(ring_index), rank(rank_to), bytes(size) {
    const auto& segments = from->segments();
    ring = {const_cast<Slot*>(segments.slots(index)), &segments.counters(index)->tail, 0, 0,
            kDepth};
  }
  static uint64_t* words(agent::Session* of, uint64_t at) {
    return reinterpret_cast<uint64_t*>(of->regions()[0].memory.data() + at);
  }
  uint64_t place(uint64_t number) const {
    return (index * kPlaces + number % kPlaces) * uint64_t{bytes};
  }
  void make(uint64_t now_ns) {
    made += 1;
    made_ns.push_back(now_ns);
  }
  // As at random, but `mean_ns` apart in the mean.
  void make_until(uint64_t now_ns, uint64_t mean_ns, uint64_t writes) {
    for (; made < writes && next_ns <= now_ns; next_ns += mean_ns / 2 + random() % mean_ns)
      make(next_ns);
  }
  void push() {
    for (; pushed < made && pushed < seen + kPlaces; ++pushed) {
      for (uint64_t at = 0; at < bytes; at += kStripeBytes)
        *words(session, place(pushed) + at) = pushed + 1;
      const auto unit = static_cast<uint32_t>(place(pushed) / kUnitBytes);
      Slot slot{};
      pack_write({rank, unit, unit, bytes / uint32_t{kUnitBytes}, 0, 0}, slot);
      if (!ring.try_push(&slot, 1)) return;
    }
  }
  void take(uint64_t now_ns, std::vector<double>& out) {
    const uint64_t completed = session->segments().counters(index)->completed;
    for (; seen < completed; ++seen, made_ns.pop_front())
      out.push_back(static_cast<double>(now_ns - made_ns.front()) * 1e-9);
  }
  // Of the last writes.
  bool verified() const {
    for (uint64_t i = seen - std::min<uint64_t>(seen, kPlaces); i < seen; ++i) {
      for (uint64_t at = 0; at < bytes; at += kStripeBytes) {
        if (*words(to, place(i) + at) != i + 1) return false;
      }
    }
    return true;
  }
};

test::HandShape shape_of(uint32_t ranks, uint32_t channels, uint32_t bytes) {
  test::HandShape shape;
  shape.nodes.clear();
  for (uint32_t rank = 0; rank < ranks; ++rank) shape.nodes.push_back({rank});
  shape.rings = channels;
  shape.depth = kDepth;
  shape.region_bytes = uint64_t{channels} * kPlaces * bytes;
  return shape;
}

// One rank writes 1 MiB to another, as many at once as `ahead`.
void measure_rate(const char* name, Lines lines, uint64_t ahead, uint64_t round, uint64_t writes) {
  constexpr uint32_t kBytes = 1 << 20;
  Group<Striped> group(shape_of(2, 1, kBytes), round + 1, lines);
  Channel channel(group.sessions()[0], 0, 1, group.sessions()[1], kBytes);
  std::vector<double> latencies;
  const uint64_t begin = group.now_ns();
  while (latencies.size() < writes) {
    const uint64_t now_ns = group.pass_time(kStepNs);
    while (channel.made < writes && channel.made < channel.seen + ahead) channel.make(now_ns);
    channel.push();
    group.turn_all();
    channel.take(now_ns, latencies);
    if (!group.failure().empty()) throw agent::NativeError(group.failure());
  }
  const double seconds = static_cast<double>(group.now_ns() - begin) * 1e-9;
  const std::array rate{static_cast<double>(writes * kBytes) / seconds};
  print_samples(std::to_string(ahead) + " of 1 MiB, " + name, kRate, kOurs, round,
                channel.verified(), rate);
}

// One rank writes by eight rings to a rank each, at 45 % of what both lines carry; `times`: how
// much slower the last one's lines are. A write's time on the seven others.
template <class E>
void measure_channels(const std::string& name, uint64_t times, uint64_t round, uint64_t writes) {
  constexpr uint32_t kChannels = 8, kBytes = 256 << 10;
  constexpr uint64_t kMeanNs =
      kChannels * (kBytes / 1024) * (kFast * kSlow / (kFast + kSlow)) * 20 / 9;
  Lines lines({kFast, kSlow}, Selection::kLeastInflight);
  test::HandShape shape = shape_of(kChannels + 1, kChannels, kBytes);
  if (std::is_same_v<E, Fixed>) shape.proxies = 2;
  Group<E> group(shape, round + 1, lines);
  for (PricedNetwork& network : lines.networks) network.slow_down(kChannels, times);
  std::vector<Channel> channels;
  for (uint32_t i = 0; i < kChannels; ++i) {
    channels.emplace_back(group.sessions()[0], i, i + 1, group.sessions()[i + 1], kBytes);
    channels.back().random.seed(static_cast<uint32_t>(17 * round + i + 1));
    channels.back().next_ns = group.now_ns() + i * kMeanNs / kChannels;
  }
  std::vector<double> latencies, ignored;
  while (latencies.size() < writes * (kChannels - 1)) {
    const uint64_t now_ns = group.pass_time(kStepNs);
    for (Channel& channel : channels) {
      const bool last = channel.index + 1 == kChannels;
      channel.make_until(now_ns, kMeanNs, last ? UINT64_MAX : writes);
      channel.push();
    }
    group.turn_all();
    for (Channel& channel : channels)
      channel.take(now_ns, channel.index + 1 == kChannels ? ignored : latencies);
    if (!group.failure().empty()) throw agent::NativeError(group.failure());
  }
  bool verified = true;
  for (uint32_t i = 0; i + 1 < kChannels; ++i) verified = verified && channels[i].verified();
  print_samples(name, kLatency, kOurs, round, verified, latencies);
}

}  // namespace

int main(int count, char** values) {
  const Options options(count, values);
  const uint64_t writes = options.number("writes", 200);
  for (uint64_t round = 0; round < options.number("rounds", 9); ++round) {
    for (const uint64_t ahead : {uint64_t{1}, uint64_t{kPlaces}}) {
      constexpr auto kLeast = Selection::kLeastInflight;
      measure_rate("100 Gbit/s", Lines({kFast}, kLeast), ahead, round, writes);
      measure_rate("50 Gbit/s", Lines({kSlow}, kLeast), ahead, round, writes);
      measure_rate("both, least inflight", Lines({kFast, kSlow}, kLeast), ahead, round, writes);
      measure_rate("both, in turn", Lines({kFast, kSlow}, Selection::kRoundRobin), ahead, round,
                   writes);
    }
    for (const uint64_t times : {uint64_t{1}, uint64_t{50}}) {
      const std::string last = times == 1 ? "" : ", the eighth 50 times slower";
      measure_channels<Striped>("eight channels, least inflight" + last, times, round, writes);
      measure_channels<Fixed>("eight channels, a NIC each" + last, times, round, writes);
    }
  }
}
