// What one proxy thread can do: commands from eight rings through the checks to a transport that
// moves nothing, by the loop that agents run. Beside it, on the same thread, the least that any
// proxy must do: take, check, hand over, tell the producer.
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "bench.h"
#include "command_stream.h"
#include "loop.h"
#include "loop_commands.h"
#include "loop_turn.h"
#include "session.h"

using namespace epfabric;
using namespace epfabric::bench;
using namespace epfabric::agent;

namespace {

constexpr uint32_t kRings = 8;
constexpr uint32_t kDepth = 1024;
constexpr uint32_t kBatch = 32;
constexpr uint64_t kWaitNs = 60'000'000'000;
constexpr const char* kBare = "take, check, hand over";
constexpr Metric kPerCore{"commands_per_second_per_thread", "1/s of its core's time", true};
constexpr Metric kPerWall{"commands_per_second_by_wall_clock", "1/s", true};

struct Case {
  const char* name;
  bool mixed;  // else WRITEs only
  bool late;   // parts complete when the proxy polls, else at once
  bool other;  // the slots were written by another core, else by the proxy's own
};
constexpr std::array<Case, 4> kCases{{{"writes, done at once", false, false, false},
                                      {"mixed, done at once", true, false, false},
                                      {"mixed, done when polled", true, true, false},
                                      {"mixed, from another core", true, true, true}}};

struct Spent {
  double core_s, wall_s;
};

template <class Work>
Spent timed(Work&& work) {
  const uint64_t core = thread_cpu_ns(), wall = now_ns();
  work();
  const uint64_t wall_end = now_ns(), core_end = thread_cpu_ns();
  return {static_cast<double>(core_end - core) * 1e-9, static_cast<double>(wall_end - wall) * 1e-9};
}

template <class Fill>
uint64_t filled(const Case& measured, Fill&& fill) {
  if (!measured.other) return fill();
  uint64_t pushed = 0;
  std::thread producer([&] {
    pin(0);
    pushed = fill();
  });
  producer.join();
  return pushed;
}

// The producing end of all rings: fills them with what their streams say.
class Producers {
 public:
  Producers(const Segments& segments, bool mixed) {
    for (uint32_t ring = 0; ring < kRings; ++ring) {
      streams_.emplace_back(ring, mixed);
      ends_.push_back(
          {const_cast<Slot*>(segments.slots(ring)), &segments.counters(ring)->tail, 0, 0, kDepth});
    }
  }

  // Fills every ring; how many commands that were.
  uint64_t fill() {
    uint64_t pushed = 0;
    for (uint32_t ring = 0; ring < kRings; ++ring) {
      for (uint32_t i = 0; i < kDepth / kMaxBatch; ++i) {
        std::array<Slot, kMaxBatch> batch;
        for (uint32_t j = 0; j < kMaxBatch; ++j)
          batch[j] = streams_[ring].next(ends_[ring].head + j);
        if (!ends_[ring].try_push(batch.data(), kMaxBatch)) break;
        pushed += kMaxBatch;
      }
    }
    return pushed;
  }
  uint64_t head(uint32_t ring) const { return ends_[ring].head; }
  const Expected& expected(uint32_t ring) const { return streams_[ring].expected(); }

 private:
  std::vector<CommandStream> streams_;
  std::vector<Producer> ends_;
};

// The least that a proxy must do, without turns, windows, fairness, counters or failure.
class Bare {
 public:
  Bare(const SessionView& view, bool mixed, bool late)
      : view_(view),
        segments_({0, Group::kRanks, kRings, kDepth, Group::kSignals}),
        producers_(segments_, mixed),
        transport_(late),
        words_(size_t{kRings} * Group::kRanks * Group::kSignals) {
    for (uint32_t ring = 0; ring < kRings; ++ring) {
      rings_.push_back(std::make_unique<Ring>(ring, segments_.slots(ring), segments_.counters(ring),
                                              segments_.results(ring), kDepth));
      consumers_.push_back({segments_.slots(ring), 0, kDepth});
    }
  }

