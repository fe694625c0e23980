// A session that ends while others still use it: in an epoch that is being put together, in a
// drain, after a registration that did not succeed.
#include "session.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>

#include <thread>

#include "core.h"
#include "loop.h"
#include "loop_commands.h"
#include "loop_turn.h"
#include "within.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

constexpr uint64_t kLimitNs = 60'000'000'000;
constexpr uint64_t kBytes = 65536;

std::shared_ptr<Session> open(Core& core, uint32_t rank, uint32_t world) {
  return core.open_session({1, {rank, world, 2, 16, 4}, {-1, -1}, kBytes});
}

FileDescriptor region_fd() {
  FileDescriptor fd(::memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::vector<std::byte> zeros(kBytes);
  REQUIRE(::write(fd.get(), zeros.data(), kBytes) == ssize_t{kBytes});
  return fd;
}

// A NIC that needs long for a registration.
struct SlowNic : NoRemote {
  std::atomic<bool>& begun;
  const std::atomic<bool>& may_end;

  SlowNic(std::atomic<bool>& begun, const std::atomic<bool>& may_end)
      : begun(begun), may_end(may_end) {}
  RemoteKey add_region(const Region&) {
    begun = true;
    test::within([&] { return may_end.load(); });
    return {};
  }
};

uint64_t heartbeat_of(const Session& session) {
  return platform::load_relaxed(&session.segments().header()->heartbeat);
}

}  // namespace

TEST_CASE("a session that closed before it joined is not touched when its epoch fails") {
  Core core{CoreSettings{}};
  Events events;
  const auto first = open(core, 0, 2);
  const auto second = open(core, 1, 2);
  const auto stats = std::make_shared<BarrierStats>(5);
  const auto epoch =
      std::make_shared<Epoch>(EpochPlan{1, 1, 0, kLimitNs, {{0, 1}}}, std::vector{first, second},
                              std::vector<SessionBlob>(2), stats, events);
  first->join_epoch(epoch);
  second->close(kLimitNs);
  CHECK_THROWS_AS(second->join_epoch(epoch), NativeError);
  epoch->fail({"failed", 1, -1, {}, "the test says so"});
  CHECK(first->segments().header()->abort == 1);
  core.close();
}

TEST_CASE("a session that joins an epoch that has failed already is told at once") {
  Core core{CoreSettings{}};
  Events events;
  const auto session = open(core, 0, 1);
  const auto stats = std::make_shared<BarrierStats>(5);
  const auto epoch =
      std::make_shared<Epoch>(EpochPlan{1, 1, 0, kLimitNs, {{0}}}, std::vector{session},
                              std::vector<SessionBlob>(1), stats, events);
  epoch->fail({"failed", 1, -1, {}, "the test says so"});
  session->join_epoch(epoch);
  CHECK(session->segments().header()->abort == 1);
  core.close();
}

TEST_CASE("drains, descriptions and registrations end with an error when their session closes") {
  Core core{CoreSettings{}};
  for (int i = 0; i < 50; ++i) {
    const auto session = open(core, 0, 1);
    const FileDescriptor fd = region_fd();
    std::atomic<int> begun{0};
    const auto until_closed = [&](auto&& call) {
      begun += 1;
      try {
        for (;;) call();
      } catch (const NativeError&) {
      }
    };
    std::thread drain([&] { until_closed([&] { (void)session->drain(0); }); });
    std::thread describe([&] { until_closed([&] { (void)session->describe(); }); });
    std::thread add([&] {
      try {
        session->register_memfd(fd.get(), kBytes);
      } catch (const NativeError&) {
      }
    });
    while (begun < 2) std::this_thread::yield();
    session->close(kLimitNs);
    for (std::thread* thread : {&drain, &describe, &add}) thread->join();
  }
  core.close();
}

TEST_CASE("a pod does not take its agent for dead while a NIC registers its memory") {
  std::atomic<bool> begun{false}, may_end{false};
  ProxySettings settings;
  settings.serve = [&](Proxy& proxy) {
    SlowNic nic(begun, may_end);
    Loop<SlowNic> loop(proxy, nic);
    proxy.started();
    loop.run();
  };
  Session session({1, {0, 1, 2, 16, 4}, {-1, -1}, kBytes}, settings);
  const FileDescriptor fd = region_fd();
  std::thread registers([&] { session.register_memfd(fd.get(), kBytes); });
  CHECK(test::within([&] { return begun.load(); }));
  const uint64_t before = heartbeat_of(session);
  CHECK(test::within([&] { return heartbeat_of(session) > before + 3; }));
  may_end = true;
  registers.join();
  CHECK(session.extents().size() == 1);
  session.close(kLimitNs);
}

TEST_CASE("a proxy that takes no request has no heartbeat but its own") {
  std::atomic<bool> may_end{false};
  ProxySettings settings;
  settings.serve = [&](Proxy& proxy) {
    proxy.started();
    test::within([&] { return may_end.load(); });
  };
  Session session({1, {0, 1, 1, 16, 4}, {-1}, kBytes}, settings);
  const uint64_t before = heartbeat_of(session);
  Request request;
  CHECK_THROWS_WITH_AS(session.proxies()[0]->run(request, 100'000'000),
                       doctest::Contains("did not answer in time"), NativeError);
  CHECK(heartbeat_of(session) == before);
  may_end = true;
  session.close(kLimitNs);
}

TEST_CASE("a proxy that cannot be pinned does not keep those behind it where they were") {
  Core core{CoreSettings{}};
  const auto session = open(core, 0, 1);
  const int here = ::sched_getcpu();
  CHECK_THROWS_WITH_AS(session->move({CPU_SETSIZE, here}), doctest::Contains("cannot be pinned"),
                       NativeError);
  CHECK(session->proxies()[0]->cpu() == -1);
  CHECK(session->proxies()[1]->cpu() == here);
  core.close();
}

TEST_CASE("a session whose registration did not reach every proxy is not used any more") {
  Core core{CoreSettings{}};
  const auto session = open(core, 0, 1);
  const FileDescriptor fd = region_fd();
  session->stop(kLimitNs);  // so that no proxy takes the region
  CHECK_THROWS_AS(session->register_memfd(fd.get(), kBytes), NativeError);
  CHECK_THROWS_WITH_AS((void)session->describe(), doctest::Contains("open a new session"),
                       NativeError);
  core.close();
}
