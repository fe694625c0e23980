// What soft RoCE devices say that they take, and what sessions and groups really make of it,
// counted at libibverbs' calls: what nic_room.h says beforehand.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>

#include "cores.h"
#include "ends.h"
#include "within.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

// Counts by device what there is, while it lives; makes a limit lower.
struct Counted {
  static inline Ibverbs real{};
  static inline std::mutex mutex;
  static inline NicUses live;
  static inline int ibv_device_attr::* lowered = nullptr;
  static inline int limit = 0;

  template <class T>
  static T* made(T* object, uint64_t NicUse::* what, uint64_t by = 1) {
    const std::lock_guard lock(mutex);
    if (object != nullptr) live[object->context->device->name].*what += by;
    return object;
  }
  template <class T>
  static T* gone(T* object, uint64_t NicUse::* what) {
    return made(object, what, ~uint64_t{0});
  }

  Counted() {
    real = ibverbs();
    live.clear();
    lowered = nullptr;
    Ibverbs& now = table();
    now.query_device = [](ibv_context* context, ibv_device_attr* out) {
      const int error = real.query_device(context, out);
      if (lowered != nullptr) out->*lowered = limit;
      return error;
    };
    now.create_qp = [](ibv_pd* domain, ibv_qp_init_attr* wanted) {
      return made(real.create_qp(domain, wanted), &NicUse::queue_pairs);
    };
    now.destroy_qp = [](ibv_qp* it) { return real.destroy_qp(gone(it, &NicUse::queue_pairs)); };
    now.create_cq = [](ibv_context* context, int size, void* own, ibv_comp_channel* to, int at) {
      return made(real.create_cq(context, size, own, to, at), &NicUse::completion_queues);
    };
    now.destroy_cq = [](ibv_cq* it) {
      return real.destroy_cq(gone(it, &NicUse::completion_queues));
    };
    now.create_srq = [](ibv_pd* domain, ibv_srq_init_attr* wanted) {
      return made(real.create_srq(domain, wanted), &NicUse::receive_queues);
    };
    now.destroy_srq = [](ibv_srq* it) {
      return real.destroy_srq(gone(it, &NicUse::receive_queues));
    };
    now.alloc_pd = [](ibv_context* context) {
      return made(real.alloc_pd(context), &NicUse::domains);
    };
    now.dealloc_pd = [](ibv_pd* it) { return real.dealloc_pd(gone(it, &NicUse::domains)); };
    now.register_mr = [](ibv_pd* domain, void* data, size_t bytes, int access) {
      return made(real.register_mr(domain, data, bytes, access), &NicUse::registrations);
    };
    now.deregister_mr = [](ibv_mr* it) {
      return real.deregister_mr(gone(it, &NicUse::registrations));
    };
    now.create_ah = [](ibv_pd* domain, ibv_ah_attr* way) {
      return made(real.create_ah(domain, way), &NicUse::handles);
    };
    now.destroy_ah = [](ibv_ah* it) { return real.destroy_ah(gone(it, &NicUse::handles)); };
  }
  ~Counted() { table() = real; }
  Counted(const Counted&) = delete;

 private:
  static Ibverbs& table() { return const_cast<Ibverbs&>(ibverbs()); }
};

GroupShape shape_of(uint32_t rails, uint32_t stripes) {
  GroupShape out{{{0, 1}, {2, 3}}, {2, 2}};
  out.settings.stripes = stripes;
  out.bytes = 1 << 16;
  out.ports.resize(2);
  for (uint32_t rail = 0; rail < rails; ++rail) {
    out.ports[0].push_back(port_at('a', static_cast<int>(rail)));
    out.ports[1].push_back(port_at('b', static_cast<int>(rail)));
  }
  return out;
}

std::string atomics_of(const GroupShape& shape) {
  CoreGroup group(shape);
  const std::string out = group.cores[0]->atomics(1);
  group.close();
  return out;
}

std::string refusal_of(const GroupShape& shape) {
  try {
    CoreGroup(shape).close();
  } catch (const NativeError& refused) {
    return refused.what();
  }
  return "";
}

