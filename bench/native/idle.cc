// What proxies cost that have nothing to do, and how late they then take a command: asleep at the
// cap of their timed sleeps (something is under way, but nothing comes), and blocked (a second
// without any activity; the agent's lookout looks at their rings). The loop that agents run,
// without a network; commands are signals to the own rank.
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "bench.h"
#include "loop.h"
#include "loop_commands.h"
#include "loop_turn.h"
#include "session.h"

using namespace epfabric;
using namespace epfabric::bench;
using namespace epfabric::agent;

namespace {

constexpr uint32_t kDepth = 64;
constexpr uint64_t kWaitNs = 60'000'000'000;
constexpr uint64_t kToCapNs = 5'000'000;  // much more than the spins and the shorter sleeps take

struct State {
  const char* name;
  bool busy;           // something is under way
  uint64_t spread_ns;  // pushes come at a random time within that
  Metric share;
};
constexpr std::array<State, 2> kStates{
    {{"asleep at the cap",
      true,
      20 * Idle::kLastSleepNs,
      {"core_share_asleep", "of a core", false}},
     {"blocked", false, 2 * Proxy::kWatchedNs, {"core_share_blocked", "of a core", false}}}};
constexpr const char* kBare = "a bare sleep";
constexpr Metric kLookoutShare{"core_share_lookout", "of a core", false};
constexpr Metric kWakes{"wakes_per_second", "1/s", false};
constexpr Metric kOwn{"own_seconds_per_wake", "s", false};
constexpr Metric kWake{"wake_seconds", "s", false};

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "idle: %s\n", what);
  std::exit(1);
}

void sleep_ns(uint64_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); }

