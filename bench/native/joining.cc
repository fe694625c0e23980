// What joining neighbouring writes does to a low-latency dispatch: every rank sends 128 tokens,
// each to four others, from the first push to the last signal seen, and in how many messages. In
// the time of priced_network.h.
#include <epfabric/command.h>
#include <epfabric/fifo.h>

#include <algorithm>

#include "bench.h"
#include "hand_group.h"
#include "priced_network.h"

using namespace epfabric;
using namespace epfabric::bench;

namespace {

using Group = test::HandGroup<PricedNetwork, PricedEndpoint>;

constexpr uint32_t kTokens = 128, kCopies = 4, kHeaderBytes = 16, kDepth = 1024;
constexpr uint64_t kStepNs = 400;   // a turn of each proxy
constexpr uint64_t kTokenNs = 100;  // a kernel makes one in that time
constexpr Metric kLatency{"dispatch_seconds", "s of the model", false};
constexpr Metric kMessages{"messages_per_token", "messages for a copy of a token", false};

struct Load {
  const char* name;
  uint32_t ranks, token_bytes;
  uint32_t units() const { return (token_bytes + kHeaderBytes) / kUnitBytes; }
  // Copies that one rank may have for another: half more than the mean.
  uint32_t places() const { return kTokens * kCopies * 3 / 2 / (ranks - 1); }
};
constexpr std::array<Load, 3> kLoads{
    {{"3.5 KiB, 8 ranks", 8, 3584}, {"7 KiB, 8 ranks", 8, 7168}, {"3.5 KiB, 16 ranks", 16, 3584}}};

struct Price {
  const char* name;
  uint64_t message_ns;
};
constexpr std::array<Price, 3> kPrices{
    {{"0.4 us a message", 400}, {"1.6 us a message", 1600}, {"0.1 us a message", 100}}};

struct Way {
  const char* name;
  bool each;  // a signal for each token, else one for all of a rank
  Joining joining;
};
constexpr uint32_t kNever = UINT32_MAX, kSmall = 4096 / kUnitBytes, kToken = 8192 / kUnitBytes;
constexpr std::array<Way, 10> kWays{{
    {"signal a token, off", true, {1, kToken, kNever, false}},
    {"signal a token, fused", true, {8, kToken, kNever, true}},
    {"signal a token, fused, filled when 1 is under way", true, {8, kToken, 1, true}},
    {"signal a token, fused, filled when 2 are under way", true, {8, kToken, 2, true}},
    {"signal a rank, off", false, {1, kToken, kNever, false}},
    {"signal a rank, below 4 KiB joined", false, {8, kSmall, kNever, false}},
    {"signal a rank, tokens packed", false, {8, kToken, kNever, false}},
    {"signal a rank, packed, filled when 1 is under way", false, {8, kToken, 1, false}},
    {"signal a rank, packed, filled when 2 are under way", false, {8, kToken, 2, false}},
    {"signal a rank, packed, filled when 4 are under way", false, {8, kToken, 4, false}},
}};

// One rank: its part of each dispatch, as producer and as receiver.
class Rank {
 public:
  Rank(agent::Session& session, const Load& load, uint64_t seed)
      : session_(session),
        load_(load),
        rank_(session.shape().rank),
        random_(static_cast<uint32_t>(seed)),
        counts_(load.ranks),
        pushed_(load.ranks),
        expected_(load.ranks) {
    for (uint32_t ring = 0; ring < load.ranks; ++ring) {
      const auto& segments = session.segments();
      rings_.push_back(
          {const_cast<Slot*>(segments.slots(ring)), &segments.counters(ring)->tail, 0, 0, kDepth});
    }
  }
  static uint64_t region_bytes(const Load& load) {
    return uint64_t{2} * load.ranks * load.places() * load.units() * kUnitBytes;
  }

  // Draws where this rank's tokens go.
  void begin(uint64_t dispatch) {
    dispatch_ = dispatch;
    next_ = 0;
    route_.clear();
    std::fill(counts_.begin(), counts_.end(), 0);
    std::fill(pushed_.begin(), pushed_.end(), 0);
    std::vector<uint32_t> others;
    for (uint32_t to = 0; to < load_.ranks; ++to) {
      if (to != rank_) others.push_back(to);
    }
    for (uint32_t token = 0; token < kTokens; ++token) {
      std::shuffle(others.begin(), others.end(), random_);
      for (uint32_t copy = 0; copy < kCopies; ++copy) {
        const uint32_t to = others[copy];
        if (counts_[to] == load_.places()) continue;  // as if it had gone nowhere
        counts_[to] += 1;
        route_.push_back({token, to});
      }
    }
  }
  void expect(const Rank& from) { expected_[from.rank_] += from.counts_[rank_]; }
  size_t copies() const { return route_.size(); }

