// A proxy thread's life: pin, open the endpoint, run the loop, end. And how other threads talk to
// it.
#include "proxy.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <system_error>

#include "deadline.h"
#include "fabric_transport.h"
#include "loop.h"
#include "loop_commands.h"
#include "loop_turn.h"
#include "pin.h"
#include "standby.h"
#include "verbs_transport.h"

namespace epfabric::agent {
namespace {

constexpr auto kStartLimit = std::chrono::seconds(10);
constexpr uint64_t kEndLimitNs = 30'000'000'000;
constexpr int kStuckStatus = 3;

std::chrono::nanoseconds nanoseconds(uint64_t ns) { return std::chrono::nanoseconds(ns); }

// The lookout reads the session's segments, which stay until the thread has ended.
class Watch {
 public:
  Watch(Lookout* lookout, const Proxy& proxy) : lookout_(lookout), proxy_(proxy) {
    if (lookout_ != nullptr) lookout_->watch(proxy_);
  }
  ~Watch() {
    if (lookout_ != nullptr) lookout_->forget(proxy_);
  }
  Watch(const Watch&) = delete;

 private:
  Lookout* const lookout_;
  const Proxy& proxy_;
};

}  // namespace

Proxy::Proxy(uint32_t index, uint32_t proxies, int cpu, const ProxySettings& settings,
             const Segments& segments, const std::vector<Region>& regions,
             std::vector<std::unique_ptr<Ring>>& rings)
    : index_(index),
      proxies_(proxies),
      cpu_(cpu),
      settings_(settings),
      segments_(segments),
      regions_(regions),
      rings_(rings),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      destinations_(segments.shape().world) {
  if (wake_fd_.get() < 0) throw system_error("eventfd failed");
  try {
    thread_ = std::thread([this] { main(); });
  } catch (const std::system_error& error) {
    throw NativeError(std::string("a proxy's thread cannot be started (") + error.what() +
                      "): raise the agent's limit of processes (pids)");
  }
  std::unique_lock lock(mutex_);
  const bool known = changed_.wait_for(lock, kStartLimit, [this] { return ready_ || ended_; });
  std::string error = start_error_;
  if (!known) error = "a proxy did not start within 10 s";
  lock.unlock();
  if (error.empty()) return;
  end();
  throw NativeError(error);
}

Proxy::~Proxy() { end(); }

// A thread that does not end uses the session's memory, so that nobody may go on without it, nor
// wait for it for ever: the process ends, and is started anew.
void Proxy::end() {
  ask_stop();
  if (join(kEndLimitNs)) return;
  std::fprintf(stderr, "epfabric-agent: proxy %u on CPU %d did not end in %llu s: the agent ends\n",
               index_, cpu(), static_cast<unsigned long long>(kEndLimitNs / 1'000'000'000));
  std::_Exit(kStuckStatus);
}

void Proxy::main() {
  std::string error;
  try {
    pin();
    const Watch watch(settings_.lookout.get(), *this);
    if (settings_.serve) {
      settings_.serve(*this);
    } else {
      serve_remote();
    }
  } catch (const std::exception& failed) {  // NativeError, or no memory
    error = failed.what();
  }
  if (settings_.share) settings_.share->give_back();
  settle_.store(kSettledForEver, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  start_error_ = error;
  ended_ = true;
  if (request_ != nullptr) {
    request_->error = "the proxy has ended";
    answered_ = true;
  }
  changed_.notify_all();
}

void Proxy::serve_remote() {
  if (!settings_.ports.empty() && settings_.stripes > 1) {
    VerbsLines lines{{}, settings_.selection};
    for (const uint32_t at : lines_of(index_, settings_.stripes, settings_.spread()))
      lines.lines.push_back(settings_.ports[at]);
    serve<StripedVerbsTransport>(lines);
  } else if (!settings_.ports.empty()) {
    const auto ports = static_cast<uint32_t>(settings_.ports.size());
    const uint32_t own = index_ % settings_.spread();
    VerbsStandby standby{{settings_.ports[own]}};
    const auto spare = spare_of(own, ports);
    if (spare && settings_.share && settings_.share->has_spare()) {
      standby.lines.push_back(settings_.ports[*spare]);
      standby.lines.back().spare = true;
    }
    serve<VerbsTransport>(standby);
  } else if (!settings_.fabrics.empty()) {
    const Fabric& fabric = *settings_.fabrics[index_ % settings_.spread()];
    if (fabric.ordered())
      serve<FabricTransport>(fabric);
    else
      serve<GatedFabricTransport>(fabric);
  } else {
    NoRemote remote;
    Loop<NoRemote> loop(*this, remote);
    started();
    loop.run();
  }
}

template <class Remote, class Network>
void Proxy::serve(const Network& network) {
  Remote remote(network, index_, segments_.shape(), proxies_, settings_.limits, count_);
  {
    const std::lock_guard lock(mutex_);
    address_ = remote.address();
  }
  mailbox_ = remote.mailbox();
  ability_.store(remote.ability(), std::memory_order_relaxed);
  Loop<Remote> loop(*this, remote);
  started();
  loop.run();
}

void Proxy::started() {
  const std::lock_guard lock(mutex_);
  ready_ = true;
  changed_.notify_all();
}

// By the thread itself, so that its memory comes from the right node.
void Proxy::pin() {
  const std::string name = "epf-proxy-" + std::to_string(index_);
  ::pthread_setname_np(::pthread_self(), name.c_str());
  ::prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);  // or a sleep of 5 µs takes 55
  if (cpu() >= 0) pin_to(::pthread_self(), cpu());
}

// By another thread, since the CPUs that the agent may use have changed.
void Proxy::move(int cpu) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;  // it is joined under the lock
  pin_to(thread_.native_handle(), cpu);
  cpu_.store(cpu, std::memory_order_relaxed);
}

void Proxy::run(Request& request, uint64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  if (ended_) throw NativeError("the session's proxies have ended: open a new session");
  request_ = &request;
  answered_ = taken_ = false;
  asked_.store(true, std::memory_order_release);  // partner: Loop::turn()
  wake();
  const Deadline limit(timeout_ns);
  // One that is taken is not pulled away: nothing bounds what a driver takes to register memory.
  // The heartbeat goes on for it no longer than the limit.
  while (!answered_ && (taken_ || limit.left_ns() > 0)) {
    changed_.wait_for(lock, nanoseconds(taken_ ? kBeatNs : std::min(kBeatNs, limit.left_ns())));
    if (taken_ && limit.left_ns() > 0) beat();
  }
  const bool done = answered_;
  asked_.store(false, std::memory_order_relaxed);
  request_ = nullptr;
  if (!done) throw NativeError("a proxy did not answer in time: the machine is overloaded");
  if (!request.error.empty()) throw NativeError(request.error);
}

// On the thread, whose it is until answer().
Request* Proxy::take_request() {
  const std::lock_guard lock(mutex_);
  if (request_ == nullptr || answered_) return nullptr;
  taken_ = true;
  return request_;
}

void Proxy::answer() {
  const std::lock_guard lock(mutex_);
  answered_ = true;
  asked_.store(false, std::memory_order_relaxed);
  changed_.notify_all();
}

void Proxy::beat() {
  if (index_ != 0) return;
  const uint64_t count = heartbeat_.fetch_add(1, std::memory_order_relaxed) + 1;
  platform::store_release(&segments_.header()->heartbeat, count);
}

void Proxy::ask_stop() {
  stop_.store(true, std::memory_order_release);
  wake();
}

bool Proxy::join(uint64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, nanoseconds(timeout_ns), [this] { return ended_; })) return false;
  // Under the lock: two may end the session at once. The thread needs the lock no more.
  if (thread_.joinable()) thread_.join();
  return true;
}

