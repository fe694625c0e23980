// Opens and ends sessions and epochs. Everything here runs on Python's threads; the proxies do the
// rest.
#include "core.h"

#include <arpa/inet.h>

#include <chrono>

#include "deadline.h"
#include "verbs_endpoint.h"

namespace epfabric::agent {
namespace {

constexpr uint64_t kStopNs = 5'000'000'000;
constexpr uint64_t kSettleNs = 1'000'000'000;

AtomicsWish wish_of(const std::string& text) {
  if (text == "auto") return AtomicsWish::kAuto;
  if (text == "hardware") return AtomicsWish::kHardware;
  if (text == "emulated") return AtomicsWish::kEmulated;
  throw NativeError("atomics is 'auto', 'hardware' or 'emulated'");
}

// Operations under way to a rank, below which a write that may still grow goes at once.
constexpr uint32_t kEarlyPop = 2;

void check_settings(const CoreSettings& settings) {
  const auto require = [](bool good, const std::string& what) {
    if (!good) throw NativeError(what);
  };
  require(settings.drain_batch >= 1 && settings.drain_batch <= 64, "drain_batch is 1-64");
  require(settings.limits.inflight >= 1 && settings.limits.inflight <= 16384,
          "max_inflight is 1-16384");
  require(settings.limits.inflight_bytes >= kUnitBytes, "max_inflight_bytes is at least 16");
  require(settings.idle == "adaptive" || settings.idle == "spin", "idle is 'adaptive' or 'spin'");
  require(settings.histogram_scale >= 0 && settings.histogram_scale <= Histogram::kMaxScale,
          "histogram_scale is 0-8");
  require(settings.packing >= 1 && settings.packing <= Joining::kMost, "packing is 1-8");
  require(settings.limits.stall_ns > 0, "stall_timeout_ms is at least 1");
  require(settings.stripes >= 1 && settings.stripes <= kMaxLines, "nics_per_gpu is 1-8");
  require(settings.selection == "leastInflight" || settings.selection == "roundRobin",
          "qp_selection is 'leastInflight' or 'roundRobin'");
  if (settings.provider.empty()) return;
  in6_addr ignored;
  require(::inet_pton(AF_INET, settings.address.c_str(), &ignored) == 1 ||
              ::inet_pton(AF_INET6, settings.address.c_str(), &ignored) == 1,
          "the agent's address '" + settings.address + "' is not an IP address");
  require(settings.ports.empty() || settings.provider == kEfa,
          "a core uses libfabric or verbs, not both");
}

}  // namespace

Core::Core(const CoreSettings& settings) : settings_(settings) {
  check_settings(settings);
  if (!settings.provider.empty()) {
    for (const VerbsPort& port : settings.ports)
      fabrics_.emplace_back(settings.provider, settings.address, settings.gated, port.device);
    if (fabrics_.empty())
      fabrics_.emplace_back(settings.provider, settings.address, settings.gated);
    for (const Fabric& fabric : fabrics_) {
      const FabricEndpoint trial(
          fabric);  // what is wrong is an error now, not at the first session
      proxy_settings_.fabrics.push_back(&fabric);
    }
  }
  proxy_settings_.drain_batch = settings.drain_batch;
  proxy_settings_.idle = settings.idle == "spin" ? IdleMode::kSpin : IdleMode::kAdaptive;
  // libfabric moves some things only when it is polled, without its descriptor telling.
  if (proxy_settings_.idle == IdleMode::kAdaptive && fabrics_.empty())
    proxy_settings_.lookout = std::make_shared<Lookout>();
  proxy_settings_.limits = settings.limits;
  proxy_settings_.limits.adaptive = settings.adaptive;
  proxy_settings_.limits.joining.commands = settings.packing;
  proxy_settings_.limits.joining.busy = settings.early_pop ? kEarlyPop : 1;
  proxy_settings_.atomics = wish_of(settings.atomics);
  if (fabrics_.empty()) proxy_settings_.ports = settings.ports;
  proxy_settings_.stripes = settings.stripes;
  if (settings.selection == "roundRobin") proxy_settings_.selection = Selection::kRoundRobin;
  for (VerbsPort& port : proxy_settings_.ports) {
    port.inflight = settings.limits.inflight;
    const VerbsEndpoint trial(port);
  }
  watch_ports();
}

Core::~Core() {
  try {
    close();
  } catch (const NativeError&) {
    // A proxy that does not end keeps its session alive; there is nobody left to tell.
  }
}

void Core::require_open() const {
  if (closed_) throw NativeError("the core is closed");
}

std::shared_ptr<Session> Core::open_session(const SessionSettings& settings) {
  {
    const std::lock_guard lock(mutex_);
    require_open();
  }
  ProxySettings proxies = settings_of(settings);
  const NicShares shares = take_endpoints(settings, proxies);
  // As it is now: others may be told of the same room. What is too much is refused by take_links().
  for (const auto& share : shares)
    proxies.connections = std::min(proxies.connections, share->links_left());
  if (settings.inflight > 0) proxies.limits.session_inflight = settings.inflight;
  auto session = std::make_shared<Session>(settings, proxies, shares);
  const std::lock_guard lock(mutex_);
  std::erase_if(sessions_, [](const auto& known) { return known.expired(); });
  sessions_.push_back(session);
  return session;
}

std::shared_ptr<Epoch> Core::make_epoch(const EpochPlan& plan,
                                        const std::vector<std::shared_ptr<Session>>& local,
                                        const std::vector<RemoteRank>& remote) {
  if (local.empty()) throw NativeError("an epoch needs at least one local session");
  const uint32_t world = local.front()->shape().world;
  std::vector<SessionBlob> blobs(world);
  for (const auto& session : local) {
    if (session->closed() || session->group() != plan.group || session->shape().world != world) {
      throw NativeError(
          "rank " + std::to_string(session->shape().rank) +
          " has a session that is closed, of another group, or of another world size");
    }
    if (session->shape().rank < world) blobs[session->shape().rank] = session->describe();
  }
  for (const RemoteRank& rank : remote) {
    if (rank.rank >= world)
      throw NativeError("remote rank " + std::to_string(rank.rank) + " is not in the group");
    if (fabrics_.empty() && settings_.ports.empty()) {
      throw NativeError(
          "rank " + std::to_string(rank.rank) +
          " is on another node, but this agent has no network transport: set spec.transport");
    }
    blobs[rank.rank] = decode(rank.blob);
    if (blobs[rank.rank].rank != rank.rank) {
      throw NativeError("the description of rank " + std::to_string(rank.rank) + " is rank " +
                        std::to_string(blobs[rank.rank].rank) + "'s");
    }
  }
  std::shared_ptr<BarrierStats> stats;
  {
    const std::lock_guard lock(mutex_);
    require_open();
    if (const auto found = epochs_.find(plan.group); found != epochs_.end()) {
      throw NativeError("the group's epoch " + std::to_string(found->second->plan().epoch) +
                        " is still open: close or fail it first");
    }
    auto& slot = barriers_[plan.group];
    if (!slot) slot = std::make_shared<BarrierStats>(settings_.histogram_scale);
    stats = slot;
  }
  EpochPlan with_rule = plan;
  with_rule.keep = keep_;
  auto epoch = std::make_shared<Epoch>(with_rule, local, std::move(blobs), stats, events_);
  for (const RemoteRank& rank : remote) {
    if (epoch->node_of(rank.rank) != rank.node) {
      throw NativeError("rank " + std::to_string(rank.rank) + " is said to be on two nodes");
    }
  }
  return epoch;
}

void Core::open_epoch(const EpochPlan& plan, const std::vector<std::shared_ptr<Session>>& local,
                      const std::vector<RemoteRank>& remote) {
  const auto epoch = make_epoch(plan, local, remote);
  {
    const std::lock_guard lock(mutex_);
    if (!epochs_.emplace(plan.group, epoch).second)
      throw NativeError("the group's epoch is being opened already");
  }
  try {
    take_links(*epoch);
  } catch (...) {  // its sessions are as they were
    remove(epoch);
    throw;
  }
  try {
    for (const auto& session : local) session->join_epoch(epoch);
    connect(*epoch);
  } catch (const NativeError& error) {
    fail_epoch(plan.group, error.what());
    throw;
  }
}

// Waits until every link of every local proxy has carried a write.
void Core::connect(const Epoch& epoch) {
  const uint64_t begin = platform::clock_ns();
  for (const auto& session : epoch.sessions()) {
    while (session->unconnected() != 0) {
      if (epoch.failed()) throw NativeError("connecting the epoch failed: " + epoch.failure());
      if (platform::clock_ns() - begin > settings_.connect_timeout_ns) {
        throw NativeError(
            "rank " + std::to_string(session->shape().rank) + " could not connect to " +
            session->unreachable() + " within " +
            std::to_string(settings_.connect_timeout_ns / 1'000'000) +
            " ms: is that node's agent running, and are the agents' addresses reachable from "
            "each other?");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }
}

std::shared_ptr<Epoch> Core::find(uint64_t group) const {
  const std::lock_guard lock(mutex_);
  const auto found = epochs_.find(group);
  return found == epochs_.end() ? nullptr : found->second;
}

std::shared_ptr<Epoch> Core::require(uint64_t group) const {
  auto epoch = find(group);
  if (!epoch) throw NativeError("group " + std::to_string(group) + " has no open epoch");
  return epoch;
}

// Another thread may have removed it before, and opened the group's next one.
void Core::remove(const std::shared_ptr<Epoch>& epoch) {
  const std::lock_guard lock(mutex_);
  const auto found = epochs_.find(epoch->plan().group);
  if (found != epochs_.end() && found->second == epoch) epochs_.erase(found);
}

void Core::start_epoch(uint64_t group) {
  const auto epoch = require(group);
  if (epoch->failed()) throw NativeError("the epoch has failed: " + epoch->failure());
  epoch->start();
}

void Core::fail_epoch(uint64_t group, const std::string& reason) {
  const auto epoch = find(group);
  if (!epoch) return;
  epoch->fail({"failed", group, -1, {}, reason}, true);
  end(epoch);
}

void Core::rank_left(uint64_t group, uint32_t rank) {
  const auto epoch = require(group);
  epoch->leave(rank);
  for (const Proxy* proxy : epoch->proxies()) {
    if (!proxy->pass(kStopNs)) throw NativeError("a proxy did not notice in time that a rank left");
  }
}

void Core::close_epoch(uint64_t group) {
  const auto epoch = find(group);
  if (!epoch) return;
  epoch->stop();
  end(epoch);
}

// One bound for all sessions. They are closed by their owner, but for those that were kept for the
// barrier. A proxy that does not end is told of by its session's close(), too: the group is free of
// the epoch all the same.
void Core::end(const std::shared_ptr<Epoch>& epoch) {
  remove(epoch);
  for (const auto& session : epoch->sessions()) session->ask_stop();
  const Deadline limit(kStopNs);
  Attempts attempts;
  for (const auto& session : epoch->sessions())
    attempts.make([&] { session->stop(limit.left_ns()); });
  for (const auto& session : epoch->sessions()) {
    if (epoch->masked(session->shape().rank)) attempts.make([&] { session->close(kStopNs); });
  }
  attempts.check();
}

void Core::mask_ranks(uint64_t group, const std::vector<uint32_t>& ranks) {
  const auto epoch = require(group);
  epoch->mask(ranks);
  for (const Proxy* proxy : epoch->proxies()) {
    if (!proxy->pass(kStopNs, 2))
      throw NativeError("a proxy did not notice in time that a rank is masked");
  }
  // What its proxies had posted ends, too, so that nothing of it arrives after a barrier without
  // it. Where a peer is slow, closing the session ends that.
  const Deadline limit(kSettleNs);
  for (const auto& session : epoch->sessions()) {
    if (epoch->masked(session->shape().rank) && !session->closed())
      session->settle(limit.left_ns());
  }
}

void Core::exclude_ranks(uint64_t group, const std::vector<uint32_t>& ranks) {
  require(group)->exclude(ranks);
}

std::vector<uint32_t> Core::absent(uint64_t group, uint64_t barrier) const {
  return require(group)->absent(barrier);
}

std::string Core::atomics(uint64_t group) const { return require(group)->atomics().text(); }

std::string Core::failure(uint64_t group) const {
  const auto epoch = find(group);
  return epoch ? epoch->failure() : "";
}

std::vector<std::shared_ptr<Session>> Core::sessions() const {
  std::vector<std::shared_ptr<Session>> out;
  const std::lock_guard lock(mutex_);
  for (const auto& known : sessions_) {
    if (auto session = known.lock(); session && !session->closed())
      out.push_back(std::move(session));
  }
  return out;
}

std::shared_ptr<BarrierStats> Core::barrier_stats(uint64_t group) const {
  const std::lock_guard lock(mutex_);
  const auto found = barriers_.find(group);
  return found == barriers_.end() ? nullptr : found->second;
}

void Core::forget_group(uint64_t group) {
  const std::lock_guard lock(mutex_);
  barriers_.erase(group);
}

std::vector<int> Core::port_fds() const {
  std::vector<int> out;
  for (const auto& port : watched_) out.push_back(port->events_fd());
  return out;
}

std::vector<std::string> Core::port_news() {
  std::vector<std::string> out;
  for (const auto& port : watched_) {
    while (auto news = port->next_news()) out.push_back(std::move(*news));
  }
  return out;
}

void Core::close() {
  std::vector<std::shared_ptr<Epoch>> epochs;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (const auto& [group, epoch] : epochs_) epochs.push_back(epoch);
  }
  Attempts attempts;
  for (const auto& epoch : epochs) attempts.make([&] { close_epoch(epoch->plan().group); });
  for (const auto& session : sessions()) attempts.make([&] { session->close(kStopNs); });
  attempts.check();
}

}  // namespace epfabric::agent
