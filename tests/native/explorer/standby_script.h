// Two lines of a network within one process, of which a link uses one, and over them the real
// standby endpoint and the real proxies. For standby_explorer_test.cc.
#pragma once

#include "mend_script.h"
#include "standby_endpoint.h"

namespace epfabric::test {

// Ends look for each other, and leave their line, as they are told, and not when time has passed.
template <class E>
class StandbyEnd : public agent::StandbyEndpoint<E> {
 public:
  using Whole = agent::StandbyEndpoint<E>;
  explicit StandbyEnd(std::reference_wrapper<MendScript> script)
      : Whole(script.get()), script_(script) {
    script_.hurries.push_back([this] { Whole::meet(); });
  }
  agent::AtomicsAbility ability() const = delete;  // its lines apply none
  void meet() {
    if (!script_.by_hand()) Whole::meet();
  }
  size_t poll(Completion* out, size_t capacity) {
    Whole::attend();
    return Whole::poll(out, capacity);
  }

 protected:
  const MendScript& script() const { return script_; }

 private:
  MendScript& script_;
};
static_assert(agent::Movable<StandbyEnd<MendEnd>> && !agent::Unordered<StandbyEnd<MendEnd>>);

}  // namespace epfabric::test
