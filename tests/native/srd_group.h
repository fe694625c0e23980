// A group whose proxies share one SrdNetwork and are moved by hand, by one thread, in random order
// and in a time of their own; for unordered_test.cc. Only while a session is opened, joined or
// closed do the proxies' own threads move them.
#pragma once

#include <doctest/doctest.h>

#include <mutex>

#include "cores.h"
#include "loop.h"
#include "loop_commands.h"
#include "loop_turn.h"
#include "order_checker.h"
#include "remote_post.h"
#include "srd_network.h"

namespace epfabric::test {

using namespace epfabric::agent;

using SrdTransport = RemoteTransport<SrdEndpoint>;

struct SrdShape {
  std::vector<std::vector<uint32_t>> nodes{{0}, {1}};
  uint32_t proxies = 1;
  uint32_t rings = 2;
  uint32_t depth = 64;
  Limits limits{};
};

class SrdGroup {
 public:
  SrdGroup(const SrdShape& shape, uint64_t seed, const SrdRules& rules)
      : network(seed, rules), random_(seed) {
    uint32_t world = 0;
    for (const auto& ranks : shape.nodes) world += static_cast<uint32_t>(ranks.size());
    for (uint32_t rank = 0; rank < world; ++rank) add_rank(shape, rank, world);
    for (const auto& ranks : shape.nodes) {
      std::vector<std::shared_ptr<Session>> local;
      std::vector<SessionBlob> blobs(world);
      for (uint32_t rank = 0; rank < world; ++rank) {
        if (std::count(ranks.begin(), ranks.end(), rank) > 0) {
          local.push_back(sessions_[rank]);
        } else {
          blobs[rank] = blob(rank);
        }
      }
      epochs.push_back(std::make_shared<Epoch>(EpochPlan{1, 1, 0, kTestLimitNs, shape.nodes},
                                               std::move(local), std::move(blobs),
                                               std::make_shared<BarrierStats>(3), events));
    }
    for (const auto& epoch : epochs) {
      for (const auto& session : epoch->sessions()) session->join_epoch(epoch);
    }
    wait([this] {
      return std::all_of(sessions_.begin(), sessions_.end(),
                         [](const auto& session) { return session->unconnected() == 0; });
    });
    for (const auto& epoch : epochs) epoch->start();
    lock_ = std::unique_lock(mutex_);
  }
  ~SrdGroup() {
    stopped_ = true;
    lock_.unlock();
    for (const auto& session : sessions_) session->stop(kTestLimitNs);
    for (const auto& session : sessions_) session->close(kTestLimitNs);
  }

  // One turn of one proxy.
  void turn() {
    now_ns_ += 100 + random_() % 1000;
    units_[random_() % units_.size()]->loop.work(now_ns_);
  }
  void pass_time(uint64_t ns) { now_ns_ += ns; }
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

  SrdNetwork network;
  Events events;
  std::vector<std::shared_ptr<Epoch>> epochs;  // by node

 private:
  struct Unit {
    Unit(Proxy& proxy, SrdNetwork& network, const Shape& shape, uint32_t proxies,
         const Limits& limits)
        : transport(std::ref(network), proxy.index(), shape, proxies, limits, count),
          loop(proxy, transport) {}
    ProxyCount count;
    SrdTransport transport;
    Loop<SrdTransport> loop;
  };

  void add_rank(const SrdShape& shape, uint32_t rank, uint32_t world) {
    const Shape own{rank, world, shape.rings, shape.depth, kWords};
    by_rank_.emplace_back(shape.proxies);
    ProxySettings settings;
    settings.limits = shape.limits;
    settings.serve = [this, own, &shape](Proxy& proxy) { serve(proxy, own, shape); };
    sessions_.push_back(std::make_shared<Session>(
        SessionSettings{1, own, std::vector<int>(shape.proxies, -1)}, settings));
    const uint64_t bytes = round_up(OrderChecker::region_bytes(world, shape.rings), 4096);
    FileDescriptor fd(::memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const std::vector<std::byte> zeros(bytes);
    REQUIRE(::write(fd.get(), zeros.data(), bytes) == static_cast<ssize_t>(bytes));
    sessions_.back()->register_memfd(fd.get(), bytes);
  }

  void serve(Proxy& proxy, const Shape& own, const SrdShape& shape) {
    Unit* unit = nullptr;
    {
      const std::lock_guard lock(mutex_);
      units_.push_back(std::make_unique<Unit>(proxy, network, own, shape.proxies, shape.limits));
      unit = units_.back().get();
      by_rank_[own.rank][proxy.index()] = unit;
    }
    proxy.started();
    while (!unit->loop.stopping()) {
      {
        const std::lock_guard lock(mutex_);
        if (!stopped_) unit->loop.work(now_ns_ += 1'000'000);
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
  static void wait(Done&& done) {
    const uint64_t begin = platform::clock_ns();
    while (!done()) {
      REQUIRE(platform::clock_ns() - begin < kTestLimitNs);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  std::mutex mutex_;  // the network, units_ and what moves them
  std::unique_lock<std::mutex> lock_;
  bool stopped_ = false;  // nothing moves any more: memory goes
  std::minstd_rand random_;
  uint64_t now_ns_ = 1'000'000'000;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::vector<Unit*>> by_rank_;  // then by proxy
  std::vector<std::shared_ptr<Session>> sessions_;
};

}  // namespace epfabric::test
