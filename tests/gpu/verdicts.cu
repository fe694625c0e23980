// Blocks that ask for ranks which come just when they are given up; compiled by test_verdicts.py.
#include "epfabric/calls.cuh"

using namespace epfabric;

// Each block sees rank r come `delays[block][r]` ns after it began; said[block][r] is what it was
// told. `there` is what every block sees once the call is over.
EPF_KERNEL void EPF_LAUNCH_BOUNDS(1024)
    ask(const DeviceBuffer buffer, uint64_t call, const uint64_t* delays, uint32_t* said) {
  EPF_SHARED Here here;
  if (!look(buffer, Kind::kDispatch, here)) return;
  const uint32_t world = buffer.shape.world;
  for (uint32_t from = platform::thread(); from < world; from += platform::threads()) {
    const uint32_t at = platform::block() * world + from;
    const uint64_t begin = platform::clock_ns();
    said[at] = detail::await(buffer, here, from, Awaited::kTokens, call,
                             [&] { return platform::clock_ns() - begin > delays[at]; });
    said[at] |= here.masked[from] != 0 ? 2 : 0;
  }
}
