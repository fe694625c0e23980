// The barrier of eight ranks of one node, by the loop that agents run: from the last BARRIER
// visible to the last release stored. One thread drives the eight proxies' loops in turn, from a
// place that chance chose, so that no other thread's scheduling is measured. Options: rounds,
// barriers, seed (of those places; printed).
#include <fcntl.h>

#include <atomic>
#include <random>
#include <thread>

#include "bench.h"
#include "loop.h"
#include "loop_commands.h"
#include "loop_turn.h"
#include "processes.h"

namespace epfabric::bench {
namespace {

using namespace epfabric::agent;

constexpr uint32_t kRanks = 8;
constexpr uint64_t kLimitNs = 60'000'000'000;
using Driven = Loop<NoRemote>;

// Eight sessions whose proxies' threads only wait once drive() was called.
class Node {
 public:
  Node() {
    ProxySettings settings;
    settings.serve = [this](Proxy& proxy) { serve(proxy); };
    std::vector<uint32_t> ranks;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      next_ = rank;
      sessions_.push_back(std::make_shared<Session>(
          SessionSettings{1, {rank, kRanks, 1, 64, 1}, {-1}, 1 << 20}, settings));
      const Segments& segments = sessions_.back()->segments();
      rings_.push_back(
          {const_cast<Slot*>(segments.slots(0)), &segments.counters(0)->tail, 0, 0, 64});
      completed_[rank] = &segments.counters(0)->completed;
      ranks.push_back(rank);
    }
    epoch_ = std::make_shared<Epoch>(EpochPlan{1, 1, 0, kLimitNs, {ranks}}, sessions_,
                                     std::vector<SessionBlob>(kRanks), stats_, events_);
    for (const auto& session : sessions_) session->join_epoch(epoch_);
    epoch_->start();
    driven_.store(true, std::memory_order_release);
    while (parked_.load(std::memory_order_acquire) < kRanks) std::this_thread::yield();
  }
  ~Node() {
    for (const auto& session : sessions_) session->stop(kLimitNs);
  }

  Driven& loop(uint32_t rank) { return *loops_[rank]; }
  void push_barrier(uint32_t rank) {
    const Slot slot = pack_barrier();
    if (!rings_[rank].try_push(&slot, 1)) give_up("a ring is full");
  }
  uint64_t completed(uint32_t rank) const { return platform::load_acquire(completed_[rank]); }
  uint64_t counted(uint32_t rank) const {
    return sessions_[rank]->rings()[0]->count().barriers.get();
  }
  uint64_t recorded() const { return stats_->phase(Phase::kTotal).snapshot().count; }

 private:
  void serve(Proxy& proxy) {
    NoRemote remote;
    Driven loop(proxy, remote);
    loops_[next_] = &loop;
    proxy.started();
    while (!driven_.load(std::memory_order_acquire) && !loop.stopping()) loop.turn();
    parked_.fetch_add(1, std::memory_order_acq_rel);
    while (!loop.stopping()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::array<Driven*, kRanks> loops_{};
  std::array<const uint64_t*, kRanks> completed_{};
  uint32_t next_ = 0;
  std::atomic<bool> driven_{false};
  std::atomic<uint32_t> parked_{0};
  Events events_;
  std::shared_ptr<BarrierStats> stats_ = std::make_shared<BarrierStats>(5);
  std::vector<std::shared_ptr<Session>> sessions_;
  std::vector<Producer> rings_;
  std::shared_ptr<Epoch> epoch_;
};

class Driver {
 public:
  explicit Driver(Node& node) : node_(node) {}

  // One barrier whose last rank and whose first loop to run after that are given; its seconds.
  double barrier(uint32_t last, uint32_t at) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      if (rank != last) node_.push_barrier(rank);
    }
    for (uint32_t turn = 0; turn < 4 * kRanks; ++turn) node_.loop(turn % kRanks).work(now_ns());
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      good_ = good_ && node_.completed(rank) == done_;  // nobody before the last one
    node_.push_barrier(last);
    const uint64_t begin = now_ns();
    uint32_t out = 0;
    for (uint32_t turns = 0; out < kRanks; ++turns) {
      // The time is read once for a pass over all loops, as one thread that serves them all would.
      if (turns % kRanks == 0) now_ns_ = now_ns();
      const uint64_t before = node_.completed(at);
      node_.loop(at).work(now_ns_);
      if (node_.completed(at) != before) out += 1;
      at = (at + 1) % kRanks;
      if (turns > 1000 * kRanks) give_up("a barrier does not end");
    }
    const uint64_t end = now_ns();
    done_ += 1;
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      good_ = good_ && node_.completed(rank) == done_ && node_.counted(rank) == done_;
    return static_cast<double>(end - begin) * 1e-9;
  }
  bool good() const { return good_; }
  uint64_t done() const { return done_; }

 private:
  Node& node_;
  uint64_t now_ns_ = 0;
  uint64_t done_ = 0;
  bool good_ = true;
};

}  // namespace

int run(int count, char** values) {
  const Options options(count, values);
  const uint64_t barriers = options.number("barriers", 20'000);
  ::alarm(120);
  Node node;
  pin(0);
  Driver driver(node);
  const uint64_t seed = options.number("seed", std::random_device{}());
  std::fprintf(stderr, "barrier: seed=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  bool good = true;
  for (uint64_t round = 0; round < options.number("rounds", 9); ++round) {
    std::vector<double> samples;
    for (uint64_t i = 0; i < barriers; ++i)
      samples.push_back(driver.barrier(random() % kRanks, random() % kRanks));
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      node.loop(rank).work(now_ns());  // the last times
    good = good && driver.good() && node.recorded() == driver.done();
    print_samples("8 ranks, 1 thread", {"local_barrier_seconds", "s", false}, kOurs, round, good,
                  samples);
  }
  return good ? 0 : 1;
}

}  // namespace epfabric::bench

int main(int count, char** values) { return epfabric::bench::run(count, values); }
