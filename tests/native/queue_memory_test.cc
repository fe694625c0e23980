// Memory of verbs queues, against sums by hand of what mlx5's driver would allocate.
#include "queue_memory.h"

#include <doctest/doctest.h>

#include <limits>

using namespace epfabric;
using namespace epfabric::agent;

TEST_CASE(
    "queues are counted whole: entries in blocks, their number rounded up to a power of two") {
  CHECK(send_queue_bytes(1, 192, 128) == 512 + 8 * 16);          // 192 + 144, in blocks 384
  CHECK(send_queue_bytes(576, 192, 128) == 262144 + 4096 * 16);  // 576 * 384 is 221,184
  CHECK(send_queue_bytes(576, 192, 0) == 262144 + 4096 * 16);    // 576 * 256 is 147,456
  CHECK(send_queue_bytes(512, 192, 0) == 131072 + 2048 * 16);    // exactly
  const QueueSizes sizes{576, 2048, 16384 + 2048 + 256};
  const QueueMemory at = queue_memory(sizes, 128);
  CHECK(at.link == 327680);
  CHECK(at.endpoint == 32768 * 64 + 4096 * 40 + 16384 + 4096 + 128 * 24);
}

TEST_CASE("a device with short queues takes less memory, and none takes more than is useful") {
  ibv_device_attr ample{};
  ample.max_qp_wr = ample.max_cqe = ample.max_srq_wr = std::numeric_limits<int>::max();
  ibv_device_attr few = ample;
  few.max_qp_wr = 128;
  const QueueMemory most = queue_memory(choose_sizes(ample, 256), 128);
  CHECK(queue_memory(choose_sizes(few, 256), 128).link < most.link);
  CHECK(queue_memory(choose_sizes(few, 256), 128).endpoint == most.endpoint);
  CHECK(queue_memory(choose_sizes(ample, 512), 128).link == 2 * most.link);
}
