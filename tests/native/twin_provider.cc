// A libfabric provider within one process, named "twin", for tests that need the thread sanitizer
// to see both ends of a write, and one that stands for EFA's; every other provider stays
// libfabric's own. It gives no more than what is asked for: a write's bytes are read and stored
// when its target polls, a completion without FI_DELIVERY_COMPLETE says nothing of the target, and
// only a message's own way orders two threads. It splits at 4 KiB, takes one piece a write or two
// (by chance, for each fabric), refuses posts at random and holds messages back at random. As "efa"
// it is as efa_devices.h says, keeps no order, chooses keys itself, takes virtual addresses, and
// completes what arrived.
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "efa_devices.h"
#include "seed.h"

namespace {

constexpr const char* kName = "twin";
constexpr size_t kNameBytes = 8;
constexpr size_t kMaxMessage = 4096;
constexpr size_t kMostUnderWay = 24;  // of one wire; more is refused with EAGAIN

// Unbounded, one producer, one consumer; orders the two only from push to pop.
template <class T>
class Lane {
 public:
  Lane() : last_(new Node), first_(last_) {}
  Lane(const Lane&) = delete;
  ~Lane() {
    T ignored;
    while (pop(ignored)) {
    }
    delete first_;
  }
  void push(T value) {
    Node* node = new Node{std::move(value)};
    last_->next.store(node, std::memory_order_release);  // partner: pop()
    last_ = node;
  }
  bool pop(T& out) {
    Node* next = first_->next.load(std::memory_order_acquire);
    if (next == nullptr) return false;
    out = std::move(next->value);
    delete first_;
    first_ = next;
    return true;
  }

 private:
  struct Node {
    T value{};
    std::atomic<Node*> next{nullptr};
  };
  Node* last_;   // producer
  Node* first_;  // consumer; its value was taken
};

struct Piece {
  const std::byte* source = nullptr;
  std::vector<std::byte> copy;  // in place of `source`: the caller may reuse that at once
  uint64_t bytes = 0;
  uint64_t offset = 0;
  uint64_t key = 0;
};

struct Message {
  std::vector<Piece> pieces;
  uint64_t imm = 0;
  bool has_imm = false;
  bool acknowledge = false;
  void* context = nullptr;
};

// By any thread; every port and fabric has its own from the process's seed.
uint_fast32_t draw() {
  static std::mutex mutex;
  static std::mt19937 random(static_cast<uint_fast32_t>(epfabric::test::seed()));
  const std::scoped_lock lock(mutex);
  return random();
}

// From one port to another.
struct Wire {
  Lane<Message> messages;
  Lane<void*> acknowledged;
  size_t under_way = 0;  // of the sender
  size_t holds = 0;      // of the target: polls to let pass, so that other wires overtake
  std::mutex sending;    // held by the target while it reads the sender's memory
  bool gone = false;     // under it: the sender's memory is
};

struct Inbound {
  std::shared_ptr<Wire> wire;
  Inbound* next = nullptr;
};

// A domain with its endpoint, queue, table and memory. One thread uses it, but for `inbound`.
struct Port {
  fid_domain domain{};
  fid_av table{};
  fid_cq queue{};
  fid_ep endpoint{};
  uint64_t name = 0;
  bool efa = false;
  bool writes = true;                                          // EFA: the device has RDMA write
  std::map<uint64_t, std::pair<std::byte*, uint64_t>> memory;  // by key: start, bytes
  std::vector<std::shared_ptr<Wire>> wires;                    // by fi_addr_t
  std::deque<fi_cq_data_entry> completions;
  std::atomic<Inbound*> inbound{nullptr};
  std::minstd_rand random{draw()};

