// Where threads run: a proxy's own CPU, and the CPU from whose NUMA node new memory comes. Used by
// Proxy and Session.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <future>
#include <string>
#include <system_error>

#include "error.h"

namespace epfabric::agent {

inline constexpr int kAnyCpu = -1;

// kAnyCpu: to any of the agent's cpuset. Throws NativeError.
inline void pin_to(pthread_t thread, int cpu) {
  if (cpu >= CPU_SETSIZE) {
    throw NativeError("a proxy cannot be pinned to CPU " + std::to_string(cpu) +
                      ": there is no such CPU");
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int i = cpu < 0 ? 0 : cpu; i <= (cpu < 0 ? CPU_SETSIZE - 1 : cpu); ++i) {
    CPU_SET(static_cast<size_t>(i), &set);
  }
  if (const int error = ::pthread_setaffinity_np(thread, sizeof(set), &set); error != 0) {
    throw system_error("a proxy cannot be pinned to CPU " + std::to_string(cpu) +
                           " (choose one of the agent's cpuset)",
                       error);
  }
}

// What `make` returns, made by a thread on that CPU: the kernel takes memory from the node of
// whoever touches it first. Asking for a node outright is what containers may not do. Throws
// NativeError.
template <class Make>
auto made_near(int cpu, Make&& make) -> decltype(make()) {
  if (cpu < 0) return make();
  try {
    return std::async(std::launch::async,
                      [&] {
                        pin_to(::pthread_self(), cpu);
                        return make();
                      })
        .get();
  } catch (const std::system_error& error) {
    throw NativeError(std::string("no thread can be started (") + error.what() +
                      "): raise the agent's limit of processes (pids)");
  }
}

}  // namespace epfabric::agent