  uint64_t fill() { return producers_.fill(); }
  [[gnu::noinline]] void serve(uint64_t commands) {
    while (commands > 0) {
      for (uint32_t ring = 0; ring < kRings; ++ring) commands -= take_some(ring);
    }
  }
  bool verified() const {
    for (uint32_t ring = 0; ring < kRings; ++ring) {
      if (transport_.tally(ring) != producers_.expected(ring).tally) return false;
    }
    return true;
  }

 private:
  uint32_t take_some(uint32_t ring) {
    Consumer& consumer = consumers_[ring];
    uint32_t got = 0;
    Command command;
    for (Slot slot; got < kBatch && consumer.peek(0, slot); ++got) {
      const Refusal refusal = check(slot, Slot{}, consumer.next++, ring, view_, command);
      if (refusal == Refusal::kNone) hand_over(ring, command);
    }
    platform::store_release(&segments_.counters(ring)->tail, consumer.next);
    platform::store_release(&segments_.counters(ring)->completed, consumer.next);
    return got;
  }
  void hand_over(uint32_t ring, const Command& command) {
    const Write& write = command.write;
    if (command.op == Op::kDrain) return;
    if (write.units != 0) {
      transport_.write({rings_[ring].get(), write.rank, command.source_region,
                        command.destination_region, uint64_t{write.source} * kUnitBytes,
                        uint64_t{write.destination} * kUnitBytes,
                        uint64_t{write.units} * kUnitBytes});
    }
    if (write.advance == 0) return;
    uint64_t& word = words_[(ring * Group::kRanks + write.rank) * Group::kSignals + write.signal];
    word += write.advance;
    transport_.signal({rings_[ring].get(), write.rank, write.signal, word});
  }

  const SessionView view_;
  Segments segments_;
  Producers producers_;
  NullTransport transport_;
  std::vector<uint64_t> words_;
  std::vector<std::unique_ptr<Ring>> rings_;  // names for the transport only
  std::vector<Consumer> consumers_;
};

// A session of rank 0 whose one proxy runs the agent's loop over a NullTransport. The proxy's
// thread fills its own rings between the measured stretches.
class Agent {
 public:
  explicit Agent(const Case& measured) : case_(measured) {
    ProxySettings settings;
    settings.drain_batch = kBatch;
    settings.idle = IdleMode::kSpin;
    settings.serve = [this](Proxy& proxy) { serve(proxy); };
    session_ = std::make_shared<Session>(
        SessionSettings{1, {0, Group::kRanks, kRings, kDepth, Group::kSignals}, {core(1)}},
        settings);
    producers_ = std::make_unique<Producers>(session_->segments(), case_.mixed);
    for (int i = 0; i < 2; ++i) add_region();
    epoch_ = std::make_shared<Epoch>(EpochPlan{1, 1, 0, kWaitNs, nodes()},
                                     std::vector<std::shared_ptr<Session>>{session_}, blobs(),
                                     std::make_shared<BarrierStats>(3), events_);
    epoch_->leave(Group::kLeft);
    session_->join_epoch(epoch_);
    epoch_->start();
  }
  ~Agent() { session_->close(kWaitNs); }

  SessionView view() const { return epoch_->view(0, Group::kSignals); }

  // Runs `work(loop)` on the proxy's thread, between two of its turns.
  void run(const std::function<void(Loop<NullTransport>&)>& work) {
    std::unique_lock lock(mutex_);
    work_ = &work;
    changed_.notify_all();
    changed_.wait(lock, [this] { return work_ == nullptr; });
  }

  uint64_t fill() { return producers_->fill(); }
  [[gnu::noinline]] void turn_until_done(Loop<NullTransport>& loop) {
    for (const uint64_t end = now_ns() + kWaitNs; !done(); loop.turn()) {
      if (now_ns() < end) continue;
      std::fprintf(stderr, "a proxy did not retire what it was given: see CommandStream\n");
      ::_exit(1);  // this thread is its own agent: nobody could take an exception
    }
  }

  // Exactly: what the transport was given, what was counted, what was refused and why.
  bool verified() const {
    for (uint32_t i = 0; i < kRings; ++i) {
      const Expected& expected = producers_->expected(i);
      const RingCount& count = session_->rings()[i]->count();
      if (tally_[i] != expected.tally || count.writes.get() != expected.writes ||
          count.signals.get() != expected.signals || count.drains.get() != expected.drains)
        return false;
      uint64_t refused = 0;
      for (size_t reason = 0; reason < expected.refused.size(); ++reason) {
        if (count.refused[reason].get() != expected.refused[reason]) return false;
        refused += expected.refused[reason];
      }
      const RingCounters& told = *session_->segments().counters(i);
      if (told.refused != refused || told.completed != producers_->head(i)) return false;
    }
    return true;
  }