  ~Port() {
    for (Inbound* at = inbound.load(); at != nullptr;) delete std::exchange(at, at->next);
  }
};

std::mutex registry_mutex;
std::map<uint64_t, std::shared_ptr<Port>> registry;  // by name

template <class Fid>
Port& port_of(Fid* of) {
  return *static_cast<Port*>(of->fid.context);
}

void deliver(Port& port, Wire& wire, const Message& message) {
  for (const Piece& piece : message.pieces) {
    const auto found = port.memory.find(piece.key);
    uint64_t offset = piece.offset;
    if (port.efa && found != port.memory.end())
      offset -= reinterpret_cast<uint64_t>(found->second.first);
    if (found == port.memory.end() || offset + piece.bytes > found->second.second) {
      std::fprintf(stderr, "twin: a write outside of registered memory\n");
      std::abort();
    }
    std::byte* to = found->second.first + offset;
    std::memcpy(to, piece.copy.empty() ? piece.source : piece.copy.data(), piece.bytes);
  }
  if (message.has_imm) {
    fi_cq_data_entry entry{};
    entry.flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;
    entry.data = message.imm;
    port.completions.push_back(entry);
  }
  if (message.acknowledge) wire.acknowledged.push(message.context);
}

void complete(Port& port, void* context) {
  fi_cq_data_entry entry{};
  entry.op_context = context;
  entry.flags = FI_RMA | FI_WRITE;
  port.completions.push_back(entry);
}

void progress(Port& port) {
  for (Inbound* at = port.inbound.load(std::memory_order_acquire); at; at = at->next) {
    Wire& wire = *at->wire;
    if (wire.holds == 0 && port.random() % 64 == 0) wire.holds = 1 + port.random() % 64;
    if (wire.holds > 0 && --wire.holds > 0) continue;
    const std::lock_guard lock(wire.sending);
    Message message;
    std::vector<Message> arrived;
    for (auto most = port.random() % 12; most > 0 && !wire.gone && wire.messages.pop(message);
         --most)
      arrived.push_back(std::move(message));
    if (port.efa) std::shuffle(arrived.begin(), arrived.end(), port.random);
    for (const Message& one : arrived) deliver(port, wire, one);
  }
  for (const auto& wire : port.wires) {
    void* context = nullptr;
    for (auto most = port.random() % 12; most > 0 && wire->acknowledged.pop(context); --most) {
      wire->under_way -= 1;
      complete(port, context);
    }
  }
}

ssize_t write_message(fid_ep* endpoint, const fi_msg_rma* message, uint64_t flags) {
  Port& port = port_of(endpoint);
  Wire& wire = *port.wires[message->addr];
  if (wire.under_way >= kMostUnderWay || port.random() % 16 == 0) return -FI_EAGAIN;
  Message out;
  out.imm = message->data;
  out.has_imm = (flags & FI_REMOTE_CQ_DATA) != 0;
  out.acknowledge = port.efa || (flags & FI_DELIVERY_COMPLETE) != 0;
  out.context = message->context;
  const bool copies = !out.acknowledge || (flags & FI_INJECT) != 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < message->iov_count; ++i) {
    const auto* source = static_cast<const std::byte*>(message->msg_iov[i].iov_base);
    const fi_rma_iov& to = message->rma_iov[i];
    out.pieces.push_back({source, {}, to.len, to.addr, to.key});
    if (copies) out.pieces.back().copy.assign(source, source + to.len);
    bytes += to.len;
  }
  if (bytes > kMaxMessage) return -FI_EMSGSIZE;
  if (out.acknowledge) wire.under_way += 1;
  if (!out.acknowledge && (flags & FI_COMPLETION) != 0) complete(port, out.context);
  wire.messages.push(std::move(out));
  return 0;
}

ssize_t read_queue(fid_cq* queue, void* out, size_t count) {
  Port& port = port_of(queue);
  progress(port);
  count = std::min<size_t>(count, 1 + port.random() % 4);  // the others wait
  size_t got = 0;
  for (; got < count && !port.completions.empty(); ++got) {
    static_cast<fi_cq_data_entry*>(out)[got] = port.completions.front();
    port.completions.pop_front();
  }
  return got == 0 ? -FI_EAGAIN : static_cast<ssize_t>(got);
}

int insert_address(fid_av* table, const void* address, size_t, fi_addr_t* out, uint64_t, void*) {
  Port& port = port_of(table);
  uint64_t name = 0;
  std::memcpy(&name, address, sizeof(name));
  const std::lock_guard lock(registry_mutex);
  const auto found = registry.find(name);
  if (found == registry.end()) return 0;
  *out = port.wires.size();
  port.wires.push_back(std::make_shared<Wire>());
  auto* inbound = new Inbound{port.wires.back(), found->second->inbound.load()};
  // Partner: progress() of the other port.
  while (!found->second->inbound.compare_exchange_weak(inbound->next, inbound)) {
  }
  return 1;
}

fi_ops ops_with(int (*close)(fid*)) {
  fi_ops ops{};
  ops.size = sizeof(ops);
  ops.close = close;
  ops.bind = [](fid*, fid*, uint64_t) { return 0; };
  ops.control = [](fid*, int, void*) { return 0; };
  return ops;
}
fi_ops plain = ops_with([](fid*) { return 0; });

// A table of calls with one of them set.
template <class Table, class Call>
Table calls_with(Call Table::* member, Call call) {
  Table table{};
  table.size = sizeof(table);
  table.*member = call;
  return table;
}

int close_memory(fid* memory) {
  auto* region = reinterpret_cast<fid_mr*>(memory);
  auto* port = static_cast<Port*>(memory->context);
  port->memory.erase(region->key);
  // Regions go when their port ends: what it still has under way is lost.
  for (const auto& wire : port->wires) {
    const std::lock_guard lock(wire->sending);
    wire->gone = true;
  }
  delete region;
  return 0;
}

int register_memory(fid* domain, const void* data, size_t bytes, uint64_t, uint64_t, uint64_t key,
                    uint64_t, fid_mr** out, void*) {
  static fi_ops closing = ops_with(close_memory);
  Port* port = static_cast<Port*>(domain->context);
  if (port->efa) key = port->memory.size() + 1 + (port->name << 16);
  port->memory[key] = {const_cast<std::byte*>(static_cast<const std::byte*>(data)), bytes};
  *out = new fid_mr{{FI_CLASS_MR, port, &closing}, nullptr, key};
  return 0;
}

