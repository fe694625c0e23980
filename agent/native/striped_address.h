// What peers are told of an endpoint that uses several NICs: each one's address, and each one's key
// for every piece of memory. Checked when read: it comes from another machine. Used by
// striped_endpoint.h and standby_endpoint.h.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "error.h"
#include "stripes.h"

namespace epfabric::agent {

// How links use them; both ends have to do the same.
enum class LinesUse : uint32_t {
  kStriped = 0x20535045,  // "EPS "
  kInTurn = 0x20545045,   // "EPT "
};

struct StripedAddress {
  std::vector<std::vector<std::byte>> lines;
  std::vector<uint64_t> keys;  // by piece of memory, then by line
};

namespace detail {

template <class T>
void put(std::vector<std::byte>& out, const T& value) {
  const auto* raw = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), raw, raw + sizeof(T));
}

inline std::span<const std::byte> take(std::span<const std::byte>& from, size_t bytes) {
  if (bytes > from.size()) throw NativeError("a peer's striped address is cut short");
  const auto out = from.first(bytes);
  from = from.subspan(bytes);
  return out;
}
template <class T>
T take(std::span<const std::byte>& from) {
  T out;
  std::memcpy(&out, take(from, sizeof(T)).data(), sizeof(T));
  return out;
}

}  // namespace detail

inline std::vector<std::byte> encode(const StripedAddress& address,
                                     LinesUse use = LinesUse::kStriped) {
  std::vector<std::byte> out;
  detail::put(out, use);
  detail::put(out, static_cast<uint32_t>(address.lines.size()));
  for (const auto& line : address.lines) {
    detail::put(out, static_cast<uint32_t>(line.size()));
    out.insert(out.end(), line.begin(), line.end());
  }
  for (const uint64_t key : address.keys) detail::put(out, key);
  return out;
}

// Throws NativeError for bytes that no such endpoint makes.
inline StripedAddress striped_address(std::span<const std::byte> bytes,
                                      LinesUse use = LinesUse::kStriped) {
  if (bytes.size() < sizeof(use) || detail::take<LinesUse>(bytes) != use) {
    const bool striped = use == LinesUse::kStriped;
    throw NativeError(std::string("a peer's endpoint is ") +
                      (striped ? "not striped, and this agent's is"
                               : "striped or none of verbs, and this agent's is not") +
                      ": give the nodes of a group the same transport and "
                      "highThroughput.nicsPerGPU");
  }
  StripedAddress out;
  const auto lines = detail::take<uint32_t>(bytes);
  if (lines == 0 || lines > kMaxLines)
    throw NativeError("a peer's endpoint has " + std::to_string(lines) + " lines");
  for (uint32_t i = 0; i < lines; ++i) {
    const auto line = detail::take(bytes, detail::take<uint32_t>(bytes));
    out.lines.emplace_back(line.begin(), line.end());
  }
  if (bytes.size() % (lines * sizeof(uint64_t)) != 0)
    throw NativeError("a peer's striped address has no key for some line");
  while (!bytes.empty()) out.keys.push_back(detail::take<uint64_t>(bytes));
  return out;
}

}  // namespace epfabric::agent
