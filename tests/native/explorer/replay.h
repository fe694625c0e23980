// Two ends of real proxies over a network that does only what it is told: does a trace's actions
// one by one, plays the pods, and checks what they may rely on. For the explorers' tests. Network
// has act(action), by_hand(bool), rebase(), state_of(end) and what hand_group.h asks for; whole(),
// if it has that, says that the ends have what they need to go on.
#pragma once

#include <epfabric/command.h>
#include <epfabric/fifo.h>

#include <cstring>
#include <string>

#include "../hand_group.h"
#include "action.h"
#include "course.h"

namespace epfabric::test {

template <class Network, class E>
class Replay {
 public:
  struct Unit {
    uint64_t number, place;
    bool operator==(const Unit&) const = default;
  };
  static_assert(sizeof(Unit) == kUnitBytes);

  // Counters of what travels begin at `first`.
  Replay(const Courses& courses, uint64_t first)
      : courses_(courses), group_(shape(first), 1, network) {
    for (uint32_t e = 0; e < 2; ++e) {
      const agent::Segments& segments = session(e).segments();
      pods_[e].producer = {const_cast<Slot*>(segments.slots(0)), &segments.counters(0)->tail, 0, 0,
                           kDepth};
      pods_[e].completed = &segments.counters(0)->completed;
      pods_[e].signal = segments.signal(1 - e, 0, 0);
    }
    begin();
  }

  // From here on the courses are pushed once more; both ends know all that was before.
  void begin() {
    settle();
    network.rebase();
    walk_ += 1;
    for (uint32_t e = 0; e < 2; ++e) {
      Pod& pod = pods_[e];
      pod.first_completed = *pod.completed;
      pod.first_signal = *pod.signal;
      pod.first_word = *word(e);
      pod.pushed = pod.seen_completed = 0;
      pod.seen_signals = 0;
      pod.places = {};
      for (size_t i = 0; i < kMostCommands; ++i) *destination(e, i) = empty();
    }
  }

  // Does what can be done of it; what is wrong from then on, or "".
  const std::string& step(const Action& action) {
    if (ended_) return fault_;
    Pod& pod = pods_[action.end];
    if constexpr (requires { network.choose(action); }) network.choose(action);
    if (action.verb == Verb::kPush) {
      const bool posted = session(action.end).rings()[0]->taken() == pod.producer.head;
      if (posted && pod.pushed < courses_[action.end].size()) push(action.end);
      group_.turn_of(action.end);
    } else if (action.verb == Verb::kTurn) {
      group_.turn_of(action.end);
    } else if (network.act(action)) {
      if (action.verb == Verb::kAnnounce) group_.turn_of(1u - action.end);
      if (action.verb == Verb::kComplete) group_.turn_of(action.end);
    }
    look();
    return fault_;
  }

  // Whether all was pushed, has completed, and is known to be there, and more could be; or the
  // group ended.
  bool done() const {
    if (ended_) return true;
    if constexpr (requires { network.whole(); }) {
      if (!network.whole()) return false;
    }
    for (size_t e = 0; e < 2; ++e) {
      if (pods_[e].pushed != courses_[e].size() || pods_[e].seen_completed != courses_[e].size() ||
          pods_[1 - e].seen_signals != signals_before(e, courses_[e].size()) ||
          pods_[1 - e].places.applied != atomics_before(e, courses_[e].size()) ||
          !pods_[1 - e].places.all_taken(courses_[e]))
        return false;
    }
    return true;
  }

  bool worn() const {
    if (ended_) return true;
    if constexpr (requires { network.worn(); }) return network.worn();
    return false;
  }

  // What pods see, and what the network says of its ends.
  std::string shown() const {
    if (ended_) return "it ended";
    std::string out;
    for (size_t e = 0; e < 2; ++e) {
      const Pod& pod = pods_[e];
      out +=
          visible_of(pod.seen_signals, pod.seen_completed, pod.places) + network.state_of(e) + "; ";
    }
    return out;
  }

  Network network;