int close_port(fid* domain) {
  const std::lock_guard lock(registry_mutex);
  registry.erase(static_cast<Port*>(domain->context)->name);
  return 0;
}

int open_table(fid_domain* domain, fi_av_attr*, fid_av** out, void*) {
  static auto calls = calls_with(&fi_ops_av::insert, insert_address);
  Port& port = port_of(domain);
  port.table = {{FI_CLASS_AV, &port, &plain}, &calls};
  *out = &port.table;
  return 0;
}

int open_queue(fid_domain* domain, fi_cq_attr* attributes, fid_cq** out, void*) {
  static auto calls = calls_with(&fi_ops_cq::read, read_queue);
  if (attributes->wait_obj != FI_WAIT_NONE) return -FI_ENOSYS;
  Port& port = port_of(domain);
  port.queue = {{FI_CLASS_CQ, &port, &plain}, &calls};
  *out = &port.queue;
  return 0;
}

int name_of(fid* endpoint, void* address, size_t* bytes) {
  const Port& port = *static_cast<Port*>(endpoint->context);
  *bytes = port.efa ? efa::kNameBytes : kNameBytes;
  std::memset(address, 0, *bytes);
  std::memcpy(address, &port.name, kNameBytes);
  return 0;
}

int option_of(fid* endpoint, int, int option, void* value, size_t*) {
  const Port& port = *static_cast<Port*>(endpoint->context);
  if (!port.efa || option != efa::kEmulatedWrite) return -FI_ENOPROTOOPT;
  *static_cast<bool*>(value) = !port.writes;
  return 0;
}

int open_endpoint(fid_domain* domain, fi_info*, fid_ep** out, void*) {
  static auto options = calls_with(&fi_ops_ep::getopt, option_of);
  static auto naming = calls_with(&fi_ops_cm::getname, name_of);
  static auto calls = calls_with(&fi_ops_rma::writemsg, write_message);
  Port& port = port_of(domain);
  port.endpoint.fid = {FI_CLASS_EP, &port, &plain};
  port.endpoint.ops = &options;
  port.endpoint.cm = &naming;
  port.endpoint.rma = &calls;
  *out = &port.endpoint;
  return 0;
}

int open_port(fid_fabric*, fi_info* info, fid_domain** out, void*) {
  static fi_ops ops = ops_with(close_port);
  static fi_ops_domain calls{sizeof(calls), open_table, open_queue, open_endpoint,
                             nullptr,       nullptr,    nullptr,    nullptr,
                             nullptr,       nullptr,    nullptr,    nullptr};
  static auto memory = calls_with(&fi_ops_mr::reg, register_memory);
  static uint64_t names = 0;
  if (info->nic != nullptr && std::strcmp(info->nic->device_attr->name, efa::kBroken) == 0)
    return -FI_ENOMEM;
  const std::lock_guard lock(registry_mutex);
  const auto port = std::make_shared<Port>();
  port->name = ++names;
  port->efa = efa::is_named(info->fabric_attr->prov_name);
  port->writes = !port->efa || efa::has_writes(*info);
  port->domain = {{FI_CLASS_DOMAIN, port.get(), &ops}, &calls, &memory};
  registry.emplace(port->name, port);
  *out = &port->domain;
  return 0;
}

template <class Call>
Call* own(const char* name) {
  return reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, name));
}

bool is_twin(const char* provider) {
  return provider != nullptr && std::strcmp(provider, kName) == 0;
}

}  // namespace

// In place of libfabric's, which serve every other provider.
extern "C" int fi_getinfo(uint32_t version, const char* node, const char* service, uint64_t flags,
                          const fi_info* hints, fi_info** out) {
  if (hints != nullptr && efa::is_named(hints->fabric_attr->prov_name))
    return efa::infos(hints, out);
  if (hints == nullptr || !is_twin(hints->fabric_attr->prov_name))
    return own<decltype(fi_getinfo)>("fi_getinfo")(version, node, service, flags, hints, out);
  *out = ::fi_dupinfo(hints);
  (*out)->ep_attr->max_msg_size = (*out)->ep_attr->max_order_waw_size = kMaxMessage;
  (*out)->tx_attr->iov_limit = (*out)->tx_attr->rma_iov_limit = 1 + draw() % 2;
  (*out)->domain_attr->mr_mode = 0;  // offsets, and keys of the caller's choice
  (*out)->domain_attr->mr_key_size = sizeof(uint64_t);
  (*out)->domain_attr->cq_data_size = sizeof(uint64_t);
  return 0;
}

extern "C" int fi_fabric(fi_fabric_attr* attributes, fid_fabric** out, void* context) {
  if (!is_twin(attributes->prov_name) && !efa::is_named(attributes->prov_name))
    return own<decltype(fi_fabric)>("fi_fabric")(attributes, out, context);
  static auto calls = calls_with(&fi_ops_fabric::domain, open_port);
  static fid_fabric only{{FI_CLASS_FABRIC, nullptr, &plain}, &calls, 0};
  *out = &only;
  return 0;
}
