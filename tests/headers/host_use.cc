// The host's use of the shared headers; the asserts hold at compile time. test_compilers.py puts
// each header first in turn (-include), so that each has to stand on its own.
#include "epfabric/fifo.h"
#include "epfabric/layout.h"

namespace epfabric {

constexpr Slot packed(const Write& write) {
  Slot slot{};
  return pack_write(write, slot) ? slot : Slot{0, 0};
}

constexpr bool crosses_no_half() {
  const Slot full = packed({4095, 0xffffffffu, 0xffffffffu, 1u << 20, 2047, 32767});
  return (full.lo & kLapBit) == 0 && (full.hi & kLapBit) == 0 && !flag_of(full.lo);
}

static_assert(crosses_no_half());
static_assert(packed({4096, 0, 0, 1, 0, 0}).lo == 0, "a rank of 13 bits was packed");
static_assert(packed({0, 0, 0, (1u << 20) + 1, 0, 0}).lo == 0, "more than 16 MiB was packed");
static_assert(lap_of(0, 16) == kLapBit && lap_of(16, 16) == 0 && lap_of(32, 16) == kLapBit);
static_assert(layout_of(1, 16, 1, 1).signals + 8 <= layout_of(1, 16, 1, 1).agent_bytes);

}  // namespace epfabric

int main() { return 0; }
