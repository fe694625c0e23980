// A group whose proxies share one network of this process and are moved by hand, by one thread, in
// random order and in a time of their own; for unordered_test.cc, mend_test.cc and benches. Only
// while a session is opened, joined or closed do the proxies' own threads move them.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <random>
#include <utility>

#include "error.h"
#include "loop.h"
#include "loop_commands.h"
#include "loop_turn.h"
#include "remote_post.h"
#include "session.h"

namespace epfabric::test {

using namespace epfabric::agent;

inline constexpr uint64_t kGroupLimitNs = 60'000'000'000;

struct HandShape {
  std::vector<std::vector<uint32_t>> nodes{{0}, {1}};
  uint32_t proxies = 1;
  uint32_t rings = 2;
  uint32_t depth = 64;
  uint32_t signals = 2;
  uint64_t region_bytes = 1 << 20;
  Limits limits{};
  bool mask = false;  // a lost rank ends no epoch
  AtomicsOffer atomics{};
};

// `Network` has at(now_ns), stop(); an E is made from a reference to it.
template <class Network, class E>
class HandGroup {
 public:
  HandGroup(const HandShape& shape, uint64_t seed, Network& network)
      : network_(network), random_(static_cast<uint32_t>(seed)) {
    uint32_t world = 0;
    for (const auto& ranks : shape.nodes) world += static_cast<uint32_t>(ranks.size());
    for (uint32_t rank = 0; rank < world; ++rank) add_rank(shape, rank, world);
    for (const auto& ranks : shape.nodes) {
      std::vector<std::shared_ptr<Session>> local;
      std::vector<SessionBlob> blobs(world);
      for (uint32_t rank = 0; rank < world; ++rank) {
        if (std::count(ranks.begin(), ranks.end(), rank) > 0) local.push_back(sessions_[rank]);
        blobs[rank] = blob(rank);
        blobs[rank].atomics = shape.atomics;
      }
      epochs.push_back(std::make_shared<Epoch>(
          EpochPlan{1, 1, 0, kGroupLimitNs, shape.nodes, shape.mask}, std::move(local),
          std::move(blobs), std::make_shared<BarrierStats>(3), events));
    }
    try {
      for (const auto& epoch : epochs) {
        for (const auto& session : epoch->sessions()) session->join_epoch(epoch);
      }
      wait([this] {
        return std::all_of(sessions_.begin(), sessions_.end(),
                           [](const auto& session) { return session->unconnected() == 0; });
      });
    } catch (...) {  // no thread may use what goes now
      end();
      throw;
    }
    for (const auto& epoch : epochs) epoch->start();
    lock_ = std::unique_lock(mutex_);
  }
  ~HandGroup() {
    lock_.unlock();
    end();
  }

  // One turn of one proxy, drawn by lot.
  void turn() {
    const uint64_t now_ns = pass_time(100 + random_() % 1000);
    units_[random_() % units_.size()]->loop.work(now_ns);
  }
  // The same, but never of these: each a rank and the number of a proxy.
  using Place = std::pair<uint32_t, uint32_t>;
  void turn_but(std::initializer_list<Place> these) {
    Unit* drawn = units_[random_() % units_.size()].get();
    for (const auto& [rank, proxy] : these) {
      if (by_rank_[rank][proxy] == drawn) return;
    }
    drawn->loop.work(pass_time(100 + random_() % 1000));
  }
  void turn_of(Place place) { by_rank_[place.first][place.second]->loop.work(pass_time(1000)); }
  // One turn of each, all at the same time.
  void turn_all() {
    for (const auto& unit : units_) unit->loop.work(now_ns_);
  }
  // One of this rank's first proxy; no time passes.
  void turn_of(size_t rank) { by_rank_[rank][0]->loop.work(now_ns_); }
  uint64_t pass_time(uint64_t ns) {
    now_ns_ += ns;
    network_.at(now_ns_);
    return now_ns_;
  }
  uint64_t now_ns() const { return now_ns_; }
  // Operations under way at this rank's proxies.
  uint64_t inflight(uint32_t rank) const {
    uint64_t out = 0;
    for (const Unit* unit : by_rank_[rank]) out += unit->transport.inflight();
    return out;
  }
  const ProxyCount& count(uint32_t rank) const { return by_rank_[rank][0]->count; }
  std::string failure() const {
    for (const auto& epoch : epochs) {
      if (epoch->failed()) return epoch->failure();
    }
    return "";
  }
  std::vector<Session*> sessions() const {
    std::vector<Session*> out;
    for (const auto& session : sessions_) out.push_back(session.get());
    return out;
  }