 private:
  bool done() const {
    for (uint32_t i = 0; i < kRings; ++i) {
      if (session_->rings()[i]->retired() != producers_->head(i)) return false;
    }
    return true;
  }

  void serve(Proxy& proxy) {
    NullTransport transport(case_.late);
    Loop<NullTransport> loop(proxy, transport);
    proxy.started();
    while (!loop.stopping()) {
      loop.turn();
      const std::lock_guard lock(mutex_);
      if (work_ == nullptr) continue;
      (*work_)(loop);
      for (uint32_t i = 0; i < kRings; ++i) tally_[i] = transport.tally(i);
      work_ = nullptr;
      changed_.notify_all();
    }
  }

  void add_region() {
    FileDescriptor fd(::memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const std::vector<std::byte> zeros(Group::kRegionBytes);
    if (::write(fd.get(), zeros.data(), zeros.size()) != static_cast<ssize_t>(zeros.size()))
      throw system_error("writing a region failed");
    const RegionInfo info = session_->register_memfd(fd.get(), Group::kRegionBytes);
    if (info.offset != info.region * Group::kSecond) throw NativeError("regions lie elsewhere");
  }

  static std::vector<std::vector<uint32_t>> nodes() {
    std::vector<std::vector<uint32_t>> out{{0}, {}};
    for (uint32_t rank = 1; rank < Group::kRanks; ++rank) out[1].push_back(rank);
    return out;
  }
  static std::vector<SessionBlob> blobs() {
    std::vector<SessionBlob> out;
    for (uint32_t rank = 0; rank < Group::kRanks; ++rank) {
      out.push_back(
          {rank,
           Group::kRanks,
           kRings,
           Group::kSignals,
           {{0, Group::kRegionBytes}, {Group::kSecond, Group::kSecond + Group::kRegionBytes}},
           std::vector<ProxyBlob>(1)});
    }
    return out;
  }

  const Case case_;
  Events events_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(Loop<NullTransport>&)>* work_ = nullptr;
  std::array<Tally, kRings> tally_{};
  std::shared_ptr<Session> session_;
  std::unique_ptr<Producers> producers_;
  std::shared_ptr<Epoch> epoch_;
};

struct Rates {
  std::vector<double> core, wall;
  void add(uint64_t commands, const Spent& spent) {
    core.push_back(static_cast<double>(commands) / spent.core_s);
    wall.push_back(static_cast<double>(commands) / spent.wall_s);
  }
  void print(const Case& measured, const char* side, uint64_t round, bool verified) const {
    print_samples(measured.name, kPerCore, side, round, verified, core);
    print_samples(measured.name, kPerWall, side, round, verified, wall);
  }
};

void measure(const Case& measured, uint64_t round, uint64_t fills) {
  Agent agent(measured);
  Bare bare(agent.view(), measured.mixed, measured.late);
  Rates ours, floor;
  agent.run([&](Loop<NullTransport>& loop) {
    for (uint64_t i = 0; i <= fills; ++i) {
      const uint64_t commands = filled(measured, [&] { return agent.fill(); });
      const Spent spent = timed([&] { agent.turn_until_done(loop); });
      const uint64_t bare_commands = filled(measured, [&] { return bare.fill(); });
      const Spent least = timed([&] { bare.serve(bare_commands); });
      if (i == 0) continue;  // warms up
      ours.add(commands, spent);
      floor.add(bare_commands, least);
    }
  });
  ours.print(measured, kOurs, round, agent.verified());
  floor.print(measured, kBare, round, bare.verified());
}

}  // namespace

int main(int count, char** values) {
  const Options options(count, values);
  (void)core(0);  // before a thread is pinned
  for (uint64_t round = 0; round < options.number("rounds", 9); ++round) {
    for (const Case& measured : kCases) measure(measured, round, options.number("fills", 50));
  }
}