uint64_t read_ns(clockid_t clock) {
  timespec now;
  if (::clock_gettime(clock, &now) != 0) give_up("the clock of a thread cannot be read");
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

clockid_t clock_of(pthread_t thread) {
  clockid_t clock{};
  if (::pthread_getcpuclockid(thread, &clock) != 0) give_up("no clock of a thread");
  return clock;
}

// What threads took in all, and how often they woke.
struct Use {
  uint64_t wall_ns, used_ns, lookout_ns, wakes;

  Use operator-(const Use& before) const {
    return {wall_ns - before.wall_ns, used_ns - before.used_ns, lookout_ns - before.lookout_ns,
            wakes - before.wakes};
  }
  double share(uint64_t ns) const { return static_cast<double>(ns) / static_cast<double>(wall_ns); }
  double wakes_per_second() const { return static_cast<double>(wakes) / seconds(wall_ns); }
  double seconds_per_wake() const { return seconds(used_ns) / static_cast<double>(wakes); }
  static double seconds(uint64_t ns) { return static_cast<double>(ns) * 1e-9; }
};

template <class Threads>
Use use_within(const Threads& threads, uint64_t ns) {
  const Use before = threads.use();
  sleep_ns(ns);
  return threads.use() - before;
}

// What the kernel and the machine take for the same sleeps, on the same cores, of threads that do
// nothing else: no proxies can take less.
class Bare {
 public:
  Bare(bool busy, uint32_t proxies) {
    for (uint32_t i = 0; i < proxies; ++i)
      add([this, busy](Count& wakes) { as_proxy(busy, wakes); });
    if (!busy) add([this](Count& wakes) { as_lookout(wakes); });
  }
  ~Bare() {
    stop_.store(true, std::memory_order_relaxed);
    for (const auto& one : threads_) one->thread.join();
  }
  Use use() const {
    Use out{now_ns(), 0, 0, 0};
    for (const auto& one : threads_) {
      out.used_ns += read_ns(one->clock);
      out.wakes += one->wakes.get();
    }
    return out;
  }

 private:
  struct Thread {
    Count wakes;
    std::thread thread;
    clockid_t clock{};
  };

  template <class Sleep>
  void add(Sleep&& sleep) {
    Thread& one = *threads_.emplace_back(std::make_unique<Thread>());
    one.thread = std::thread([sleep, &one] { sleep(one.wakes); });
    one.clock = clock_of(one.thread.native_handle());
  }
  void as_proxy(bool busy, Count& wakes) {
    pin(1);
    ::prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    const FileDescriptor never(::eventfd(0, EFD_CLOEXEC));
    pollfd wait{never.get(), POLLIN, 0};
    const timespec nap{0, static_cast<long>(busy ? Idle::kLastSleepNs : Proxy::kWatchedNs)};
    for (; !stop_.load(std::memory_order_relaxed); wakes.add(1)) {
      (void)!(busy ? ::nanosleep(&nap, nullptr) : ::ppoll(&wait, 1, &nap, nullptr));
    }
  }
  void as_lookout(Count& wakes) {
    std::mutex mutex;
    std::condition_variable never;
    std::unique_lock lock(mutex);
    for (; !stop_.load(std::memory_order_relaxed); wakes.add(1)) {
      never.wait_for(lock, std::chrono::nanoseconds(Lookout::kLookNs));
    }
  }

  std::atomic<bool> stop_{false};
  std::vector<std::unique_ptr<Thread>> threads_;
};

// No network, but a loop that takes something for under way as long as it is told so.
class Silent : public NoRemote {
 public:
  explicit Silent(const std::atomic<bool>& busy) : busy_(busy) {}
  uint64_t inflight() const { return busy_.load(std::memory_order_relaxed) ? 1 : 0; }

 private:
  const std::atomic<bool>& busy_;
};

// A rank alone in its group, with proxies on the second core that serve a ring each.
class Rank {
 public:
  Rank(bool busy, uint32_t proxies) : busy_(busy), proxies_(proxies), clocks_(proxies) {
    ProxySettings settings;
    settings.lookout = lookout_;
    settings.serve = [this](Proxy& proxy) {
      Silent transport(busy_);
      Loop<Silent> loop(proxy, transport);
      clocks_[proxy.index()] = clock_of(::pthread_self());
      proxy.started();
      loop.run();
    };
    const Shape shape{0, 1, proxies, kDepth, 1};
    session_ = std::make_shared<Session>(
        SessionSettings{1, shape, std::vector<int>(proxies, core(1))}, settings);
    epoch_ = std::make_shared<Epoch>(
        EpochPlan{1, 1, 0, kWaitNs, {{0}}}, std::vector<std::shared_ptr<Session>>{session_},
        std::vector<SessionBlob>{session_->describe()}, std::make_shared<BarrierStats>(3), events_);
    session_->join_epoch(epoch_);
    epoch_->start();
    const Segments& segments = session_->segments();
    for (uint32_t i = 0; i < proxies; ++i) {
      rings_.push_back(
          {const_cast<Slot*>(segments.slots(i)), &segments.counters(i)->tail, 0, 0, kDepth});
    }
  }
  ~Rank() { session_->close(kWaitNs); }

  // Returns when the proxy waits as it does in this state.
  void settle(uint32_t proxy) const {
    const uint64_t end = now_ns() + kWaitNs;
    const ProxyCount& count = this->count(proxy);
    const uint64_t sleeps = count.sleeps.get(), blocks = count.blocks.get();
    if (busy_) sleep_ns(kToCapNs);
    while (busy_ ? count.sleeps.get() < sleeps + 10 : count.blocks.get() < blocks + 2) {
      if (now_ns() > end) give_up("a proxy without work did not come to rest");
      sleep_ns(1'000'000);
    }
  }
  void settle_all() const {
    for (uint32_t i = 0; i < proxies_; ++i) settle(i);
  }
  Use use() const {
    Use out{now_ns(), 0, busy_ ? 0 : read_ns(clock_of(lookout_->thread())), 0};
    for (const clockid_t clock : clocks_) out.used_ns += read_ns(clock);
    out.used_ns += out.lookout_ns;
    out.wakes = total(&ProxyCount::sleeps) + total(&ProxyCount::blocks);
    if (!busy_) out.wakes += lookout_->looks();
    return out;
  }
  // That no proxy left its state within that time.
  Use at_rest(uint64_t ns, bool& stayed) const {
    const auto other = busy_ ? &ProxyCount::blocks : &ProxyCount::sleeps;
    const uint64_t before = total(other);
    const Use out = use_within(*this, ns);
    stayed = stayed && total(other) == before && out.wakes > 0;
    return out;
  }
  // From a push to the command taken, and that its signal came.
  double wake(uint32_t proxy, bool& came) {
    Slot slot;
    Producer& ring = rings_[proxy];
    if (!pack_signal(0, 0, 1, slot)) give_up("no signal");
    const uint64_t pushed = now_ns();
    if (!ring.try_push(&slot, 1)) give_up("an idle ring is full");
    const RingCounters& told = *session_->segments().counters(proxy);
    uint32_t looks = 0;
    while (platform::load_acquire(&told.completed) < ring.head) {
      if (now_ns() - pushed > kWaitNs) give_up("a command was not taken");
      spin(looks);
    }
    const uint64_t taken = now_ns();
    const uint64_t* word = session_->segments().signal(0, proxy, 0);
    came = came && platform::load_acquire(word) == ring.head;
    return Use::seconds(taken - pushed);
  }

 private:
  const ProxyCount& count(uint32_t proxy) const { return session_->proxies()[proxy]->count(); }
  uint64_t total(Count ProxyCount::* one) const {
    uint64_t out = 0;
    for (uint32_t i = 0; i < proxies_; ++i) out += (count(i).*one).get();
    return out;
  }

  const std::atomic<bool> busy_;
  const uint32_t proxies_;
  const std::shared_ptr<Lookout> lookout_ = std::make_shared<Lookout>();
  Events events_;
  std::vector<clockid_t> clocks_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<Epoch> epoch_;
  std::vector<Producer> rings_;
};

struct Amounts {
  uint64_t shares, wakes, ms;
};

void measure(const State& state, uint64_t round, uint32_t proxies, const Amounts& amounts,
             std::mt19937_64& random) {
  std::vector<Use> bare, used;
  {
    const Bare threads(state.busy, proxies);
    for (uint64_t i = 0; i < amounts.shares; ++i)
      bare.push_back(use_within(threads, amounts.ms * 1'000'000));
  }
  Rank rank(state.busy, proxies);
  bool stayed = true, came = true;
  rank.settle_all();
  for (uint64_t i = 0; i < amounts.shares; ++i)
    used.push_back(rank.at_rest(amounts.ms * 1'000'000, stayed));
  std::vector<double> wake;
  for (uint64_t i = 0; i < amounts.wakes; ++i) {
    const auto proxy = static_cast<uint32_t>(i % proxies);
    rank.settle(proxy);
    sleep_ns(random() % state.spread_ns);
    wake.push_back(rank.wake(proxy, came));
  }
  const auto print = [&](const Metric& metric, const char* side, const std::vector<Use>& of,
                         auto&& value) {
    std::vector<double> out;
    for (size_t i = 0; i < of.size(); ++i) out.push_back(value(of[i], i));
    print_samples(state.name, metric, side, round, stayed, out);
  };
  const auto share = [&](const Use& use, size_t) { return use.share(use.used_ns) / proxies; };
  const auto wakes = [](const Use& use, size_t) { return use.wakes_per_second(); };
  print(state.share, kOurs, used, share);
  print(state.share, kBare, bare, share);
  print(kWakes, kOurs, used, wakes);
  print(kWakes, kBare, bare, wakes);
  print(kOwn, kOurs, used, [&](const Use& use, size_t i) {
    return use.seconds_per_wake() - bare[i].seconds_per_wake();
  });
  if (!state.busy) {
    print(kLookoutShare, kOurs, used,
          [](const Use& use, size_t) { return use.share(use.lookout_ns); });
  }
  print_samples(state.name, kWake, kOurs, round, came, wake);
}

}  // namespace

int main(int count, char** values) {
  const Options options(count, values);
  pin(0);
  std::mt19937_64 random(options.number("seed", 1));
  const auto blocked = static_cast<uint32_t>(options.number("proxies", 4));
  for (uint64_t round = 0; round < options.number("rounds", 9); ++round) {
    for (const State& state : kStates) {
      const Amounts amounts{options.number("shares", 1),
                            options.number(state.busy ? "asleep" : "blocked", 1),
                            options.number("ms", 1000)};
      measure(state, round, state.busy ? 1 : blocked, amounts, random);
    }
  }
}