// What the cores say is taken is what there is; of how many devices they say it.
size_t check_said(const std::vector<const Core*>& cores) {
  size_t devices = 0;
  for (const Core* core : cores) {
    for (const auto& [device, said] : core->nic_uses()) {
      CAPTURE(device);
      devices += 1;
      for (const NicLimit& limit : kNicLimits) {
        CAPTURE(limit.name);
        const auto live = [&, &device = device] {
          const std::lock_guard lock(Counted::mutex);
          return Counted::live[device].*limit.taken;
        };
        // Handles for a NIC that stands by are made by a thread.
        const uint64_t taken = said.*limit.taken;
        test::within([&] { return live() == taken; });
        CHECK(live() == taken);
      }
    }
  }
  return devices;
}
size_t check_said(const CoreGroup& group) {
  return check_said({group.cores[0].get(), group.cores[1].get()});
}

uint64_t pairs_of(const CoreGroup& group) {
  uint64_t out = 0;
  for (const auto& core : group.cores) {
    for (const auto& [device, said] : core->nic_uses()) out += said.queue_pairs;
  }
  return out;
}

}  // namespace

TEST_CASE("a device is asked for its limits, and soft RoCE's are large enough") {
  for (const std::string& device : rdma_devices()) {
    const ibv_device_attr limits = limits_of(device);
    std::printf("limits_test: %s:", device.c_str());
    for (const NicLimit& limit : kNicLimits) {
      std::printf(" %s %d", limit.name, limits.*limit.has);
      CHECK(limits.*limit.has > 0);
    }
    for (const QueueLimit& limit : kQueueLimits) {
      std::printf(" %s %d", limit.name, limits.*limit.has);
      CHECK(limits.*limit.has > 0);
    }
    std::printf(" max_mr_size %llu\n", static_cast<unsigned long long>(limits.max_mr_size));
    CHECK(too_small(limits) == "");
    const std::vector<std::string> devices{device};
    CHECK(shortage(1024, 8, 4, 2, {devices, 1}, {{device, limits}}) == "");
    CHECK(shortage(4096, 8, 4, 2, {devices, 1}, {{device, limits}}).find("(max_ah)") !=
          std::string::npos);
  }
  CHECK(rdma_devices().size() == 4);
  CHECK_THROWS_WITH(limits_of("rx9"), doctest::Contains("there is no RDMA device rx9 here"));
}

TEST_CASE("what is said to be taken of each NIC is what there is, also by stripes and neighbours") {
  struct Case {
    uint32_t rails, stripes;
    const char* atomics;
  };
  for (const Case& at : {Case{2, 1, "auto"}, Case{2, 2, "auto"}, Case{1, 1, "hardware"}}) {
    CAPTURE(at.rails);
    CAPTURE(at.stripes);
    const Counted counted;
    GroupShape shape = shape_of(at.rails, at.stripes);
    shape.settings.atomics = at.atomics;
    CoreGroup group(shape);
    CHECK(check_said(group) == 2 * at.rails);
    group.close();
    check_said(group);
    CHECK(pairs_of(group) == 0);
  }
}

TEST_CASE("two ports of one NIC that applies atomics have no queues that stand by for nothing") {
  std::vector<uint64_t> pairs;
  for (const char* atomics : {"hardware", "auto"}) {
    GroupShape shape = shape_of(1, 1);
    shape.settings.atomics = atomics;
    for (auto& ports : shape.ports) ports.push_back(ports.front());
    CoreGroup group(shape);
    CHECK(group.cores[0]->atomics(1).find("hardware: ") == 0);
    pairs.push_back(pairs_of(group));
    group.close();
  }
  CHECK(pairs[0] > 0);
  CHECK(pairs[0] == pairs[1]);
}

TEST_CASE(
    "what is gone with masked ranks and a failed epoch is not counted while sessions are open") {
  const Counted counted;
  CoreGroup group(shape_of(2, 2));
  const uint64_t whole = pairs_of(group);
  for (const auto& core : group.cores) core->mask_ranks(1, {0, 3});
  for (const uint32_t rank : {0u, 3u}) group.pods[rank].session->close(kTestLimitNs);
  REQUIRE_FALSE(group.pods[0].session->closed());  // the barrier needs one of its proxies
  REQUIRE(group.pods[3].session->closed());
  check_said(group);
  CHECK(pairs_of(group) < whole);
  for (const auto& core : group.cores) core->fail_epoch(1, "the test ends it");
  REQUIRE_FALSE(group.pods[1].session->closed());
  check_said(group);
  CHECK(pairs_of(group) == 0);
  group.close();
}

