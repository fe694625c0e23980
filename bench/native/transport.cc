// Writes with their signal at the transport's seam, between two processes over tcp;ofi_rxm: half
// round trips, and how many of 16 bytes a second. Each side's one thread posts and polls as a
// proxy's loop does. Options: first, rounds, trips, writes, wait_ms. Run by benches/transport.py.
#include <fcntl.h>

#include <numeric>
#include <string>

#include "bench.h"
#include "epoch.h"
#include "fabric_transport.h"
#include "processes.h"
#include "session.h"

namespace epfabric::bench {
namespace {

using namespace epfabric::agent;

constexpr uint64_t kBytes = 1 << 20;
constexpr uint64_t kSource = 0, kTarget = kBytes / 2;  // halves of each side's region
constexpr uint64_t kPlaces = 4096;                     // of 16 bytes each, for the rate
constexpr uint64_t kLimitNs = 60'000'000'000;
constexpr Shape kShape{0, 2, 1, 64, 1};

struct Region16 {
  FileDescriptor fd{::memfd_create("bench-region", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  Region16() {
    const std::vector<std::byte> zeros(kBytes);
    if (::write(fd.get(), zeros.data(), kBytes) != ssize_t{kBytes}) give_up("no region");
  }
};

std::shared_ptr<Session> make_session(uint32_t rank, const Region16& region) {
  Shape shape = kShape;
  shape.rank = rank;
  // Its one proxy has no transport and no epoch: it sleeps.
  auto out = std::make_shared<Session>(SessionSettings{1, shape, {-1}, kBytes}, ProxySettings{});
  out->register_memfd(region.fd.get(), kBytes);
  return out;
}

class Side {
 public:
  Side(uint32_t rank, const Wire& wire)
      : rank_(rank),
        wire_(wire),
        session_(make_session(rank, region_)),
        fabric_("tcp;ofi_rxm", "127.0.3." + std::to_string(rank + 1)),
        ring_(0, session_->segments().slots(0), session_->segments().counters(0),
              session_->segments().results(0), kShape.depth),
        transport_(fabric_, 0, session_->shape(), 1, Limits{}, count_) {
    SessionBlob own{rank, 2, 1, 1, session_->extents(), {}};
    own.proxies.push_back({transport_.address(),
                           transport_.mailbox(),
                           {transport_.add_region(session_->regions()[0])}});
    wire_.send(encode(own));
    std::vector<SessionBlob> blobs(2);
    blobs[1 - rank] = decode(wire_.receive());
    epoch_ =
        std::make_unique<Epoch>(EpochPlan{1, 1, 0, kLimitNs, {{0}, {1}}}, std::vector{session_},
                                std::move(blobs), std::make_shared<BarrierStats>(5), events_);
    transport_.open(*epoch_);
    while (transport_.connect() > 0) poll();
    meet(0);
  }

  std::byte* memory(uint64_t offset) const { return session_->regions()[0].at(offset); }
  uint64_t received() const { return received_; }
  bool good() const { return good_; }
  void expect(bool right) { good_ = good_ && right; }

  // Posts a WRITE as Loop::post() does, with the next value of the signal word.
  void put(uint64_t source, uint64_t target, uint64_t bytes) {
    transport_.begin_turn(now_ns());
    const WritePart part{&ring_, 1 - rank_, 0, 0, source, target, bytes};
    const SignalPart signal{&ring_, 1 - rank_, 0, ++sent_};
    Posted posted = transport_.write(part, &signal);
    for (; posted.bytes == 0; posted = transport_.write(part, &signal)) poll();
    if (posted.pending) ring_.add_part();
    if (posted.bytes != bytes) give_up("a write was split");
    while (!posted.signalled) {
      const Posted then = transport_.signal(signal);
      if (then.pending) ring_.add_part();
      if (then.bytes > 0) return;
      poll();
    }
  }

  // `seen(value)` looks at the payload of each signal that came.
  template <class Seen>
  void poll(Seen&& seen) {
    transport_.send_credits();
    transport_.poll(
        32,
        [&](const Link&, const ControlRecord& record) -> const char* {
          if (record.kind != RecordKind::kSignal) return nullptr;
          if (record.value != ++received_) return "another value";
          seen(record.value);
          return nullptr;
        },
        [](uint32_t, const std::string& text) { give_up(text.c_str()); },
        [](int, const std::string& text) { give_up(text.c_str()); });
  }
  void poll() {
    poll([](uint64_t) {});
  }
  void settle() {
    while (transport_.inflight() > 0) poll();
  }
  // Goes on when the other side is here too; what it said.
  uint64_t meet(uint64_t value) {
    wire_.tell(value);
    uint64_t other;
    while (!wire_.told(other)) poll();
    return other;
  }

 private:
  const uint32_t rank_;
  const Wire wire_;
  Region16 region_;
  std::shared_ptr<Session> session_;
  Fabric fabric_;
  ProxyCount count_;
  Ring ring_;
  Events events_;
  FabricTransport transport_;
  std::unique_ptr<Epoch> epoch_;
  uint64_t sent_ = 0, received_ = 0;
  bool good_ = true;
};

uint64_t word_at(const std::byte* at) {
  uint64_t out;
  std::memcpy(&out, at, sizeof(out));
  return out;
}

// Round trips of `bytes`; what each side's message holds is looked at when its signal comes.
std::vector<double> ping_pong(Side& side, bool first, uint64_t bytes, uint64_t trips) {
  std::byte* source = side.memory(kSource);
  std::byte* target = side.memory(kTarget);
  for (uint64_t i = 0; i < bytes; ++i) source[i] = static_cast<std::byte>(i * 7 + trips);
  uint64_t want = side.received();  // before the other side may begin
  side.meet(0);
  const auto send = [&] {
    const uint64_t stamp = want;
    std::memcpy(source, &stamp, 8);
    std::memcpy(source + bytes - 8, &stamp, 8);
    side.put(kSource, kTarget, bytes);
  };
  const auto wait = [&] {
    want += 1;
    while (side.received() < want) side.poll();
    side.expect(word_at(target) == want - (first ? 0 : 1) &&
                word_at(target + bytes - 8) == want - (first ? 0 : 1));
  };
  std::vector<double> out;
  for (uint64_t i = 0; i < trips; ++i) {
    const uint64_t begin = now_ns();
    if (first) send();
    wait();
    if (!first) send();
    out.push_back(static_cast<double>(now_ns() - begin) / 2e9);
  }
  side.settle();
  side.meet(0);
  for (uint64_t i = 8; i + 8 < bytes; ++i)
    side.expect(target[i] == static_cast<std::byte>(i * 7 + trips));
  return out;
}

// Writes of 16 bytes a second, until the last one's signal is seen.
double rate(Side& side, bool first, uint64_t writes) {
  const uint64_t base = side.received();  // before the other side may begin
  side.meet(0);
  const uint64_t begin = now_ns();
  if (first) {
    for (uint64_t i = 0; i < writes; ++i) {
      const uint64_t place = i % kPlaces * 16;
      std::memcpy(side.memory(kSource + place), &i, 8);
      side.put(kSource + place, kTarget + place, 16);
      if (i % 32 == 31) side.poll();
    }
  } else {
    const auto seen = [&](uint64_t value) {
      const uint64_t i = value - base - 1;
      side.expect(word_at(side.memory(kTarget + i % kPlaces * 16)) >= i);
    };
    while (side.received() < base + writes) side.poll(seen);
  }
  side.meet(0);
  return static_cast<double>(writes) * 1e9 / static_cast<double>(now_ns() - begin);
}

double mean(const std::vector<double>& samples) {
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

}  // namespace

int run(int count, char** values) {
  const Options options(count, values);
  const uint64_t trips = options.number("trips", 5000), writes = options.number("writes", 100'000);
  int fd;
  const pid_t child = fork_with(fd, 120);
  const bool first = child != 0;
  pin(first ? 0 : 1);
  const Wire wire(fd);
  Side side(first ? 0 : 1, wire);
  const uint64_t from = options.number("first", 0);
  for (uint64_t round = from; round < from + options.number("rounds", 1); ++round) {
    for (const uint64_t bytes : {uint64_t{8}, uint64_t{7168}}) {
      ping_pong(side, first, bytes, trips / 10 + 1);
      const std::vector<double> trip = ping_pong(side, first, bytes, trips);
      const bool verified = side.meet(side.good()) != 0 && side.good();
      if (!first) continue;
      const std::string name = bytes == 8 ? "8 B" : "7 KiB";
      const double all[] = {mean(trip)};
      print_samples(name, {"latency_seconds", "s", false}, kOurs, round, verified, all);
      print_samples(name, {"one_latency_seconds", "s", false}, kOurs, round, verified, trip);
    }
    const double reached[] = {rate(side, first, writes)};
    const bool verified = side.meet(side.good()) != 0 && side.good();
    if (first)
      print_samples("16 B", {"writes_per_second", "1/s", true}, kOurs, round, verified, reached);
  }
  if (!first) ::_exit(side.good() ? 0 : 1);
  return ended_well(child) && side.good() ? 0 : 1;
}

}  // namespace epfabric::bench

int main(int count, char** values) { return epfabric::bench::run(count, values); }