 private:
  static constexpr uint32_t kDepth = 64;
  static constexpr size_t kWordAt = 5 * kMostCommands;
  struct Pod {
    Producer producer;
    const uint64_t* completed;
    const uint64_t* signal;  // of the other one's ring
    uint64_t first_completed, first_signal, first_word;
    size_t pushed, seen_completed, seen_signals;
    Places places;
  };

  static HandShape shape(uint64_t first) {
    HandShape out;
    out.rings = out.signals = 1;
    out.region_bytes = 4096;
    out.limits.first_sequence = first;
    out.limits.tries = UINT32_MAX;
    if constexpr (agent::HardwareAtomics<E>)
      out.atomics = {agent::AtomicsWish::kHardware, agent::AtomicsAbility::kAble};
    return out;
  }
  agent::Session& session(size_t e) { return *group_.sessions()[e]; }
  Unit* unit(size_t e, size_t at) {
    return reinterpret_cast<Unit*>(session(e).regions()[0].memory.data()) + at;
  }
  // Of the other end's command i, in the memory of end e; and where its own comes from. They are no
  // neighbours, so that nothing is joined.
  Unit* destination(size_t e, size_t i) { return unit(e, 2 * i); }
  Unit* source(size_t e, size_t i) { return unit(e, 2 * (kMostCommands + i)); }
  // What the other end's ADDs add to.
  uint64_t* word(size_t e) { return reinterpret_cast<uint64_t*>(unit(e, kWordAt)); }
  Unit empty() const { return {walk_, 0}; }
  Unit bytes(size_t i) const { return {walk_, i + 1}; }
  Unit used_again(size_t i) const { return {walk_, ~i}; }

  void push(size_t e) {
    Pod& pod = pods_[e];
    const size_t i = pod.pushed;
    const char command = courses_[e][i];
    const auto to = static_cast<uint32_t>(1 - e);
    Slot slot = pack_drain(pod.producer.head);
    if (has_bytes(command)) {
      *source(e, i) = bytes(i);
      const auto from = static_cast<uint32_t>(source(e, i) - unit(e, 0));
      const auto at = static_cast<uint32_t>(destination(to, i) - unit(to, 0));
      pack_write({to, from, at, 1, 0, has_signal(command) ? 1u : 0u}, slot);
    } else if (has_signal(command)) {
      pack_signal(to, 0, 1, slot);
    } else if (is_atomic(command)) {
      pack_atomic(Op::kAdd, to, kWordAt * kUnitBytes / kWordBytes, 1, slot);
    }
    if (!pod.producer.try_push(&slot, 1)) return wrong("a ring is full");
    pod.pushed += 1;
  }

  // Each end signals and drains, and nobody interferes: then nothing is under way, and neither end
  // owes the other word of anything.
  void settle() {
    network.by_hand(false);
    std::array<uint64_t, 2> signals{};
    for (size_t e = 0; e < 2; ++e) {
      Slot slots[2];
      pack_signal(static_cast<uint32_t>(1 - e), 0, 1, slots[0]);
      slots[1] = pack_drain(pods_[e].producer.head);
      if (!pods_[e].producer.try_push(slots, 2)) wrong("a ring is full");
      signals[e] = *pods_[e].signal + 1;
    }
    const auto settled = [&] {
      bool all = group_.inflight(0) + group_.inflight(1) == 0;
      if constexpr (requires { network.settled(); }) all = all && network.settled();
      for (size_t e = 0; e < 2; ++e)
        all =
            all && *pods_[e].completed == pods_[e].producer.head && *pods_[e].signal == signals[e];
      return all;
    };
    for (int turns = 0; turns < 1000 && !settled(); ++turns) group_.turn_all();
    if (!settled()) wrong("the ends do not settle");
    network.by_hand(true);
  }

  size_t signals_before(size_t e, size_t count) const {
    const auto first = courses_[e].begin();
    return static_cast<size_t>(std::count_if(first, first + static_cast<long>(count), has_signal));
  }
  size_t atomics_before(size_t e, size_t count) const {
    const auto first = courses_[e].begin();
    return static_cast<size_t>(std::count_if(first, first + static_cast<long>(count), is_atomic));
  }
  void wrong(const std::string& what) {
    if (fault_.empty()) fault_ = what;
  }
  void wrong(Fault fault) {
    if (fault != Fault::kNone) wrong(text_of(fault));
  }

