// The CPU's side of the round trips of the bench gpu_fifo, over a page of shared memory (fd=N) and
// what follows it. Answers every number in one word with the same number in another, or, with
// ring=DEPTH, takes commands of a ring and says that they are completed; `count` times, then ends.
#include <epfabric/fifo.h>
#include <sys/mman.h>

#include "bench.h"

using namespace epfabric;

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLine = 8;  // words

struct Shared {
  uint64_t* words;  // ping, pong, tail, completed: a line each
  Slot* slots;
};

// False after 30 s without an answer.
template <typename Ready>
bool spin_until(const Ready& ready) {
  const uint64_t end = bench::now_ns() + 30'000'000'000;
  for (uint64_t looks = 1; !ready(); ++looks) {
    if (looks % 65536 == 0 && bench::now_ns() > end) return false;
    platform::spin_hint();
  }
  return true;
}

bool answer_words(const Shared& shared, uint64_t count) {
  for (uint64_t next = 1; next <= count; ++next) {
    if (!spin_until([&] { return platform::load_acquire(shared.words) == next; })) return false;
    platform::store_release(shared.words + kLine, next);
  }
  return true;
}

bool answer_ring(const Shared& shared, uint64_t count, uint32_t depth) {
  Consumer consumer{shared.slots, 0, depth};
  Slot wanted{};
  pack_signal(0, 0, 1, wanted);
  while (consumer.next < count) {
    Slot slot{};
    if (!spin_until([&] { return consumer.peek(0, slot); })) return false;
    if (slot.lo != wanted.lo || slot.hi != wanted.hi) return false;
    consumer.next += 1;
    platform::store_release(shared.words + 2 * kLine, consumer.next);
    platform::store_release(shared.words + 3 * kLine, consumer.next);
  }
  return true;
}

}  // namespace

int main(int count, char** values) {
  const bench::Options options(count, values);
  const uint64_t trips = options.number("count", 0);
  const auto depth = static_cast<uint32_t>(options.number("ring", 0));
  const int fd = static_cast<int>(options.number("fd", 0));
  const size_t bytes = kPage + depth * sizeof(Slot);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    return 1;
  }
  const Shared shared{static_cast<uint64_t*>(memory),
                      reinterpret_cast<Slot*>(static_cast<std::byte*>(memory) + kPage)};
  return (depth == 0 ? answer_words(shared, trips) : answer_ring(shared, trips, depth)) ? 0 : 1;
}
