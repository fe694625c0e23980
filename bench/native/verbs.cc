// Writes over verbs between the two ends of a soft-RoCE rail, at the endpoint's seam, as perftest
// does them: half round trips that are seen in memory, and messages a second with 128 under way.
// Options: first, rounds, trips, writes. Run in the VM by benches/verbs.py.
#include <algorithm>
#include <array>
#include <string>

#include "bench.h"
#include "processes.h"
#include "verbs_endpoint.h"

namespace epfabric::bench {
namespace {

using namespace epfabric::agent;

constexpr uint64_t kBytes = 1 << 20;
constexpr uint64_t kTarget = kBytes / 2;  // from here on the other side writes
constexpr uint64_t kPlaces = 4096;
constexpr uint32_t kInflight = 32;  // a send queue of 128 entries: 2 · 32 + 64
constexpr uint32_t kInlined = 0;    // perftest inlines nothing on soft RoCE

struct Operation {
  std::array<void*, 8> context{};
};

class Side {
 public:
  Side(bool first, const Wire& wire)
      : wire_(wire),
        endpoint_(VerbsPort{first ? "ra0" : "rb0", 1, first ? "10.9.0.1" : "10.9.0.2", kInflight,
                            kInlined}),
        memory_(kBytes),
        key_(endpoint_.register_memory(memory_.data(), memory_.size())),
        operations_(kPlaces) {
    wire_.send(endpoint_.address());
    peer_ = endpoint_.insert({wire_.receive(), 0, 0});
    wire_.send(std::as_bytes(std::span(&key_.remote, 1)));
    std::memcpy(&remote_, wire_.receive().data(), sizeof(remote_));
    const uint64_t begin = now_ns();
    while (!endpoint_.met(peer_)) {
      endpoint_.meet();
      for (int i = 0; i < 1000; ++i) poll();
      if (now_ns() - begin > 30'000'000'000) give_up("the two ends did not meet");
    }
    meet(0);
  }

  uint64_t* word(uint64_t offset) { return reinterpret_cast<uint64_t*>(memory_.data() + offset); }
  std::byte* at(uint64_t offset) { return memory_.data() + offset; }
  uint64_t done() const { return done_; }
  uint64_t posted() const { return posted_; }
  bool good() const { return good_; }
  void expect(bool right) { good_ = good_ && right; }

  void put(uint64_t from, uint64_t to, uint64_t bytes) {
    const Piece piece{memory_.data() + from, key_.descriptor, bytes, remote_.base + to,
                      remote_.key};
    Operation& operation = operations_[posted_ % kPlaces];
    ssize_t result = endpoint_.write(peer_, {&piece, 1}, &operation);
    for (; result == -EAGAIN; result = endpoint_.write(peer_, {&piece, 1}, &operation)) poll();
    if (result != 0) give_up("a write was refused");
    posted_ += 1;
  }
  void poll() {
    const size_t got = endpoint_.poll(completions_.data(), completions_.size());
    for (size_t i = 0; i < got; ++i) {
      if (completions_[i].error != 0) give_up(completions_[i].detail.c_str());
    }
    done_ += got;
  }
  void settle() {
    while (done_ < posted_) poll();
  }
  // The same without taking time from the other side, or from the kernel that works for it.
  void sleep_until_met() {
    wire_.tell(0);
    wire_.receive();
  }
  // Goes on when the other side is here too; what it said.
  uint64_t meet(uint64_t value) {
    wire_.tell(value);
    uint64_t other;
    while (!wire_.told(other)) poll();
    return other;
  }

 private:
  const Wire wire_;
  VerbsEndpoint endpoint_;
  std::vector<std::byte> memory_;
  VerbsEndpoint::LocalKey key_;
  std::vector<Operation> operations_;
  std::array<Completion, 64> completions_;
  PeerIndex peer_ = 0;
  RemoteKey remote_;
  uint64_t posted_ = 0, done_ = 0;
  bool good_ = true;
};

uint64_t seen(const uint64_t* word) { return platform::load_acquire(word); }

// One trip's number stands at both ends of what is written; its body is looked at afterwards.
std::vector<double> ping_pong(Side& side, bool first, uint64_t bytes, uint64_t trips) {
  std::memset(side.at(0), static_cast<int>(bytes % 251), bytes);
  std::memset(side.at(kTarget), 0, bytes);
  side.meet(0);
  const auto send = [&](uint64_t number) {
    *side.word(0) = number;
    *side.word(bytes - 8) = number;
    side.put(0, kTarget, bytes);
    side.settle();
  };
  const auto wait = [&](uint64_t number) {
    while (seen(side.word(kTarget + bytes - 8)) != number) {
    }
    side.expect(seen(side.word(kTarget)) == number);
  };
  std::vector<double> out;
  uint64_t begin = now_ns();
  for (uint64_t number = 1; number <= trips; ++number) {
    if (first) send(number);
    wait(number);
    if (!first) send(number);
    const uint64_t now = now_ns();
    out.push_back(static_cast<double>(now - begin) / 2e9);
    begin = now;
  }
  side.meet(0);
  for (uint64_t i = 8; i + 8 < bytes; ++i)
    side.expect(*side.at(kTarget + i) == static_cast<std::byte>(bytes % 251));
  return out;
}

// Messages of 8 bytes a second, from the first one's post to the last one's completion.
double rate(Side& side, bool first, uint64_t writes) {
  std::memset(side.at(kTarget), 0, kPlaces * 8);
  side.meet(0);
  const uint64_t begin = now_ns();
  if (first) {
    for (uint64_t i = 1; i <= writes; ++i) {
      const uint64_t place = i % kPlaces * 8;
      *side.word(place) = i;
      side.put(place, kTarget + place, 8);
      if (side.posted() - side.done() >= 64) side.poll();
    }
    side.settle();
  }
  const uint64_t end = now_ns();
  if (first) side.meet(0);
  if (!first) {
    side.sleep_until_met();
    for (uint64_t i = writes > kPlaces ? writes - kPlaces + 1 : 1; i <= writes; ++i)
      side.expect(*side.word(kTarget + i % kPlaces * 8) == i);
  }
  return static_cast<double>(writes) * 1e9 / static_cast<double>(end - begin);
}

bool all_good(Side& side) { return side.meet(side.good()) != 0 && side.good(); }

int run(int count, char** values) {
  const Options options(count, values);
  const uint64_t trips = options.number("trips", 1000), writes = options.number("writes", 5000);
  int fd;
  const pid_t child = fork_with(fd, 240);
  const bool first = child != 0;
  pin(first ? 0 : 1);
  Side side(first, Wire(fd));
  const uint64_t from = options.number("first", 0);
  for (uint64_t round = from; round < from + options.number("rounds", 1); ++round) {
    for (const uint64_t bytes : {uint64_t{8}, uint64_t{7168}}) {
      ping_pong(side, first, bytes, trips / 10 + 1);
      std::vector<double> trip = ping_pong(side, first, bytes, trips);
      const bool verified = all_good(side);
      if (!first) continue;
      const std::string name = bytes == 8 ? "8 B" : "7 KiB";
      std::nth_element(trip.begin(), trip.begin() + static_cast<std::ptrdiff_t>(trip.size() / 2),
                       trip.end());
      const double typical[] = {trip[trip.size() / 2]};
      print_samples(name, {"write_latency_seconds", "s", false}, kOurs, round, verified, typical);
    }
    const double reached[] = {rate(side, first, writes)};
    const bool verified = all_good(side);
    if (first)
      print_samples("8 B", {"messages_per_second", "1/s", true}, kOurs, round, verified, reached);
  }
  if (!first) ::_exit(side.good() ? 0 : 1);
  return ended_well(child) && side.good() ? 0 : 1;
}

}  // namespace
}  // namespace epfabric::bench

int main(int count, char** values) {
  try {
    return epfabric::bench::run(count, values);
  } catch (const epfabric::agent::NativeError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