bool Proxy::pass(uint64_t timeout_ns, uint64_t turns) const {
  const uint64_t begin = platform::clock_ns();
  const uint64_t turn = turns_.load(std::memory_order_seq_cst);  // partner: Loop::turn()
  while (turns_.load(std::memory_order_seq_cst) - turn < turns) {
    wake();
    {
      const std::lock_guard lock(mutex_);
      if (ended_) return true;
    }
    if (platform::clock_ns() - begin > timeout_ns) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

std::string Proxy::unreachable() const {
  const std::lock_guard lock(mutex_);
  return unreachable_;
}

std::vector<std::byte> Proxy::address() const {
  const std::lock_guard lock(mutex_);
  return address_;
}

void Proxy::wake() const {
  if (!blocked_.load(std::memory_order_seq_cst) && !stop_.load(std::memory_order_relaxed) &&
      !asked_.load(std::memory_order_relaxed)) {
    return;
  }
  const uint64_t one = 1;
  (void)!::write(wake_fd_.get(), &one, sizeof(one));
}

Seen Proxy::wake_for_commands() const {
  if (!blocked_.load(std::memory_order_seq_cst)) return Seen::kAwake;
  const bool visible = std::any_of(rings_.begin(), rings_.end(), [this](const auto& ring) {
    return ring->index() % proxies_ == index_ && ring->visible();
  });
  if (!visible) return Seen::kBlocked;
  wake();
  return Seen::kWoken;
}

// poll() leaves out a `queue_fd` that is none.
bool Proxy::block(uint64_t at_most_ns, int queue_fd) {
  blocked_.store(true, std::memory_order_seq_cst);  // before attend() loads
  if (settings_.lookout) settings_.lookout->attend();
  std::array<pollfd, 2> wait{{{wake_fd_.get(), POLLIN, 0}, {queue_fd, POLLIN, 0}}};
  const timespec limit{0, static_cast<long>(at_most_ns)};
  const bool woken = ::ppoll(wait.data(), wait.size(), &limit, nullptr) > 0 && wait[0].revents != 0;
  if (woken) {
    uint64_t ignored;
    (void)!::read(wake_fd_.get(), &ignored, sizeof(ignored));
  }
  blocked_.store(false, std::memory_order_seq_cst);
  return woken;
}

}  // namespace epfabric::agent
