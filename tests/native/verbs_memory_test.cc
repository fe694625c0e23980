// What a device's memory means for ATOMICs by its NIC: libibverbs' calls are played here.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "verbs_device.h"

using namespace epfabric::agent;

namespace {

constexpr const char* kName = "played0";

// One device, whose memory cannot be pinned from `pins` registrations on.
struct Played {
  verbs_context context{};
  ibv_device device{};
  ibv_device* list[2] = {&device, nullptr};
  ibv_pd domain{};
  ibv_mr region{};
  int events[2] = {-1, -1};
  uint32_t on_demand = 0;  // what it can do to such memory
  int pins = 0;
  int registered = 0;
  int last_access = 0;
};
Played* played = nullptr;

class Device {
 public:
  Device(uint32_t on_demand, int pins) : real_(ibverbs()) {
    played = &state_;
    state_.on_demand = on_demand;
    state_.pins = pins;
    REQUIRE(::pipe(state_.events) == 0);
    state_.context.sz = sizeof(state_.context);
    state_.context.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    state_.context.context.async_fd = state_.events[0];
    state_.context.query_port = query_port;
    state_.context.query_device_ex = query_device_ex;
    Ibverbs& calls = table();
    calls.get_device_list = [](int* count) {
      *count = 1;
      return played->list;
    };
    calls.free_device_list = [](ibv_device**) {};
    calls.get_device_name = [](ibv_device*) { return kName; };
    calls.open_device = [](ibv_device*) { return &played->context.context; };
    calls.close_device = [](ibv_context*) { return 0; };
    calls.query_device = query_device;
    calls.query_gid_table = [](ibv_context*, ibv_gid_entry* out, size_t, uint32_t, size_t) {
      *out = {};
      out->port_num = 1;
      out->gid.raw[15] = 1;
      return ssize_t{1};
    };
    calls.alloc_pd = [](ibv_context*) { return &played->domain; };
    calls.dealloc_pd = [](ibv_pd*) { return 0; };
    calls.register_mr = register_mr;
    calls.deregister_mr = [](ibv_mr*) { return 0; };
  }
  ~Device() {
    table() = real_;
    for (const int fd : state_.events) ::close(fd);
  }
  const Played& state() const { return state_; }

 private:
  static Ibverbs& table() { return const_cast<Ibverbs&>(ibverbs()); }
  static int query_device(ibv_context*, ibv_device_attr* out) {
    *out = {};
    out->atomic_cap = IBV_ATOMIC_HCA;
    out->phys_port_cnt = 1;
    out->max_qp_wr = out->max_srq_wr = out->max_cqe = 1000;
    out->max_sge = 1;
    return 0;
  }
  static int query_port(ibv_context*, uint8_t, ibv_port_attr* out, size_t) {
    *out = {};
    out->state = IBV_PORT_ACTIVE;
    out->gid_tbl_len = 1;
    return 0;
  }
  static int query_device_ex(ibv_context*, const ibv_query_device_ex_input*,
                             ibv_device_attr_ex* out, size_t) {
    out->odp_caps.general_caps = IBV_ODP_SUPPORT;
    out->odp_caps.per_transport_caps.rc_odp_caps = played->on_demand;
    return 0;
  }
  static ibv_mr* register_mr(ibv_pd*, void*, size_t, int access) {
    errno = ENOMEM;
    if ((access & IBV_ACCESS_ON_DEMAND) == 0 && played->registered >= played->pins) return nullptr;
    const bool atomics = (played->on_demand & IBV_ODP_SUPPORT_ATOMIC) != 0;
    errno = EINVAL;  // as a driver may
    if ((access & IBV_ACCESS_ON_DEMAND) != 0 && (access & IBV_ACCESS_REMOTE_ATOMIC) != 0 &&
        !atomics)
      return nullptr;
    played->registered += 1;
    played->last_access = access;
    return &played->region;
  }

  const Ibverbs real_;
  Played state_;
};

constexpr uint32_t kWrites = IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;

}  // namespace

TEST_CASE("a NIC that applies no atomics to paged memory is not chosen once some is paged") {
  Device device(kWrites, 1);
  VerbsDevice port({.device = kName, .gid = "::1"});
  char page[8];
  const MemoryRegion pinned = port.register_memory(page, sizeof(page));
  CHECK(port.ability() == AtomicsAbility::kAble);
  CHECK((device.state().last_access & IBV_ACCESS_REMOTE_ATOMIC) != 0);
  const MemoryRegion paged = port.register_memory(page, sizeof(page));
  CHECK((device.state().last_access & IBV_ACCESS_ON_DEMAND) != 0);
  CHECK(port.ability() == AtomicsAbility::kPaged);
}

TEST_CASE("a NIC that applies atomics to paged memory is as good as one with pinned memory") {
  Device device(kWrites | IBV_ODP_SUPPORT_ATOMIC, 0);
  VerbsDevice port({.device = kName, .gid = "::1"});
  char page[8];
  const MemoryRegion paged = port.register_memory(page, sizeof(page));
  CHECK((device.state().last_access & IBV_ACCESS_ON_DEMAND) != 0);
  CHECK((device.state().last_access & IBV_ACCESS_REMOTE_ATOMIC) != 0);
  CHECK(port.ability() == AtomicsAbility::kAble);
}
