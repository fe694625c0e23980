// One agent of a large group: the proxies of one rank, by the loop and the transport that agents
// run, against ranks of other nodes that are simulated (answering_endpoint.h). Prints one line of
// JSON: what was posted, and the memory that the links took. Options: world, proxies, fills. Run
// under callgrind by tests/bench/test_peers.py: serve_all() and turn_idle() are what it counts.
#include <fcntl.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "answering_endpoint.h"
#include "bench.h"
#include "loop.h"
#include "loop_commands.h"
#include "loop_turn.h"
#include "remote_post.h"
#include "session.h"

namespace epfabric::bench {
namespace {

using namespace epfabric::agent;
using Transport = RemoteTransport<AnsweringEndpoint>;

constexpr uint32_t kRingsPerProxy = 8;
constexpr uint32_t kDepth = 1024;
constexpr uint32_t kBytes = 4096;  // of the region
constexpr uint32_t kUnits = 16;    // of a write
constexpr uint32_t kRanksPerNode = 8;
constexpr uint64_t kLimitNs = 60'000'000'000;
constexpr uint64_t kIdleTurns = 1000;

uint64_t resident_bytes() {
  uint64_t ignored = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> ignored >> pages;
  return pages * 4096;
}

// What the proxies do next; each says when it has.
enum class Phase : uint32_t { kStart, kServe, kIdle, kBarrier };

class Rank {
 public:
  Rank(uint32_t world, uint32_t proxies)
      : world_(world),
        proxies_(proxies),
        rings_(kRingsPerProxy * proxies),
        shape_{0, world, rings_, kDepth, 1},
        endpoints_(proxies),
        counts_(proxies) {
    for (uint32_t rank = 1; rank < world; rank += kRanksPerNode) delegates_.push_back(rank);
    ProxySettings settings;
    settings.idle = IdleMode::kSpin;
    settings.serve = [this](Proxy& proxy) { serve(proxy); };
    session_ = std::make_shared<Session>(
        SessionSettings{1, shape_, std::vector<int>(proxies, -1), 1 << 20}, settings);
    FileDescriptor fd(::memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const std::vector<std::byte> zeros(kBytes);
    if (::write(fd.get(), zeros.data(), kBytes) != kBytes) throw system_error("write failed");
    session_->register_memfd(fd.get(), kBytes);
    const uint64_t before = resident_bytes();
    epoch_ = std::make_shared<Epoch>(EpochPlan{1, 1, 0, kLimitNs, nodes()},
                                     std::vector<std::shared_ptr<Session>>{session_}, blobs(),
                                     std::make_shared<BarrierStats>(3), events_);
    session_->join_epoch(epoch_);
    while (session_->unconnected() != 0) std::this_thread::yield();
    opened_bytes_ = resident_bytes() - before;
    epoch_->start();
    for (uint32_t ring = 0; ring < rings_; ++ring) {
      const Segments& segments = session_->segments();
      producers_.push_back(
          {const_cast<Slot*>(segments.slots(ring)), &segments.counters(ring)->tail, 0, 0, kDepth});
    }
  }
  ~Rank() { session_->close(kLimitNs); }

  // Each ring: WRITEs with signals to all remote ranks in turn, and a DRAIN.
  void fill() {
    for (uint32_t ring = 0; ring < rings_; ++ring) {
      Producer& producer = producers_[ring];
      for (uint32_t i = 0; i < kDepth; ++i) {
        Slot slot{};
        if (i == kDepth - 1) {
          slot = pack_drain(producer.head);
        } else if (!pack_write({1 + next_++ % (world_ - 1), 0, 0, kUnits, 0, 1}, slot)) {
          throw NativeError("a write does not fit");
        }
        if (!producer.try_push(&slot, 1)) throw NativeError("a ring is full");
      }
      written_ += kDepth - 1;
    }
  }
  void push_barrier() {
    const Slot slot = pack_barrier();
    if (!producers_[0].try_push(&slot, 1)) throw NativeError("ring 0 is full");
    barriers_ += 1;
  }

  // All proxies go through the phase once.
  void run(Phase phase) {
    done_.store(0, std::memory_order_relaxed);
    phase_.store(phase, std::memory_order_relaxed);
    asked_.fetch_add(1, std::memory_order_release);  // partner: serve()
    const uint64_t begin = now_ns();
    while (done_.load(std::memory_order_acquire) < proxies_) {
      if (epoch_->failed()) throw NativeError(epoch_->failure());
      if (now_ns() - begin > 5 * kLimitNs) throw NativeError("a phase does not end");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // Whether every rank was told everything, and barriers let every node go.
  bool right() const {
    uint64_t signals = 0, sum = 0, bytes = 0, releases = 0;
    for (const AnsweringEndpoint* endpoint : endpoints_) {
      if (!endpoint->right()) return false;
      for (const AnsweringEndpoint::Peer& peer : endpoint->peers()) {
        signals += peer.signals;
        sum += peer.sum;
        bytes += peer.bytes;
        releases += peer.releases;
        if (proxies_ == 1 && peer.signals + 1 < written_ / (world_ - 1)) return false;
      }
    }
    return signals == written_ && sum == written_ && bytes == written_ * kUnits * kUnitBytes &&
           releases == barriers_ * delegates_.size();
  }
  void print() const {
    uint64_t links = 0, operations = 0, markers = 0;
    for (const AnsweringEndpoint* endpoint : endpoints_) {
      links += endpoint->peers().size();
      operations += endpoint->polled();
      markers += endpoint->markers();
    }
    const auto number = [](const char* name, uint64_t value) {
      std::printf(",\"%s\":%llu", name, static_cast<unsigned long long>(value));
    };
    std::printf("{\"right\":%s", right() ? "true" : "false");
    number("links", links);
    number("commands", written_);
    number("operations", operations);
    number("markers", markers);
    number("idle_turns", kIdleTurns * proxies_);
    number("opened_bytes", opened_bytes_);
    std::printf("}\n");
  }

 private:
  void serve(Proxy& proxy) {
    const uint32_t index = proxy.index();
    const AnsweringNetwork network{rings_, 1, &endpoints_[index]};
    ProxyCount& count = counts_[index];
    Transport transport(network, index, shape_, proxies_, Limits{}, count);
    Loop<Transport> loop(proxy, transport);
    proxy.started();
    for (uint32_t seen = 0; !loop.stopping();) {
      loop.turn();
      if (asked_.load(std::memory_order_acquire) == seen) continue;
      seen += 1;
      const Phase phase = phase_.load(std::memory_order_relaxed);
      if (phase == Phase::kBarrier && index == 0) endpoints_[0]->arrive(barriers_ - 1, delegates_);
      if (phase == Phase::kIdle) {
        turn_idle(loop);
      } else {
        serve_all(loop, index);
      }
      done_.fetch_add(1, std::memory_order_acq_rel);
    }
  }
  [[gnu::noinline]] void serve_all(Loop<Transport>& loop, uint32_t proxy) {
    while (!quiet(proxy)) loop.turn();
  }
  [[gnu::noinline]] void turn_idle(Loop<Transport>& loop) {
    for (uint64_t i = 0; i < kIdleTurns; ++i) loop.work(now_ns());
  }
  bool quiet(uint32_t proxy) const {
    for (uint32_t ring = proxy; ring < rings_; ring += proxies_) {
      if (session_->rings()[ring]->retired() != producers_[ring].head) return false;
    }
    return true;
  }

  std::vector<std::vector<uint32_t>> nodes() const {
    std::vector<std::vector<uint32_t>> out;
    out.push_back({0});
    for (uint32_t rank = 1; rank < world_; ++rank) {
      if (rank % kRanksPerNode == 1) out.emplace_back();
      out.back().push_back(rank);
    }
    return out;
  }
  std::vector<SessionBlob> blobs() const {
    std::vector<SessionBlob> out;
    for (uint32_t rank = 0; rank < world_; ++rank) {
      SessionBlob blob{rank, world_, rings_, 1, {{0, kBytes}}, {}};
      for (uint32_t proxy = 0; proxy < proxies_; ++proxy)
        blob.proxies.push_back({answering_address(rank, proxy), {2, 0}, {{3, 0}}});
      out.push_back(std::move(blob));
    }
    return out;
  }

  const uint32_t world_;
  const uint32_t proxies_;
  const uint32_t rings_;
  const Shape shape_;
  Events events_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<Epoch> epoch_;
  std::vector<Producer> producers_;
  std::vector<uint32_t> delegates_;            // of the other nodes
  std::vector<AnsweringEndpoint*> endpoints_;  // by proxy, as the next
  std::vector<ProxyCount> counts_;
  std::atomic<Phase> phase_{Phase::kStart};
  std::atomic<uint32_t> asked_{0};
  std::atomic<uint32_t> done_{0};
  uint32_t next_ = 0;
  uint64_t written_ = 0;
  uint64_t barriers_ = 0;
  uint64_t opened_bytes_ = 0;
};

}  // namespace

int run(int count, char** values) {
  const Options options(count, values);
  ::alarm(300);
  Rank rank(static_cast<uint32_t>(options.number("world", 1024)),
            static_cast<uint32_t>(options.number("proxies", 1)));
  for (uint64_t fill = 0; fill < options.number("fills", 2); ++fill) {
    rank.fill();
    rank.run(Phase::kServe);
  }
  rank.run(Phase::kIdle);
  for (int i = 0; i < 3; ++i) {
    rank.push_barrier();
    rank.run(Phase::kBarrier);
  }
  rank.print();
  return rank.right() ? 0 : 1;
}

}  // namespace epfabric::bench

int main(int count, char** values) { return epfabric::bench::run(count, values); }
