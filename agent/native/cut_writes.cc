// The error reader that ofi_rxm calls, of the provider under it, is preceded by ours.
#include "cut_writes.h"

#include <cstring>
#include <memory>
#include <mutex>

#include "fabric.h"

namespace epfabric::agent {
namespace {

constexpr const char* kLayer = ";ofi_rxm";

decltype(fi_ops_cq::readerr) reader = nullptr;  // the provider's; set before ours is called
std::once_flag replaced;

// The layer takes what is below 0 for an error of the whole queue: each of its own users' queues
// has an entry without context, with that error.
ssize_t read_error(fid_cq* queue, fi_cq_err_entry* entry, uint64_t flags) {
  const ssize_t got = reader(queue, entry, flags);
  const bool of_peer = got > 0 && entry->op_context == nullptr &&
                       (entry->flags & (FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA)) != 0;
  return of_peer ? -kCutOff : got;
}

void check(int error, const std::string& what) {
  if (error != 0) throw NativeError(what + ": " + ::fi_strerror(-error));
}

// All queues of a provider share one table of calls, which is reached by a queue of our own.
void replace(const std::string& provider, const std::string& address) {
  const std::string what = "libfabric's provider '" + provider + "' cannot be used on " + address;
  fi_info* raw = ::fi_allocinfo();
  if (raw == nullptr) throw NativeError(what + ": no memory");
  const std::unique_ptr<fi_info, decltype(&::fi_freeinfo)> hints(raw, ::fi_freeinfo);
  hints->ep_attr->type = FI_EP_MSG;
  hints->fabric_attr->prov_name = ::strdup(provider.c_str());
  check(::fi_getinfo(kApi, address.c_str(), nullptr, FI_SOURCE, hints.get(), &raw), what);
  const std::unique_ptr<fi_info, decltype(&::fi_freeinfo)> info(raw, ::fi_freeinfo);
  fid_fabric* fabric = nullptr;
  check(::fi_fabric(info->fabric_attr, &fabric, nullptr), what);
  const Fid<fid_fabric> fabric_closed(fabric);
  fid_domain* domain = nullptr;
  check(::fi_domain(fabric, info.get(), &domain, nullptr), what);
  const Fid<fid_domain> domain_closed(domain);
  fi_cq_attr attributes{};
  attributes.format = FI_CQ_FORMAT_DATA;
  attributes.wait_obj = FI_WAIT_NONE;
  fid_cq* queue = nullptr;
  check(::fi_cq_open(domain, &attributes, &queue, nullptr), what);
  const Fid<fid_cq> queue_closed(queue);
  reader = queue->ops->readerr;
  queue->ops->readerr = read_error;
}

}  // namespace

void survive_cut_writes(const std::string& provider, const std::string& address) {
  const size_t layer = provider.find(kLayer);
  if (layer == std::string::npos) return;
  std::call_once(replaced, [&] { replace(provider.substr(0, layer), address); });
}

}  // namespace epfabric::agent
