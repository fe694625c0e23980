// How this agent applies an ATOMIC to a word of a rank of its node. Whichever of its threads does
// it, each is one locked instruction of one CPU on the one mapping of the owner's region, so that
// all of them are one party; docs/ordering.md argues it. Used by the loopback transport (writers of
// this node) and by the loop (records of other agents).
#pragma once

#include <cstddef>
#include <cstdint>

namespace epfabric::agent {

// Adds `operand`, or stores `swap` where the word holds `operand`; the word's value before. `word`
// is aligned. Release: the ring's earlier writes, which this thread made or saw arrive, are visible
// to who acquires the new value.
inline uint64_t apply(std::byte* word, bool cas, uint64_t operand, uint64_t swap) {
  auto* at = reinterpret_cast<uint64_t*>(word);
  if (!cas) return __atomic_fetch_add(at, operand, __ATOMIC_ACQ_REL);
  uint64_t old = operand;
  __atomic_compare_exchange_n(at, &old, swap, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return old;
}

}  // namespace epfabric::agent