  // What the kernel has made after that time.
  void push(uint64_t since_ns, bool each) {
    for (; next_ < route_.size() && route_[next_].token * kTokenNs <= since_ns; ++next_) {
      const uint32_t to = route_[next_].to, place = pushed_[to];
      const uint32_t from = (to * load_.places() + place) * load_.units();
      stamp(from, to, place);
      const bool last = place + 1 == counts_[to];
      const uint32_t advance = each ? 1 : last ? counts_[to] : 0;
      const uint32_t area = (load_.ranks + rank_) * load_.places() * load_.units();
      Slot slot{};
      if (!pack_write({to, from, area + place * load_.units(), load_.units(), 0, advance}, slot))
        throw NativeError("a write does not fit");
      if (!rings_[to].try_push(&slot, 1)) return;
      pushed_[to] += 1;
    }
  }
  // All tokens for this rank are there, its signal words say.
  bool all_said() const {
    for (uint32_t from = 0; from < load_.ranks; ++from) {
      if (platform::load_acquire(session_.segments().signal(from, rank_, 0)) != expected_[from])
        return false;
    }
    return true;
  }
  bool verified(const Rank& from) const {
    const uint32_t area = (load_.ranks + from.rank_) * load_.places() * load_.units();
    for (uint32_t place = 0; place < from.counts_[rank_]; ++place) {
      const uint64_t* at = words(area + place * load_.units());
      const uint64_t name = from.name_of(rank_, place);
      if (at[0] != name || at[load_.units() * kUnitBytes / 8 - 1] != name) return false;
    }
    return true;
  }
  bool completed() const {
    for (uint32_t ring = 0; ring < load_.ranks; ++ring) {
      if (session_.segments().counters(ring)->completed != rings_[ring].head) return false;
    }
    return next_ == route_.size();
  }

 private:
  struct Copy {
    uint32_t token, to;
  };

  uint64_t name_of(uint32_t to, uint32_t place) const {
    return dispatch_ << 40 | uint64_t{rank_} << 32 | to << 16 | place;
  }
  uint64_t* words(uint32_t unit) const {
    auto* data = session_.regions()[0].memory.data();
    return reinterpret_cast<uint64_t*>(data + uint64_t{unit} * kUnitBytes);
  }
  void stamp(uint32_t unit, uint32_t to, uint32_t place) {
    uint64_t* at = words(unit);
    at[0] = at[load_.units() * kUnitBytes / 8 - 1] = name_of(to, place);
  }

  agent::Session& session_;
  const Load& load_;
  const uint32_t rank_;
  std::minstd_rand random_;
  std::vector<Producer> rings_;  // by destination
  std::vector<Copy> route_;
  std::vector<uint32_t> counts_, pushed_;  // by destination
  std::vector<uint64_t> expected_;         // by source: its signal word
  uint64_t dispatch_ = 0;
  size_t next_ = 0;
};

struct Measured {
  std::vector<double> seconds, messages;
  bool verified = true;
};

Measured dispatch(Group& group, PricedNetwork& network, std::vector<Rank>& ranks, const Way& way,
                  uint64_t number) {
  Measured out;
  size_t copies = 0;
  for (Rank& rank : ranks) rank.begin(number);
  for (Rank& rank : ranks) {
    copies += rank.copies();
    for (const Rank& from : ranks) rank.expect(from);
  }
  std::vector<bool> done(ranks.size());
  const uint64_t messages = network.messages(), begin = group.now_ns();
  while (out.seconds.size() < ranks.size() ||
         !std::all_of(ranks.begin(), ranks.end(), [](const Rank& r) { return r.completed(); })) {
    const uint64_t since_ns = group.pass_time(kStepNs) - begin;
    for (Rank& rank : ranks) rank.push(since_ns, way.each);
    group.turn_all();
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (done[i] || !ranks[i].all_said()) continue;
      done[i] = true;
      out.seconds.push_back(static_cast<double>(since_ns) * 1e-9);
      for (const Rank& from : ranks) out.verified = out.verified && ranks[i].verified(from);
    }
    if (!group.failure().empty()) throw NativeError(group.failure());
    if (since_ns > 1'000'000'000) throw NativeError("a dispatch does not end");
  }
  out.messages.push_back(static_cast<double>(network.messages() - messages) /
                         static_cast<double>(copies));
  return out;
}

void measure(const Load& load, const Price& price, const Way& way, uint64_t rounds) {
  test::HandShape shape;
  shape.nodes.clear();
  for (uint32_t rank = 0; rank < load.ranks; ++rank) shape.nodes.push_back({rank});
  shape.rings = load.ranks;
  shape.depth = kDepth;
  shape.signals = 1;
  shape.region_bytes = Rank::region_bytes(load);
  shape.limits.adaptive = true;
  shape.limits.joining = way.joining;
  Prices prices;
  prices.message_ns = price.message_ns;
  PricedNetwork network(prices);
  Group group(shape, 1, network);
  std::vector<Rank> ranks;
  for (agent::Session* session : group.sessions())
    ranks.emplace_back(*session, load, session->shape().rank + 1);
  const std::string name =
      std::string(load.name) + ", " + std::string(price.name) + ", " + std::string(way.name);
  for (uint64_t round = 0; round < rounds; ++round) {
    const Measured got = dispatch(group, network, ranks, way, round + 1);
    print_samples(name, kLatency, kOurs, round, got.verified, got.seconds);
    print_samples(name, kMessages, kOurs, round, got.verified, got.messages);
  }
}

}  // namespace

int main(int count, char** values) {
  const Options options(count, values);
  const uint64_t loads = options.number("loads", kLoads.size());
  const uint64_t prices = options.number("prices", kPrices.size());
  for (const Load& load : std::span(kLoads).first(loads)) {
    for (const Price& price : std::span(kPrices).first(prices)) {
      for (const Way& way : kWays) measure(load, price, way, options.number("rounds", 9));
    }
  }
}