  void look() {
    if (const std::string failure = group_.failure(); !failure.empty()) {
      ended_ = may_end(failure);
      if (!ended_) wrong(failure);
    }
    for (size_t e = 0; e < 2; ++e) look_at_places(e);
    for (size_t e = 0; e < 2; ++e) look_at_signals(e);
    for (size_t e = 0; e < 2; ++e) look_at_word(e);
    for (size_t e = 0; e < 2; ++e) look_at_completed(e);
  }
  // Only by an ADD of a NIC's that an end waits for.
  bool may_end(const std::string& failure) const {
    bool out = false;
    for (size_t e = 0; e < 2; ++e) {
      for (size_t i = pods_[e].seen_completed; i < pods_[e].pushed; ++i)
        out = out || courses_[e][i] == 'H';
    }
    return out && failure.find("may have been done or not") != std::string::npos;
  }
  // In the memory of end e.
  void look_at_places(size_t e) {
    for (size_t i = 0; i < courses_[1 - e].size(); ++i) {
      Place& place = pods_[e].places.at[i];
      const Unit now = *destination(e, i);
      if (place == Place::kTaken) {
        if (now != used_again(i)) wrong(Fault::kAgain);
      } else if (now == bytes(i)) {
        place = Place::kThere;
      } else if (now != empty() || place == Place::kThere) {
        wrong(Fault::kSource);
      }
    }
  }
  // The receiver uses at once what it knows to be there.
  void take(size_t e, size_t count) {
    wrong(pods_[e].places.take(courses_[1 - e], count));
    for (size_t i = 0; i < kMostCommands; ++i) {
      if (pods_[e].places.at[i] == Place::kTaken) *destination(e, i) = used_again(i);
    }
  }
  void look_at_signals(size_t e) {
    Pod& pod = pods_[e];
    const uint64_t now = platform::load_acquire(pod.signal) - pod.first_signal;
    if (now == pod.seen_signals) return;
    const std::string_view course = courses_[1 - e];
    if (now < pod.seen_signals || now > signals_before(1 - e, pods_[1 - e].pushed))
      return wrong(Fault::kValue);
    pod.seen_signals = now;
    size_t count = 0;
    while (signals_before(1 - e, count) < now && count < course.size()) ++count;
    take(e, count);
  }
  // One that was applied says that what was before it is there.
  void look_at_word(size_t e) {
    Pod& pod = pods_[e];
    const uint64_t now = platform::load_acquire(word(e)) - pod.first_word;
    if (now == pod.places.applied) return;
    const std::string_view course = courses_[1 - e];
    if (now < pod.places.applied || now > atomics_before(1 - e, pods_[1 - e].pushed))
      return wrong(Fault::kApplied);
    pod.places.applied = static_cast<uint8_t>(now);
    size_t count = 0;
    while (atomics_before(1 - e, count) < now && count < course.size()) ++count;
    take(e, count);
  }
  // The source is the pod's again; of a DRAIN, what it covers is known to be there; an
  // ATOMIC was applied.
  void look_at_completed(size_t e) {
    Pod& pod = pods_[e];
    const uint64_t now = platform::load_acquire(pod.completed) - pod.first_completed;
    if (now > pod.pushed) return wrong("more commands completed than were pushed");
    for (; pod.seen_completed < now; ++pod.seen_completed) {
      const size_t i = pod.seen_completed;
      if (has_bytes(courses_[e][i])) *source(e, i) = {~uint64_t{0}, ~uint64_t{0}};
      if (courses_[e][i] == 'D') take(1 - e, i);
      if (is_atomic(courses_[e][i]) && pods_[1 - e].places.applied < atomics_before(e, i + 1))
        wrong(Fault::kApplied);
    }
  }

  const Courses courses_;
  uint64_t walk_ = 0;
  HandGroup<Network, E> group_;
  std::array<Pod, 2> pods_;
  std::string fault_;
  bool ended_ = false;  // the group did, as it has to
};

}  // namespace epfabric::test
