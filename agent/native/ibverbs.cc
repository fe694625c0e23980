// Loads libibverbs and finds its functions by name.
#include "ibverbs.h"

#include <dlfcn.h>

namespace epfabric::agent {
namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

template <class T>
void find(void* library, T& to, const char* name) {
  to = reinterpret_cast<T>(::dlsym(library, name));
  if (to == nullptr) {
    throw NativeError(std::string(kLibrary) + " has no " + name +
                      ": rdma-core must be of version 44 or later");
  }
}

Ibverbs load() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw NativeError(std::string("verbs cannot be used: ") + ::dlerror() +
                      " (install libibverbs1 and ibverbs-providers)");
  }
  Ibverbs out{};
  find(library, out.get_device_list, "ibv_get_device_list");
  find(library, out.free_device_list, "ibv_free_device_list");
  find(library, out.get_device_name, "ibv_get_device_name");
  find(library, out.open_device, "ibv_open_device");
  find(library, out.close_device, "ibv_close_device");
  find(library, out.query_device, "ibv_query_device");
  find(library, out.query_gid_table, "_ibv_query_gid_table");
  find(library, out.alloc_pd, "ibv_alloc_pd");
  find(library, out.dealloc_pd, "ibv_dealloc_pd");
  find(library, out.register_mr, "ibv_reg_mr");
  find(library, out.deregister_mr, "ibv_dereg_mr");
  find(library, out.create_channel, "ibv_create_comp_channel");
  find(library, out.destroy_channel, "ibv_destroy_comp_channel");
  find(library, out.create_cq, "ibv_create_cq");
  find(library, out.destroy_cq, "ibv_destroy_cq");
  find(library, out.get_cq_event, "ibv_get_cq_event");
  find(library, out.ack_cq_events, "ibv_ack_cq_events");
  find(library, out.create_srq, "ibv_create_srq");
  find(library, out.destroy_srq, "ibv_destroy_srq");
  find(library, out.create_qp, "ibv_create_qp");
  find(library, out.modify_qp, "ibv_modify_qp");
  find(library, out.destroy_qp, "ibv_destroy_qp");
  find(library, out.create_ah, "ibv_create_ah");
  find(library, out.destroy_ah, "ibv_destroy_ah");
  find(library, out.get_async_event, "ibv_get_async_event");
  find(library, out.ack_async_event, "ibv_ack_async_event");
  find(library, out.status_text, "ibv_wc_status_str");
  out.register_dmabuf_mr =
      reinterpret_cast<decltype(out.register_dmabuf_mr)>(::dlsym(library, "ibv_reg_dmabuf_mr"));
  return out;
}

}  // namespace

const Ibverbs& ibverbs() {
  static Ibverbs library = load();  // tests put calls of their own in
  return library;
}

}  // namespace epfabric::agent
