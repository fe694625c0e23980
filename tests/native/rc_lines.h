// Links over several networks whose connections break, striped over all of them or using one at a
// time; for striped_mend_test.cc, standby_mend_test.cc and device_test.cc.
#pragma once

#include <map>
#include <optional>

#include "contract_course.h"
#include "lines.h"
#include "rc_network.h"
#include "seed.h"
#include "standby_endpoint.h"
#include "striped_endpoint.h"

namespace epfabric::test {

struct RcLines : Lines<RcNetwork> {
  std::optional<bool> guess;  // broken: whether what failed is taken to be there
};
class StripedRc : public agent::StripedEndpoint<RcEndpoint> {
 public:
  explicit StripedRc(std::reference_wrapper<RcLines> lines)
      : StripedEndpoint(lines.get()), guess_(lines.get().guess) {}
  bool arrived(PeerIndex peer, void* context) {
    return guess_ ? *guess_ : StripedEndpoint::arrived(peer, context);
  }

 private:
  const std::optional<bool> guess_;
};
static_assert(agent::Mending<StripedRc> && agent::Unordered<StripedRc>);
using StripedGroup = HandGroup<RcLines, StripedRc>;

struct Nics : Lines<RcNetwork> {
  uint32_t patience = 4;
  bool belated = false;  // broken: what the connection before told is taken for the present one's
};
class StandbyRc : public agent::StandbyEndpoint<RcEndpoint> {
 public:
  explicit StandbyRc(std::reference_wrapper<Nics> nics)
      : StandbyEndpoint(nics.get()), belated_(nics.get().belated) {}
  void remake(PeerIndex index, const agent::Told& told) {
    if (belated_) before_[index] = StandbyEndpoint::told(index);
    StandbyEndpoint::remake(index, told);
  }
  const agent::Told& told(PeerIndex index) const {
    return belated_ ? before_.at(index) : StandbyEndpoint::told(index);
  }

 private:
  const bool belated_;
  std::map<PeerIndex, agent::Told> before_;
};
static_assert(agent::Movable<StandbyRc> && agent::HardwareAtomics<StandbyRc> &&
              !agent::Unordered<StandbyRc>);
using StandbyGroup = HandGroup<Nics, StandbyRc>;

// Time passes, or it would be thousands of turns until two ends look for each other.
inline constexpr Course kCourse{15'000, 4'000'000, 20'000};

inline RcRules random_rules(std::minstd_rand& random) {
  RcRules rules;
  rules.break_one_in = random() % 4 == 0 ? 0 : 100 + random() % 3000;
  rules.refuse_one_in = random() % 3 == 0 ? 0 : 2 + random() % 30;
  rules.miss_one_in = random() % 2 == 0 ? 0 : 2 + random() % 4;
  rules.queue = 8u << (random() % 5);
  rules.polled = 1u << (random() % 6);
  return rules;
}
inline void add_calm(Lines<RcNetwork>& lines, uint32_t count) {
  RcRules rules;
  rules.refuse_one_in = rules.miss_one_in = rules.give_up_one_in = 0;
  for (uint32_t i = 0; i < count; ++i) lines.add(seed() + i, rules);
}
// It goes for good: who has something under way there sees it fail some time.
inline void go_dead(RcNetwork& network) {
  network.rules.dead = true;
  network.rules.give_up_one_in = 200;
}

// Turns until `ready`, beside what is pushed.
template <class Group, class Ready>
std::string push_until(Group& group, OrderChecker& checker, Ready&& ready,
                       const Course& course = kCourse) {
  return turn_until(group, checker, course, [&] {
    for (int i = 0; i < 4; ++i) checker.push();
    return ready();
  });
}
template <class Group>
std::string push_more(Group& group, OrderChecker& checker, const RcNetwork& nic) {
  const uint64_t before = nic.posted();
  return push_until(group, checker, [&] { return nic.posted() > before + 500; });
}

}  // namespace epfabric::test
