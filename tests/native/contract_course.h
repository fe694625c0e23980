// How groups of random shape are moved under the ordering contract's checker until much has been
// posted and all of it has come to an end; for unordered_test.cc and mend_test.cc.
#pragma once

#include <cstdlib>
#include <random>
#include <string>

#include "hand_group.h"
#include "order_checker.h"

namespace epfabric::test {

// Operations that a test wants in all: of the environment, or `usual`.
inline uint64_t wanted_operations(uint64_t usual) {
  const char* given = std::getenv("EPFABRIC_OPERATIONS");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : usual;
}

// Groups in which a case looks at its loss. One thread moves each of them, but for its opening and
// its end: the thread sanitizer needs few.
#if defined(__SANITIZE_THREAD__)
inline constexpr int kGroups = 3;
#else
inline constexpr int kGroups = 20;
#endif

// Whether the reason is this one, or that an ATOMIC asked before was late: its bound is as long.
inline bool names_cause(const std::string& why, const std::string& cause) {
  return why.find(cause) != std::string::npos ||
         why.find("answered no ATOMIC") != std::string::npos;
}

inline HandShape random_shape(std::minstd_rand& random) {
  static const std::vector<std::vector<std::vector<uint32_t>>> kNodes{
      {{0}, {1}}, {{0, 1}, {2}}, {{0}, {1}, {2}}};
  HandShape shape;
  shape.nodes = kNodes[random() % kNodes.size()];
  shape.proxies = 1 + random() % 2;
  shape.rings = 2 + random() % 2;
  shape.signals = kWords;
  shape.region_bytes = OrderChecker::region_bytes(3, shape.rings);
  shape.limits.inflight = random() % 2 == 0 ? 256 : 16;
  agent::Joining& joining = shape.limits.joining;
  joining.commands = random() % 4 == 0 ? 1 : 2 + random() % (agent::Joining::kMost - 1);
  joining.busy = random() % 2 == 0 ? UINT32_MAX : 1 + random() % 8;
  joining.fuse = random() % 2 == 0;
  return shape;
}

// Messages that carry one command or several.
inline uint64_t random_max_bytes(std::minstd_rand& random) {
  return random() % 2 == 0 ? 288 : 8192;
}

// WRITEs that went with the one before.
template <class Group>
uint64_t joined(const Group& group) {
  uint64_t out = 0;
  for (const agent::Session* session : group.sessions()) {
    for (const auto& ring : session->rings()) out += ring->count().joined.get();
  }
  return out;
}

struct Course {
  uint64_t posts;        // operations to post
  uint64_t most_turns;   // to come to an end
  uint64_t step_ns = 0;  // that passes beside each turn
};

// Turns until `done`; what is wrong, or "".
template <class Group, class Done>
std::string turn_until(Group& group, OrderChecker& checker, const Course& course, Done&& done) {
  for (uint64_t turns = 0; !done(); ++turns) {
    if (turns == course.most_turns) return "it does not come to an end";
    group.pass_time(course.step_ns);
    group.turn();
    checker.look();
    if (!checker.fault().empty()) return checker.fault();
    if (!group.failure().empty()) return group.failure();
  }
  return "";
}

// The same, until `posts` operations were posted.
template <class Group, class Network>
std::string post_until(Group& group, const Network& network, OrderChecker& checker,
                       const Course& course, uint64_t posts) {
  return turn_until(group, checker, course, [&] {
    for (int i = 0; i < 4; ++i) checker.push();
    return network.posted() >= posts;
  });
}

// The same, until all that was begun has come to an end.
template <class Group>
std::string end_all(Group& group, OrderChecker& checker, const Course& course) {
  const std::string fault = turn_until(group, checker, course, [&] {
    checker.finish_barriers();
    return checker.all_completed() && checker.barriers_even() && checker.all_signalled();
  });
  checker.look_at_places();
  return fault.empty() ? checker.fault() : fault;
}

template <class Group, class Network>
std::string play(Group& group, const Network& network, OrderChecker& checker,
                 const Course& course) {
  const std::string fault = post_until(group, network, checker, course, course.posts);
  return fault.empty() ? end_all(group, checker, course) : fault;
}

}  // namespace epfabric::test
