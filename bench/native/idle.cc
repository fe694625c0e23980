// What a proxy costs that has nothing to do, and how late it then takes a command: asleep at the
// cap of its timed sleeps (something is under way, but nothing comes), and blocked (a second
// without any activity). The loop that agents run, without a network; commands are signals to its
// own rank.
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include <atomic>
#include <memory>
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
constexpr uint64_t kSpreadNs = 2 * Idle::kBlockNs;  // pushes come at a random time within that

struct State {
  const char* name;
  bool busy;  // something is under way
  Metric share;
};
constexpr std::array<State, 2> kStates{
    {{"asleep at the cap", true, {"core_share_asleep", "of a core", false}},
     {"blocked", false, {"core_share_blocked", "of a core", false}}}};
constexpr const char* kBare = "a bare sleep";
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

double share_of(clockid_t thread, uint64_t ns) {
  const uint64_t wall = now_ns(), used = read_ns(thread);
  sleep_ns(ns);
  const uint64_t used_end = read_ns(thread), wall_end = now_ns();
  return static_cast<double>(used_end - used) / static_cast<double>(wall_end - wall);
}

// What the kernel and the machine take for the same sleeps, on the same core, of a thread that does
// nothing else: no proxy can take less.
class Bare {
 public:
  explicit Bare(bool busy) : thread_([this, busy] { run(busy); }) {
    if (::pthread_getcpuclockid(thread_.native_handle(), &clock_) != 0) give_up("no clock");
  }
  ~Bare() {
    stop_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  double share(uint64_t ns) const { return share_of(clock_, ns); }

 private:
  void run(bool busy) {
    pin(1);
    ::prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);  // as a proxy's
    const FileDescriptor never(::eventfd(0, EFD_CLOEXEC));
    pollfd wait{never.get(), POLLIN, 0};
    const timespec nap{0, static_cast<long>(busy ? Idle::kLastSleepNs : Idle::kBlockNs)};
    while (!stop_.load(std::memory_order_relaxed)) {
      (void)!(busy ? ::nanosleep(&nap, nullptr) : ::ppoll(&wait, 1, &nap, nullptr));
    }
  }

  std::atomic<bool> stop_{false};
  clockid_t clock_{};
  std::thread thread_;
};

// No network, but a loop that takes something for under way as long as it is told so.
class Silent : public NoRemote {
 public:
  explicit Silent(const std::atomic<bool>& busy) : busy_(busy) {}
  uint64_t inflight() const { return busy_.load(std::memory_order_relaxed) ? 1 : 0; }

 private:
  const std::atomic<bool>& busy_;
};

// A rank alone in its group, with one proxy on the second core.
class Rank {
 public:
  explicit Rank(bool busy) : busy_(busy) {
    ProxySettings settings;
    settings.serve = [this](Proxy& proxy) {
      Silent transport(busy_);
      Loop<Silent> loop(proxy, transport);
      if (::pthread_getcpuclockid(::pthread_self(), &clock_) != 0) give_up("no clock of a thread");
      proxy.started();
      loop.run();
    };
    const Shape shape{0, 1, 1, kDepth, 1};
    session_ = std::make_shared<Session>(SessionSettings{1, shape, {core(1)}}, settings);
    epoch_ = std::make_shared<Epoch>(
        EpochPlan{1, 1, 0, kWaitNs, {{0}}}, std::vector<std::shared_ptr<Session>>{session_},
        std::vector<SessionBlob>{session_->describe()}, std::make_shared<BarrierStats>(3), events_);
    session_->join_epoch(epoch_);
    epoch_->start();
    const Segments& segments = session_->segments();
    ring_ = {const_cast<Slot*>(segments.slots(0)), &segments.counters(0)->tail, 0, 0, kDepth};
  }
  ~Rank() { session_->close(kWaitNs); }

  // Returns when the proxy waits as it does in this state.
  void settle() {
    const uint64_t end = now_ns() + kWaitNs;
    const uint64_t sleeps = count().sleeps.get(), blocks = count().blocks.get();
    if (busy_) sleep_ns(kToCapNs);
    while (busy_ ? count().sleeps.get() < sleeps + 10 : count().blocks.get() < blocks + 2) {
      if (now_ns() > end) give_up("a proxy without work did not come to rest");
      sleep_ns(1'000'000);
    }
  }
  // The share of a core that the proxy's thread takes within that time, and that it stayed at rest.
  double share(uint64_t ns, bool& stayed) {
    const uint64_t sleeps = count().sleeps.get(), blocks = count().blocks.get();
    const double out = share_of(clock_, ns);
    stayed = busy_ ? count().sleeps.get() > sleeps && count().blocks.get() == blocks
                   : count().blocks.get() > blocks && count().sleeps.get() == sleeps;
    return out;
  }
  // From a push to the command taken, and that its signal came.
  double wake(bool& came) {
    Slot slot;
    if (!pack_signal(0, 0, 1, slot)) give_up("no signal");
    const uint64_t pushed = now_ns();
    if (!ring_.try_push(&slot, 1)) give_up("an idle ring is full");
    const RingCounters& told = *session_->segments().counters(0);
    uint32_t looks = 0;
    while (platform::load_acquire(&told.completed) < ring_.head) {
      if (now_ns() - pushed > kWaitNs) give_up("a command was not taken");
      spin(looks);
    }
    const uint64_t taken = now_ns();
    came = platform::load_acquire(session_->segments().signal(0, 0, 0)) == ring_.head;
    return static_cast<double>(taken - pushed) * 1e-9;
  }

 private:
  const ProxyCount& count() const { return session_->proxies()[0]->count(); }

  const std::atomic<bool> busy_;
  Events events_;
  clockid_t clock_{};
  std::shared_ptr<Session> session_;
  std::shared_ptr<Epoch> epoch_;
  Producer ring_{};
};

void measure(const State& state, uint64_t round, uint64_t shares, uint64_t wakes, uint64_t ms,
             std::mt19937_64& random) {
  std::vector<double> share, bare, wake;
  {
    const Bare thread(state.busy);
    for (uint64_t i = 0; i < shares; ++i) bare.push_back(thread.share(ms * 1'000'000));
  }
  Rank rank(state.busy);
  bool stayed = true, came = true;
  rank.settle();
  for (uint64_t i = 0; i < shares; ++i) {
    bool now = false;
    share.push_back(rank.share(ms * 1'000'000, now));
    stayed = stayed && now;
  }
  for (uint64_t i = 0; i < wakes; ++i) {
    rank.settle();
    sleep_ns(random() % kSpreadNs);
    bool now = false;
    wake.push_back(rank.wake(now));
    came = came && now;
  }
  print_samples(state.name, state.share, kOurs, round, stayed, share);
  print_samples(state.name, state.share, kBare, round, true, bare);
  print_samples(state.name, kWake, kOurs, round, came, wake);
}

}  // namespace

int main(int count, char** values) {
  const Options options(count, values);
  pin(0);
  std::mt19937_64 random(options.number("seed", 1));
  for (uint64_t round = 0; round < options.number("rounds", 9); ++round) {
    for (const State& state : kStates) {
      const uint64_t wakes = options.number(state.busy ? "asleep" : "blocked", 1);
      measure(state, round, options.number("shares", 1), wakes, options.number("ms", 1000), random);
    }
  }
}
