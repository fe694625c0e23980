// How a link goes over to another line when its own is of no use any more. Included by
// standby_endpoint.h; docs/ordering.md argues why it is right.
//
// A link's connections are numbered: the number travels as the era of greetings, both ends'
// connections have the same one, and modulo the link's lines it says which line that is. Who makes
// the next one stays on the line or takes the next line that is not given up. Who hears of a later
// one, also by a line that it does not use, ends its own and goes to that very one.
#pragma once

#include <algorithm>

#include "standby_endpoint.h"

namespace epfabric::agent {

template <Resting E>
uint32_t StandbyEndpoint<E>::lines(PeerIndex index) const {
  const Peer& peer = peers_[index];
  uint32_t out = 0;
  for (uint32_t i = 0; i < peer.lines.size(); ++i) out += faulty(peer, i) ? 0 : 1;
  return out;
}

template <Resting E>
void StandbyEndpoint<E>::leave(PeerIndex index) {
  peers_[index].leaving = peers_[index].lines.size() > 1;
}

// Its connection ends, for this reason; the next one may go over another line.
template <Resting E>
void StandbyEndpoint<E>::disturb(PeerIndex index, const std::string& why) {
  Peer& peer = peers_[index];
  peer.meeting = false;
  detail::add_reason(peer.broken, why);
  if (std::find(broken_.begin(), broken_.end(), index) == broken_.end()) broken_.push_back(index);
}

template <Resting E>
bool StandbyEndpoint<E>::next_broken(PeerIndex& out) {
  for (uint32_t nic = 0; nic < own_.size(); ++nic) {
    PeerIndex at = 0;
    while (own_[nic].next_broken(at)) {
      const Owner& owner = owners_[nic][at];
      const Peer& peer = peers_[owner.peer];
      const bool present = owner.line == ways_[owner.peer].line;
      if (present || own_[nic].heard(at) > peer.era)
        disturb(owner.peer, present ? own_[nic].broken_by(at) : "its end went over to another NIC");
    }
  }
  if (broken_.empty()) return false;
  out = broken_.back();
  broken_.pop_back();
  return true;
}

// Of the connection after the present one.
template <Resting E>
uint32_t StandbyEndpoint<E>::next_era(const Peer& peer) const {
  const auto count = static_cast<uint32_t>(peer.lines.size());
  uint32_t heard = 0;
  for (const Line& line : peer.lines) heard = std::max(heard, own_[line.own].heard(line.at));
  uint32_t out = heard > peer.era ? heard : peer.era + (peer.leaving ? 1 : count);
  for (uint32_t i = 1; i < count && faulty(peer, out % count); ++i) out += 1;
  return out;
}

template <Resting E>
void StandbyEndpoint<E>::go_over(PeerIndex index, uint32_t line) {
  Way& way = ways_[index];
  const Line& from = peers_[index].lines[way.line];
  const Line& to = peers_[index].lines[line];
  own_[from.own].rest(from.at);
  users_[from.own] -= 1;
  users_[to.own] += 1;
  way = {&own_[to.own], to.at, line};
  used_ = 0;
  for (uint32_t nic = 0; nic < own_.size(); ++nic) used_ |= users_[nic] > 0 ? 1u << nic : 0;
}

// A device that failed may have acknowledged what never comes to the queue: nobody could tell what
// was taken, so that the link ends.
template <Resting E>
bool StandbyEndpoint<E>::sever(PeerIndex index) {
  const Way& way = ways_[index];
  const bool out = way.on->sever(way.at);
  if (!way.on->gone()) return out;
  peers_[index].fault = way.on->fault(way.at);
  return false;
}

template <Resting E>
void StandbyEndpoint<E>::remake(PeerIndex index, const Told& told) {
  Peer& peer = peers_[index];
  std::erase(broken_, index);
  const auto count = static_cast<uint32_t>(peer.lines.size());
  if (count > 1) {  // one line's end that is behind goes on by itself, as without standby
    peer.era = next_era(peer);
    if (peer.era % count != ways_[index].line) go_over(index, peer.era % count);
  }
  peer.leaving = false;
  peer.meeting = true;
  peer.looks = 0;
  ways_[index].on->remake(ways_[index].at, {peer.era, told.taken});
}

// What is not met in time is tried over another line.
template <Resting E>
void StandbyEndpoint<E>::meet() {
  for (uint32_t nic = 0; nic < own_.size(); ++nic) {
    if (users_[nic] > 0) own_[nic].meet();
  }
  for (PeerIndex index = 0; index < peers_.size(); ++index) {
    Peer& peer = peers_[index];
    if (!peer.meeting) continue;
    peer.looks += 1;
    if (met(index)) {
      peer.meeting = false;
    } else if (peer.looks > patience_ && lines(index) > 1) {
      leave(index);
      disturb(index, ways_[index].on->broken_by(ways_[index].at));
    }
  }
}

// NICs that no link uses are polled here alone: what comes there is the greetings of peers that
// went over to them, and that a queue cannot be read harms nobody. A line may be given up for good:
// then the link leaves it, or is lost with the last one.
template <Resting E>
void StandbyEndpoint<E>::attend() {
  std::array<Completion, 8> nobody;
  for (uint32_t nic = 0; nic < own_.size(); ++nic) {
    own_[nic].attend();
    if ((used_ >> nic & 1) == 0) own_[nic].poll(nobody.data(), nobody.size());
  }
  for (PeerIndex index = 0; index < peers_.size(); ++index) {
    Peer& peer = peers_[index];
    if (!peer.fault.empty() || !faulty(peer, ways_[index].line)) continue;
    std::string why;
    for (const Line& line : peer.lines) detail::add_reason(why, own_[line.own].fault(line.at));
    if (lines(index) == 0) peer.fault = why;
    leave(index);
    disturb(index, why);
  }
}

template <Resting E>
std::string StandbyEndpoint<E>::settled(PeerIndex index) {
  Peer& peer = peers_[index];
  const Way& way = ways_[index];
  const std::string why = std::exchange(peer.broken, {});
  if (std::exchange(peer.known, way.line) == way.line) return "";
  return "goes over " + way.on->name() + " now: " + why;
}

}  // namespace epfabric::agent
