// When a line's breaks are forgiven.
#include "breaks.h"

#include <doctest/doctest.h>

using namespace epfabric::agent;

namespace {

void carry(Breaks& breaks, uint32_t writes, uint64_t bytes) {
  for (uint32_t i = 0; i < writes; ++i) breaks.carried(bytes);
}

}  // namespace

TEST_CASE("what is shorter than what broke a line forgives nothing") {
  Breaks breaks;
  breaks.broke(4096);
  carry(breaks, 10 * Breaks::kForgiven, 4095);
  breaks.broke(64);
  carry(breaks, Breaks::kForgiven, 64);
  CHECK(breaks.count() == 2);
  carry(breaks, Breaks::kForgiven, 4096);
  CHECK(breaks.count() == 0);
}

TEST_CASE("a line that breaks before it carried enough is not forgiven") {
  Breaks breaks;
  for (uint32_t i = 1; i < 10; ++i) {
    breaks.broke(64);
    carry(breaks, Breaks::kForgiven - 1, 64);
    CHECK(breaks.count() == i);
  }
}
