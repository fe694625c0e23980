// What soft RoCE devices say that they take, and what sessions and groups really make of it,
// counted at libibverbs' calls: what nic_room.h says beforehand.
#include <cstdio>
#include <mutex>

#include "cores.h"
#include "ends.h"

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
    size_t devices = 0;
    for (const auto& core : group.cores) {
      for (const auto& [device, said] : core->nic_uses()) {
        CAPTURE(device);
        devices += 1;
        for (const NicLimit& limit : kNicLimits) {
          CAPTURE(limit.name);
          CHECK(said.*limit.taken == Counted::live[device].*limit.taken);
        }
      }
    }
    CHECK(devices == 2 * at.rails);
    group.close();
    for (const auto& core : group.cores) {
      for (const auto& [device, said] : core->nic_uses()) {
        CHECK(said.queue_pairs == 0);
        CHECK(Counted::live[device].queue_pairs == 0);
      }
    }
  }
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
