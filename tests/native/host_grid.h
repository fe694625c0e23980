// The threads of a kernel on a CPU: what platform_gpu.cuh and platform_block.cuh have for a GPU,
// for host_kernels.cc. A block is a thread; its threads are fibers, which change where they wait
// for each other or for others.
#pragma once

#include <ucontext.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#define EPF_KERNEL [[maybe_unused]] static
#define EPF_SHARED static thread_local
#define EPF_LAUNCH_BOUNDS(threads)

namespace epfabric::platform {

inline constexpr uint32_t kWarpSize = 8;
inline constexpr uint32_t kBlockThreads = 256;

// Where `size` fibers wait for each other.
struct Meeting {
  uint32_t size;
  uint32_t arrived = 0;
  uint64_t turn = 0;
};

class HostBlock {
 public:
  HostBlock(uint32_t block, uint32_t blocks) : block_(block), blocks_(blocks) {
    for (Fiber& fiber : fibers_) fiber.stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  }
  HostBlock(const HostBlock&) = delete;
#if defined(__SANITIZE_THREAD__)
  ~HostBlock() {
    for (const Fiber& fiber : fibers_) {
      if (fiber.sanitizer != nullptr) __tsan_destroy_fiber(fiber.sanitizer);
    }
  }
#endif

  static HostBlock& here() { return *current(); }
  uint32_t block() const { return block_; }
  uint32_t blocks() const { return blocks_; }
  uint32_t thread() const { return running_; }

  // By a thread of its own: all threads of the block, until they end.
  void run(const std::function<void()>& kernel) {
    current() = this;
    kernel_ = &kernel;
    left_ = kBlockThreads;
    for (uint32_t i = 0; i < kBlockThreads; ++i) begin(fibers_[i]);
    while (left_ > 0) {
      idle_ = true;
      for (running_ = 0; running_ < kBlockThreads; ++running_) {
        Fiber& fiber = fibers_[running_];
        const bool waits = fiber.at != nullptr && fiber.at->turn == fiber.turn;
        if (!fiber.ended && !waits) enter(fiber);
      }
      if (idle_) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    current() = nullptr;
  }
  void meet(Meeting& meeting) {
    idle_ = false;
    if (++meeting.arrived == meeting.size) {
      meeting.arrived = 0;
      ++meeting.turn;
      return;
    }
    Fiber& fiber = fibers_[running_];
    fiber.at = &meeting;
    fiber.turn = meeting.turn;
    leave(fiber, false);
    fiber.at = nullptr;
  }
  void give_way() { leave(fibers_[running_], false); }
  void meet_all() { meet(all_); }

  // What each lane of the caller's warp says.
  std::array<uint64_t, kWarpSize> from_lanes(uint64_t value) {
    Warp& warp = warps_[running_ / kWarpSize];
    warp.said[running_ % kWarpSize] = value;
    meet(warp.meeting);
    const std::array<uint64_t, kWarpSize> out = warp.said;
    meet(warp.meeting);
    return out;
  }

 private:
  static constexpr size_t kStackBytes = 128 << 10;

  struct Fiber {
    std::unique_ptr<char[]> stack;
    ucontext_t context{};
    bool ended = false;
    const Meeting* at = nullptr;
    uint64_t turn = 0;
    void* sanitizer = nullptr;
  };
  struct Warp {
    std::array<uint64_t, kWarpSize> said{};
    Meeting meeting{kWarpSize};
  };

  static HostBlock*& current() {
    static thread_local HostBlock* block = nullptr;
    return block;
  }
  static void start() {
    HostBlock& block = here();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &block.main_stack_, &block.main_bytes_);
#endif
    (*block.kernel_)();
    Fiber& fiber = block.fibers_[block.running_];
    fiber.ended = true;
    --block.left_;
    block.idle_ = false;
    block.leave(fiber, true);
  }
  void begin(Fiber& fiber) {
    fiber.ended = false;
    fiber.at = nullptr;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &HostBlock::start, 0);
#if defined(__SANITIZE_THREAD__)
    if (fiber.sanitizer == nullptr) fiber.sanitizer = __tsan_create_fiber(0);
#endif
  }
  void enter(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&main_sanitizer_, fiber.stack.get(), kStackBytes);
#elif defined(__SANITIZE_THREAD__)
    main_sanitizer_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber.sanitizer, 0);
#endif
    swapcontext(&main_, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(main_sanitizer_, nullptr, nullptr);
#endif
  }
  void leave(Fiber& fiber, [[maybe_unused]] bool ends) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(ends ? nullptr : &fiber.sanitizer, main_stack_, main_bytes_);
#elif defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(main_sanitizer_, 0);
#endif
    swapcontext(&fiber.context, &main_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber.sanitizer, &main_stack_, &main_bytes_);
#endif
  }

  uint32_t block_, blocks_;
  uint32_t running_ = 0, left_ = 0;
  bool idle_ = false;  // no thread got further in this round
  const std::function<void()>* kernel_ = nullptr;
  ucontext_t main_{};
  void* main_sanitizer_ = nullptr;
  const void* main_stack_ = nullptr;
  size_t main_bytes_ = 0;
  Fiber fibers_[kBlockThreads];
  Warp warps_[kBlockThreads / kWarpSize];
  Meeting all_{kBlockThreads};
};

inline void give_way(uint32_t) { HostBlock::here().give_way(); }

inline uint32_t thread() { return HostBlock::here().thread(); }
inline uint32_t threads() { return kBlockThreads; }
inline uint32_t block() { return HostBlock::here().block(); }
inline uint32_t blocks() { return HostBlock::here().blocks(); }
inline uint32_t lane() { return thread() % kWarpSize; }
inline void block_barrier() { HostBlock::here().meet_all(); }
inline void warp_barrier() { HostBlock::here().from_lanes(0); }

inline uint64_t ballot(bool says) {
  const auto said = HostBlock::here().from_lanes(says);
  uint64_t bits = 0;
  for (uint32_t i = 0; i < kWarpSize; ++i) bits |= said[i] << i;
  return bits;
}
inline uint64_t broadcast(uint64_t value, uint32_t from) {
  return HostBlock::here().from_lanes(value)[from];
}
inline float max_of_eight(float value) {
  static_assert(kWarpSize == 8);
  float most = value;
  for (const uint64_t bits : HostBlock::here().from_lanes(__builtin_bit_cast(uint32_t, value))) {
    const auto other = __builtin_bit_cast(float, static_cast<uint32_t>(bits));
    most = other > most ? other : most;
  }
  return most;
}

// Ordered by themselves: the thread sanitizer knows no fences.
inline uint64_t fetch_add_device(uint64_t* word, uint64_t value) {
  return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
}
inline uint64_t load_device(const uint64_t* word) {
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
inline void store_device(uint64_t* word, uint64_t value) {
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
inline uint64_t exchange_device(uint64_t* word, uint64_t expected, uint64_t value) {
  __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
inline void fence_device() {}

inline void add_block(uint32_t* word, uint32_t value) { *word += value; }  // a block is a thread

inline uint32_t count_bits(uint64_t bits) {
  return static_cast<uint32_t>(__builtin_popcountll(bits));
}
inline uint32_t lowest_bit(uint64_t bits) { return static_cast<uint32_t>(__builtin_ctzll(bits)); }

}  // namespace epfabric::platform
