// The kernel of tests/gpu/atomics.cu as a CPU's compiler makes it, with the threads of host_grid.h.
#include "host_atomics.h"

#include <functional>
#include <thread>

#define EPF_HOST_PLATFORM "host_grid.h"
#define epfabric epfabric_on_host  // the core has the same names without these threads
#include "../gpu/atomics.cu"

namespace host_kernels {

namespace kernels = epfabric;

uint32_t Changes::block_threads() { return kernels::platform::kBlockThreads; }

std::vector<Change> Changes::run() const {
  std::vector<uint64_t> heads(2 * rings);
  const kernels::DeviceRank device{static_cast<unsigned char*>(pod),
                                   static_cast<const unsigned char*>(agent),
                                   heads.data(),
                                   heads.data() + rings,
                                   timeout_ns,
                                   rings,
                                   depth,
                                   signals,
                                   world,
                                   rank,
                                   0};
  std::vector<::Change> changes(uint64_t{blocks} * block_threads() * rounds);
  uint64_t failed = 0;
  const std::function<void()> kernel = [&] {
    change_words(&device, owner, first_word, rounds, seed, changes.data(), &failed);
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < blocks; ++i) {
    threads.emplace_back([this, &kernel, i] {
      kernels::platform::HostBlock block(i, blocks);
      block.run(kernel);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Change> out;
  for (const ::Change& c : changes) out.push_back({c.word, c.cas, c.expected, c.value, c.old});
  return failed == 0 ? out : std::vector<Change>{};
}

}  // namespace host_kernels