// Two groups of a rank on each of two nodes; links are wanted by both at once.
TEST_CASE("of two groups that open at once one fits, and the refused one opens when it has gone") {
  const Counted counted;
  CoreSettings settings;
  settings.atomics = "emulated";
  settings.connect_timeout_ns = kTestLimitNs;
  const auto core_at = [&](char end) {
    settings.ports = {port_at(end, 0)};
    return std::make_unique<Core>(settings);
  };
  Counted::lowered = &ibv_device_attr::max_qp;
  Counted::limit = 2 * 2 + 2;  // greetings of both groups, links of one
  const auto a = core_at('a');
  Counted::lowered = nullptr;
  const auto b = core_at('b');
  const auto session_of = [](Core& core, uint64_t group, uint32_t rank) {
    return core.open_session({group, {rank, 2, 4, 16, 4}, {-1, -1}});
  };
  struct Ends {
    std::shared_ptr<Session> a, b;
    std::string refusal;
  };
  std::array<Ends, 2> groups;
  const auto open = [](Core& core, uint64_t group, const auto& own, const auto& peer) {
    const uint32_t there = peer->shape().rank;
    core.open_epoch({group, 1, 0, kTestLimitNs, {{0}, {1}}}, {own},
                    {{there, there, encode(peer->describe())}});
  };
  std::atomic<int> ready{0};
  const auto open_both = [&](uint64_t group, Ends& ends) {
    std::atomic<bool> over{false};
    std::thread peer([&] {
      try {
        open(*b, group, ends.b, ends.a);
      } catch (const NativeError&) {
      }
      over = true;
    });
    ready += 1;
    CHECK(test::within([&] { return ready >= 2; }));
    try {
      open(*a, group, ends.a, ends.b);
    } catch (const NativeError& refused) {
      ends.refusal = refused.what();
      CHECK(test::within([&] {
        b->fail_epoch(group, "the other end is refused");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return over.load();
      }));
    }
    peer.join();
  };
  for (uint32_t i = 0; i < 2; ++i)
    groups[i] = {session_of(*a, i + 1, 0), session_of(*b, i + 1, 1), ""};
  std::thread first([&] { open_both(1, groups[0]); });
  open_both(2, groups[1]);
  first.join();
  const size_t out = groups[0].refusal.empty() ? 1 : 0;
  CAPTURE(groups[0].refusal);
  CAPTURE(groups[1].refusal);
  REQUIRE(groups[1 - out].refusal.empty());
  CHECK(groups[out].refusal.find("RDMA device ra0 has 6 queue pairs (max_qp), of which this agent "
                                 "uses 6, and the links of the group's 1 rank(s) on this node need "
                                 "2 more: use fewer proxies (spec.proxies.perGPU)") == 0);
  check_said({a.get(), b.get()});  // what the refused group's other end had begun is gone
  a->fail_epoch(2 - out, "the test ends it");
  b->fail_epoch(2 - out, "the test ends it");
  groups[out].b = session_of(*b, out + 1, 1);
  groups[out].refusal.clear();
  open_both(out + 1, groups[out]);
  CHECK(groups[out].refusal == "");
  CHECK(a->failure(out + 1) == "");
  a->close();
  b->close();
  CHECK(a->nic_uses().at("ra0").queue_pairs == 0);
}

TEST_CASE("a group that takes one more than a NIC has is refused before anything of it is made") {
  const Counted counted;
  GroupShape shape = shape_of(1, 1);
  uint64_t pairs = 0;
  {
    CoreGroup group(shape);
    pairs = group.cores[0]->nic_uses().at("ra0").queue_pairs;
    group.close();
  }
  Counted::lowered = &ibv_device_attr::max_qp;
  Counted::limit = static_cast<int>(pairs);
  CHECK(atomics_of(shape).find("hardware: ") == 0);
  Counted::limit -= 1;
  CHECK(atomics_of(shape).find("would need 16 connections") != std::string::npos);
  CHECK(atomics_of(shape).find("there is room for 15") != std::string::npos);
  Counted::limit = 11;
  const std::string why = refusal_of(shape);
  CAPTURE(why);
  CHECK(why.find(" has 11 queue pairs (max_qp), of which this agent uses 4, and the links of the "
                 "group's 2 rank(s) on this node need 8 more: use fewer proxies "
                 "(spec.proxies.perGPU)") != std::string::npos);
  Counted::lowered = &ibv_device_attr::max_cq;
  Counted::limit = 3;  // of four proxies
  CHECK(refusal_of(shape).find("3 completion queues (max_cq), of which this agent uses 2, and the "
                               "endpoints of rank 1 need 2 more") != std::string::npos);
  for (const auto& [device, left] : Counted::live) {
    CAPTURE(device);
    CHECK(left.queue_pairs + left.completion_queues + left.handles == 0);
  }
}