  const Session& session(uint32_t rank) const { return *sessions_[rank]; }
  Loop<RemoteTransport<E>>& loop_of(Place place) {
    return by_rank_[place.first][place.second]->loop;
  }

  Events events;
  std::vector<std::shared_ptr<Epoch>> epochs;  // by node

 private:
  struct Unit {
    Unit(Proxy& proxy, Network& network, const Shape& shape, uint32_t proxies, const Limits& limits)
        : transport(std::ref(network), proxy.index(), shape, proxies, limits, count),
          loop(proxy, transport) {}
    ProxyCount count;
    RemoteTransport<E> transport;
    Loop<RemoteTransport<E>> loop;
  };

  void end() {
    {
      const std::lock_guard lock(mutex_);
      network_.stop();
    }
    for (const auto& epoch : epochs) epoch->stop();  // or a masked delegate goes on to serve it
    for (const auto& session : sessions_) session->stop(kGroupLimitNs);
    for (const auto& session : sessions_) session->close(kGroupLimitNs);
  }
  void add_rank(const HandShape& shape, uint32_t rank, uint32_t world) {
    const Shape own{rank, world, shape.rings, shape.depth, shape.signals};
    by_rank_.emplace_back(shape.proxies);
    ProxySettings settings;
    settings.limits = shape.limits;
    settings.serve = [this, own, &shape](Proxy& proxy) { serve(proxy, own, shape); };
    sessions_.push_back(std::make_shared<Session>(
        SessionSettings{1, own, std::vector<int>(shape.proxies, -1)}, settings));
    const uint64_t bytes = round_up(shape.region_bytes, 4096);
    FileDescriptor fd(::memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const std::vector<std::byte> zeros(bytes);
    if (::write(fd.get(), zeros.data(), bytes) != static_cast<ssize_t>(bytes))
      throw system_error("writing a region failed");
    sessions_.back()->register_memfd(fd.get(), bytes);
  }

  void serve(Proxy& proxy, const Shape& own, const HandShape& shape) {
    Unit* unit = nullptr;
    {
      const std::lock_guard lock(mutex_);
      units_.push_back(std::make_unique<Unit>(proxy, network_, own, shape.proxies, shape.limits));
      unit = units_.back().get();
      by_rank_[own.rank][proxy.index()] = unit;
    }
    proxy.started();
    while (!unit->loop.stopping()) {
      {
        const std::lock_guard lock(mutex_);
        unit->loop.work(pass_time(1'000'000));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  }

  SessionBlob blob(uint32_t rank) const {
    SessionBlob out = sessions_[rank]->describe();
    for (size_t i = 0; i < out.proxies.size(); ++i) {
      out.proxies[i].address = by_rank_[rank][i]->transport.address();
      out.proxies[i].mailbox = by_rank_[rank][i]->transport.mailbox();
    }
    return out;
  }

  template <class Done>
  void wait(Done&& done) const {
    const uint64_t begin = platform::clock_ns();
    while (!done()) {
      if (platform::clock_ns() - begin > kGroupLimitNs)
        throw NativeError("the group does not connect: " + failure());
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  Network& network_;
  std::mutex mutex_;  // the network, units_ and what moves them
  std::unique_lock<std::mutex> lock_;
  std::minstd_rand random_;
  uint64_t now_ns_ = 1'000'000'000;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::vector<Unit*>> by_rank_;  // then by proxy
  std::vector<std::shared_ptr<Session>> sessions_;
};

}  // namespace epfabric::test
