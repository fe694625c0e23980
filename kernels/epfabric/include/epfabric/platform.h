// What differs between g++, nvcc, NVRTC and clang-hip, in one place; included by every other header
// here. With the other platform headers the only one with PTX or vendor builtins. Scopes: every
// access below is system scope, since the partner may be a GPU, a CPU thread of another process, or
// a NIC.
#pragma once

#if defined(__CUDACC_RTC__)
namespace epfabric {
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using int32_t = int;
using int64_t = long long;
}  // namespace epfabric
#else
#include <cstdint>
namespace epfabric {
using std::int32_t;
using std::int64_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;
}  // namespace epfabric
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define EPF_HOST_DEVICE __host__ __device__
#define EPF_DEVICE __device__
#elif defined(__HIP__)
#define EPF_HOST_DEVICE __attribute__((host)) __attribute__((device))
#define EPF_DEVICE __attribute__((device))
#else
#define EPF_HOST_DEVICE
#define EPF_DEVICE
#endif

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)
#define EPF_CUDA_CODE 1
#elif defined(__HIP_DEVICE_COMPILE__)
#define EPF_HIP_CODE 1
#else
#define EPF_HOST_CODE 1
#include <sched.h>
#include <time.h>
#endif

namespace epfabric::platform {

// The thread sanitizer knows no fences. Under it the accesses carry the order that the fences give
// otherwise, so that it still sees every other race.
#if defined(EPF_HOST_CODE) && defined(__SANITIZE_THREAD__)
inline constexpr int kHostLoad = __ATOMIC_ACQUIRE, kHostStore = __ATOMIC_RELEASE;
#elif defined(EPF_HOST_CODE)
inline constexpr int kHostLoad = __ATOMIC_RELAXED, kHostStore = __ATOMIC_RELAXED;
#endif

// Relaxed load of a word that another party stores.
EPF_HOST_DEVICE inline uint64_t load_relaxed(const uint64_t* word) {
#if defined(EPF_CUDA_CODE)
  uint64_t value;
  asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
#elif defined(EPF_HIP_CODE)
  return __hip_atomic_load(word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  return __atomic_load_n(word, kHostLoad);
#endif
}

// Acquire load; its partner is a release store, or a release fence before a relaxed store.
EPF_HOST_DEVICE inline uint64_t load_acquire(const uint64_t* word) {
#if defined(EPF_CUDA_CODE)
  uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
#elif defined(EPF_HIP_CODE)
  return __hip_atomic_load(word, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
}

// Release store; its partner is load_acquire().
EPF_HOST_DEVICE inline void store_release(uint64_t* word, uint64_t value) {
#if defined(EPF_CUDA_CODE)
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#elif defined(EPF_HIP_CODE)
  __hip_atomic_store(word, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}

// Relaxed store; its partner is a relaxed load, or nothing is read that was stored before it.
EPF_HOST_DEVICE inline void store_relaxed(uint64_t* word, uint64_t value) {
#if defined(EPF_CUDA_CODE)
  asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#elif defined(EPF_HIP_CODE)
  __hip_atomic_store(word, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  __atomic_store_n(word, value, kHostStore);
#endif
}

// Relaxed store of the two halves of a slot: one 16-byte store on a GPU, two 8-byte stores on a
// CPU. Either is right, since each half carries the lap bit.
EPF_HOST_DEVICE inline void store_relaxed_pair(uint64_t* pair, uint64_t first, uint64_t second) {
#if defined(EPF_CUDA_CODE)
  asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(pair), "l"(first), "l"(second)
               : "memory");
#elif defined(EPF_HIP_CODE)
  __hip_atomic_store(pair, first, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  __hip_atomic_store(pair + 1, second, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  __atomic_store_n(pair, first, kHostStore);
  __atomic_store_n(pair + 1, second, kHostStore);
#endif
}

// Of 16 bytes of GPU memory that are not needed again soon: caches rather keep others. Compilers
// leave them where they stand, as other accesses to memory that another thread may change.
template <typename Vector>
EPF_HOST_DEVICE inline Vector load_once(const Vector* from) {
#if defined(EPF_CUDA_CODE)
  Vector out;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.words[0]), "=r"(out.words[1]), "=r"(out.words[2]), "=r"(out.words[3])
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return out;
#else
  return *from;
#endif
}
template <typename Vector>
EPF_HOST_DEVICE inline void store_once(Vector* to, const Vector& vector) {
#if defined(EPF_CUDA_CODE)
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(vector.words[0]), "r"(vector.words[1]), "r"(vector.words[2]),
               "r"(vector.words[3])
               : "memory");
#else
  *to = vector;
#endif
}

// Orders the caller's earlier stores (the payload) before its later relaxed stores (the slots).
EPF_HOST_DEVICE inline void fence_release() {
#if defined(EPF_CUDA_CODE)
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#elif defined(EPF_HIP_CODE)
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
#elif !defined(__SANITIZE_THREAD__)
  __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}

// Orders the caller's earlier relaxed loads (the slot's halves) before its later loads (the
// payload).
EPF_HOST_DEVICE inline void fence_acquire() {
#if defined(EPF_CUDA_CODE)
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#elif defined(EPF_HIP_CODE)
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");
#elif !defined(__SANITIZE_THREAD__)
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
#endif
}

// A clock that needs no help from the host, in nanoseconds; the bound of every wait.
EPF_HOST_DEVICE inline uint64_t clock_ns() {
#if defined(EPF_CUDA_CODE)
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#elif defined(EPF_HIP_CODE)
  return __builtin_amdgcn_s_memrealtime() * 10;  // the constant clock of gfx9 runs at 100 MHz
#else
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
#endif
}

#if defined(EPF_HOST_CODE) && defined(EPF_HOST_PLATFORM)
// Of a program that runs the threads of a kernel itself: lets others of them go on.
void give_way(uint32_t look);
#endif

#if defined(EPF_HOST_CODE)
// Tells the core that this thread spins.
inline void spin_hint() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
#endif

// What a waiting thread does between looks: a GPU thread naps; a CPU thread spins shortly, then
// gives its core away, then sleeps, because the party that it waits for may need that core.
EPF_HOST_DEVICE inline void pause(uint32_t look) {
#if defined(EPF_CUDA_CODE)
  (void)look;
  asm volatile("nanosleep.u32 20;");
#elif defined(EPF_HIP_CODE)
  (void)look;
  __builtin_amdgcn_s_sleep(1);
#elif defined(EPF_HOST_PLATFORM)
  give_way(look);
#else
  if (look < 32) return;
  if (look < 256) {
    sched_yield();
    return;
  }
  const timespec nap{0, 20000};
  nanosleep(&nap, nullptr);
#endif
}

}  // namespace epfabric::platform
