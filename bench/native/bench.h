// What the native bench programs share: their options (name=value), clocks, and the lines of
// samples that they print for epfabric_bench/series.py.
#pragma once

#include <epfabric/platform.h>
#include <sched.h>
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace epfabric::bench {

inline constexpr const char* kOurs = "epfabric";  // the side that is not a peer

class Options {
 public:
  Options(int count, char** values) : values_(values + 1, values + count) {}

  uint64_t number(const std::string& name, uint64_t otherwise) const {
    for (const std::string& value : values_) {
      if (value.rfind(name + "=", 0) == 0) return std::stoull(value.substr(name.size() + 1));
    }
    return otherwise;
  }

 private:
  std::vector<std::string> values_;
};

struct Metric {
  const char* name;
  const char* unit;
  bool more_is_better;
};

// One round of one side: `side` is kOurs or the peer's name. `verified`: the data that moved in it
// was looked at and is right.
inline void print_samples(const std::string& measured_case, const Metric& metric,
                          const std::string& side, uint64_t round, bool verified,
                          std::span<const double> samples) {
  std::printf(
      "{\"case\":\"%s\",\"metric\":\"%s\",\"unit\":\"%s\",\"better\":\"%s\",\"side\":\"%s\","
      "\"round\":%llu,\"verified\":%s,\"samples\":[",
      measured_case.c_str(), metric.name, metric.unit, metric.more_is_better ? "more" : "less",
      side.c_str(), static_cast<unsigned long long>(round), verified ? "true" : "false");
  for (size_t i = 0; i < samples.size(); ++i) std::printf("%s%.9g", i == 0 ? "" : ",", samples[i]);
  std::printf("]}\n");
  std::fflush(stdout);
}

inline uint64_t now_ns() { return platform::clock_ns(); }

// What the calling thread has used of its core.
inline uint64_t thread_cpu_ns() {
  timespec now;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// The cores that this process may use, as it began: threads inherit a pinned thread's one.
inline const cpu_set_t& allowed_cores() {
  static const cpu_set_t allowed = [] {
    cpu_set_t out;
    CPU_ZERO(&out);
    ::sched_getaffinity(0, sizeof(out), &out);
    return out;
  }();
  return allowed;
}

// The `number`th of those cores, or -1.
inline int core(int number) {
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &allowed_cores()) && number-- == 0) return cpu;
  }
  return -1;
}

// Pins the calling thread to core(number), if there is one. First called before any other thread is
// started.
inline void pin(int number) {
  const int cpu = core(number);
  if (cpu < 0) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(cpu), &one);
  ::sched_setaffinity(0, sizeof(one), &one);
}

// Between looks at something that another thread changes soon: spins, and gives the core away now
// and then, since the machine may have no other for that thread.
inline void spin(uint32_t& looks) {
  if (++looks % 4096 == 0) {
    ::sched_yield();
  } else {
    platform::spin_hint();
  }
}

}  // namespace epfabric::bench
