// Opening a port of an RDMA device, registering memory, its asynchronous events.
#include "verbs_device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "nic_room.h"

namespace epfabric::agent {
namespace {

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
constexpr uint32_t kOnDemand = IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;

// An IPv4 address is a GID in its IPv6-mapped form.
Gid gid_of(const std::string& text) {
  Gid out{};
  in_addr four;
  if (::inet_pton(AF_INET6, text.c_str(), out.data()) == 1) return out;
  if (::inet_pton(AF_INET, text.c_str(), &four) != 1)
    throw NativeError("'" + text + "' is no GID: give an IP address of the NIC");
  out[10] = out[11] = 0xff;
  std::memcpy(out.data() + 12, &four, sizeof(four));
  return out;
}

// Opens `name`; `names` becomes what was listed before it.
DeviceContext open(const std::string& name, std::vector<std::string>& names) {
  int count = 0;
  ibv_device** list = ibverbs().get_device_list(&count);
  if (list == nullptr) throw system_error("listing RDMA devices failed");
  DeviceContext out;
  bool there = false;
  for (int i = 0; i < count && !there; ++i) {
    names.push_back(ibverbs().get_device_name(list[i]));
    there = names.back() == name;
    if (there) out.reset(ibverbs().open_device(list[i]));
  }
  const int error = errno;
  ibverbs().free_device_list(list);
  if (there && !out) throw system_error("RDMA device " + name + " cannot be opened", error);
  return out;
}

DeviceContext open(const std::string& name) {
  std::vector<std::string> names;
  DeviceContext out = open(name, names);
  if (out) return out;
  std::string found;
  for (const std::string& known : names) found += (found.empty() ? "" : ", ") + known;
  throw NativeError("there is no RDMA device " + name +
                    " here, only: " + (found.empty() ? "none" : found));
}

ibv_device_attr limits_of(ibv_context* context, const std::string& device) {
  ibv_device_attr out{};
  if (ibverbs().query_device(context, &out) != 0)
    throw system_error("asking " + device + " for its attributes failed");
  return out;
}

MemoryAbility ability_of(ibv_context* context) {
  MemoryAbility out;
  out.dma_buf = ibverbs().register_dmabuf_mr != nullptr;
  const verbs_context* calls = ::verbs_get_ctx(context);
  ibv_device_attr_ex more{};
  if (calls != nullptr && calls->query_device_ex != nullptr &&
      calls->query_device_ex(context, nullptr, &more, sizeof(more)) == 0) {
    const uint32_t rc = more.odp_caps.per_transport_caps.rc_odp_caps;
    out.on_demand =
        (more.odp_caps.general_caps & IBV_ODP_SUPPORT) != 0 && (rc & kOnDemand) == kOnDemand;
    out.atomics_on_demand = out.on_demand && (rc & IBV_ODP_SUPPORT_ATOMIC) != 0;
  }
  return out;
}

}  // namespace

std::vector<std::string> rdma_devices() {
  std::vector<std::string> out;
  (void)open("", out);
  return out;
}

ibv_device_attr limits_of(const std::string& device) {
  return limits_of(open(device).get(), device);
}

VerbsDevice::VerbsDevice(const VerbsPort& port)
    : wanted_(port), context_(open(port.device)), attributes_(limits_of(context(), port.device)) {
  quirk_ = quirk_of(attributes_.vendor_id);
  if (quirk_.unfit != nullptr) throw NativeError(port.device + " is unfit: " + quirk_.unfit);
  if (const std::string why = too_small(attributes_); !why.empty())
    throw NativeError(port.device + " is unfit: " + why);
  const verbs_context* calls = ::verbs_get_ctx(context());
  if (calls == nullptr || calls->query_port == nullptr ||
      calls->query_port(context(), port.port, &port_, sizeof(port_)) != 0) {
    throw NativeError(name() + " does not exist");
  }
  if (port_.state != IBV_PORT_ACTIVE)
    throw NativeError(name() + " is down: bring its link up (ip link, rdma link)");
  gid_ = gid_of(port.gid);
  const auto index = index_of_gid();
  if (!index) throw NativeError(name() + " has no GID " + port.gid + ": was the address removed?");
  gid_index_ = *index;
  sizes_ = choose_sizes(attributes_, port.inflight, port.spare);
  memory_ = ability_of(context());
  domain_.reset(ibverbs().alloc_pd(context()));
  if (!domain_) throw system_error("allocating a protection domain of " + name() + " failed");
  const int flags = ::fcntl(context()->async_fd, F_GETFL);
  if (flags < 0 || ::fcntl(context()->async_fd, F_SETFL, flags | O_NONBLOCK) != 0)
    throw system_error("the events of " + name() + " cannot be read");
}

std::string VerbsDevice::name() const {
  return "port " + std::to_string(wanted_.port) + " of RDMA device " + wanted_.device;
}

bool VerbsDevice::active() const {
  ibv_port_attr now{};
  const verbs_context* calls = ::verbs_get_ctx(context());
  return calls->query_port(context(), wanted_.port, &now, sizeof(now)) == 0 &&
         now.state == IBV_PORT_ACTIVE;
}

// The kernel takes the name away last.
bool VerbsDevice::removed() const {
  const std::string path = "/sys/class/infiniband/" + wanted_.device;
  return ::access(path.c_str(), F_OK) != 0 && errno == ENOENT;
}

std::optional<uint32_t> VerbsDevice::index_of_gid() const {
  std::vector<ibv_gid_entry> table(static_cast<size_t>(std::max(port_.gid_tbl_len, 1)) *
                                   std::max<size_t>(attributes_.phys_port_cnt, 1));
  const ssize_t got =
      ibverbs().query_gid_table(context(), table.data(), table.size(), 0, sizeof(ibv_gid_entry));
  if (got < 0) return std::nullopt;
  const ibv_gid_entry* entry =
      find_gid({table.data(), static_cast<size_t>(got)}, wanted_.port, gid_);
  return entry == nullptr ? std::nullopt : std::optional(entry->gid_index);
}

int VerbsDevice::access(bool paged) const {
  const bool atomics = applies_atomics() && (!paged || memory_.atomics_on_demand);
  return kAccess | (atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0) | (paged ? IBV_ACCESS_ON_DEMAND : 0);
}

MemoryRegion VerbsDevice::register_memory(void* data, uint64_t bytes) {
  if (attributes_.max_mr_size != 0 && bytes > attributes_.max_mr_size) {  // 0: not told
    throw NativeError(name() + " registers at most " + std::to_string(attributes_.max_mr_size) +
                      " bytes at once (max_mr_size), and " + std::to_string(bytes) +
                      " are to be: register smaller regions");
  }
  MemoryRegion out(ibverbs().register_mr(domain(), data, bytes, access()));
  const bool pages = !out && errno == ENOMEM;
  if (pages && choose_memory(false, false, memory_) == MemoryKind::kOnDemand) {
    out.reset(ibverbs().register_mr(domain(), data, bytes, access(true)));
    paged_ = paged_ || out != nullptr;
  }
  if (!out) {
    throw system_error(
        "registering " + std::to_string(bytes) + " bytes with " + name() + " failed" +
        (pages ? " (raise the limit of locked memory, ulimit -l)"
               : " (it has " + std::to_string(attributes_.max_mr) + " registrations, max_mr)"));
  }
  return out;
}

MemoryRegion VerbsDevice::register_dmabuf(int fd, uint64_t offset, uint64_t bytes, uint64_t iova) {
  if (choose_memory(true, true, memory_) != MemoryKind::kDmaBuf)
    throw NativeError("this libibverbs registers no dma-bufs: rdma-core 34 or later does");
  MemoryRegion out(ibverbs().register_dmabuf_mr(domain(), offset, bytes, iova, fd, access()));
  if (!out) throw system_error("registering a dma-buf with " + name() + " failed");
  return out;
}

std::optional<VerbsDevice::Trouble> VerbsDevice::next_trouble() {
  ibv_async_event event;
  while (ibverbs().get_async_event(context(), &event) == 0) {
    auto found = trouble_of(event);
    ibverbs().ack_async_event(&event);
    if (found) return found;
  }
  return std::nullopt;
}

std::optional<std::string> VerbsDevice::next_news() {
  ibv_async_event event;
  while (ibverbs().get_async_event(context(), &event) == 0) {
    auto found = trouble_of(event);
    const auto type = event.event_type;
    const bool mine = event.element.port_num == wanted_.port;
    ibverbs().ack_async_event(&event);
    if (found && !found->spent) return found->text;
    if (type == IBV_EVENT_PORT_ACTIVE && mine) return name() + " came up";
    if (type == IBV_EVENT_GID_CHANGE && mine) return "the GIDs of " + name() + " changed";
  }
  return std::nullopt;
}

std::optional<VerbsDevice::Trouble> VerbsDevice::trouble_of(const ibv_async_event& event) const {
  switch (event.event_type) {
    case IBV_EVENT_PORT_ERR:
      if (event.element.port_num != wanted_.port) return std::nullopt;
      return Trouble{nullptr, name() + " went down", true};
    case IBV_EVENT_GID_CHANGE:
      if (index_of_gid() == gid_index_) return std::nullopt;
      return Trouble{nullptr, name() + " lost its GID " + wanted_.gid};
    case IBV_EVENT_DEVICE_FATAL:
      return Trouble{nullptr, name() + " failed", false, false, true};
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
      return Trouble{nullptr, "a queue of " + name() + " failed", false, false, true};
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return Trouble{event.element.qp, "", true, true};
    case IBV_EVENT_QP_FATAL:
      return Trouble{event.element.qp, "its queue pair on " + name() + " failed", true};
    case IBV_EVENT_QP_REQ_ERR:
      return Trouble{event.element.qp, "its queue pair on " + name() + " failed"};
    case IBV_EVENT_QP_ACCESS_ERR:
      return Trouble{event.element.qp, "it wrote where it may not: " + name() + " refused it"};
    default:
      return std::nullopt;
  }
}

}  // namespace epfabric::agent
