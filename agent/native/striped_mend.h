// What a striped endpoint does when a line's connection breaks. All lines of that peer are severed
// and made anew; each end tells how many immediates came by each, so that the other knows of every
// write that failed whether it is there. It goes on over the first line that is met, and others
// join. A line that is out carries nothing, and is made anew by itself. Included by
// striped_endpoint.h; docs/ordering.md argues why it is right.
#pragma once

#include <algorithm>

#include "striped_endpoint.h"

namespace epfabric::agent {
namespace detail {

// Calls of attend() until lines that are out are tried, and while one may complete nothing.
inline constexpr uint32_t kJoinLooks = 4, kSilentLooks = 500;

}  // namespace detail

template <Endpoint E>
bool StripedEndpoint<E>::next_broken(PeerIndex& out)
  requires Mending<E>
{
  for (uint32_t i = 0; i < lines_.size(); ++i) {
    PeerIndex at = 0;
    while (lines_[i].next_broken(at)) broke(i, owners_[i][at]);
  }
  if (broken_.empty()) return false;
  out = broken_.back();
  broken_.pop_back();
  return true;
}

// One that is out breaks no other, unless the peer is in a later era: then all lines are old.
template <Endpoint E>
void StripedEndpoint<E>::broke(uint32_t line, PeerIndex index)
  requires Mending<E>
{
  Peer& peer = peers_[index];
  detail::add_reason(peer.broken, lines_[line].broken_by(peer.at[line]));
  if (peer.severing) return;
  const bool up = (peer.stripes.up() >> line & 1) != 0;
  const bool by_peer = lines_[line].told(peer.at[line]).era > peer.own.era;
  if (!up && !by_peer) {
    peer.alone |= 1u << line;
    return;
  }
  broken_.push_back(index);
  if (!by_peer && peer.stripes.inflight(line) > 0) note_break(peer, line, 0);
}

template <Endpoint E>
void StripedEndpoint<E>::note_break(Peer& peer, uint32_t line, uint64_t bytes)
  requires Mending<E>
{
  if (peer.severing || (peer.failed >> line & 1) != 0) return;
  peer.failed |= 1u << line;
  peer.breaks[line].broke(bytes);
}

template <Endpoint E>
bool StripedEndpoint<E>::sever(PeerIndex index)
  requires Mending<E>
{
  Peer& peer = peers_[index];
  peer.severing = true;
  bool out = true;
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    const bool severed = lines_[i].sever(peer.at[i]);
    if (severed && gone(i)) end_line(peer, i);
    out = out && severed;
  }
  return out;
}

// What its device will not tell of any more has failed, done or not.
template <Endpoint E>
void StripedEndpoint<E>::end_line(Peer& peer, uint32_t line)
  requires Mending<E>
{
  if ((peer.ended >> line & 1) != 0) return;
  peer.ended |= 1u << line;
  for (Flight& flight : flights_) {
    if (flight.peer == &peer && flight.line == line) ended_.push_back(&flight);
  }
}

template <Endpoint E>
void StripedEndpoint<E>::give_up(PeerIndex index, uint32_t tries)
  requires Mending<E>
{
  Peer& peer = peers_[index];
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    if (faulty(peer, i) || peer.breaks[i].count() > tries) peer.given_up |= 1u << i;
  }
  if (peer.given_up == peer.all()) peer.fault = why_given_up(peer);
}

template <Endpoint E>
std::string StripedEndpoint<E>::why_given_up(const Peer& peer) const
  requires Mending<E>
{
  std::string out;
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    const std::string& fault = lines_[i].fault(peer.at[i]);
    detail::add_reason(out, fault);
    if (fault.empty() && (peer.given_up >> i & 1) != 0) {
      detail::add_reason(
          out, "its connection broke again and again (" + lines_[i].broken_by(peer.at[i]) + ")");
    }
  }
  return out;
}

template <Endpoint E>
void StripedEndpoint<E>::remake(PeerIndex index, const Told&)
  requires Mending<E>
{
  Peer& peer = peers_[index];
  std::erase(broken_, index);
  peer.own.era += 1;
  peer.shut = peer.severing = false;
  peer.failed = peer.alone = 0;
  peer.silent = {};
  peer.stripes = Stripes(static_cast<uint32_t>(peer.at.size()), selection_, 0);
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    if (!faulty(peer, i)) lines_[i].remake(peer.at[i], peer.own);
  }
}

// In the era that the others are in.
template <Endpoint E>
void StripedEndpoint<E>::remake_alone(Peer& peer)
  requires Mending<E>
{
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    if ((peer.alone >> i & 1) == 0 || !lines_[i].sever(peer.at[i])) continue;
    peer.alone &= ~(1u << i);
    if (!faulty(peer, i)) lines_[i].remake(peer.at[i], peer.own);
  }
}

// Lines that were met since are used from now on. With the first of an era it is known what of all
// that was sent before has arrived.
template <Endpoint E>
void StripedEndpoint<E>::join(Peer& peer)
  requires Mending<E>
{
  if (peer.own.era == 0 || peer.stripes.up() == peer.all()) return;
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    const PeerIndex at = peer.at[i];
    const bool up = (peer.stripes.up() >> i & 1) != 0;
    if (up || !lines_[i].met(at) || (peer.alone >> i & 1) != 0 || faulty(peer, i)) continue;
    if (peer.stripes.up() == 0 && !all_counted(peer, lines_[i].told(at).taken)) return;
    peer.stripes.add(i);
    peer.broken.clear();
  }
  if (!peer.broken.empty()) return;
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    if ((peer.stripes.up() >> i & 1) == 0)
      detail::add_reason(peer.broken, lines_[i].broken_by(peer.at[i]));
  }
}

// A NIC that failed may have acknowledged what it did not tell its agent of. Whether that is there
// nobody knows, and its source may be in use again.
template <Endpoint E>
bool StripedEndpoint<E>::all_counted(Peer& peer, const Counts& taken)
  requires Mending<E>
{
  peer.sent = taken;
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    if (static_cast<int32_t>(taken[i] - peer.acknowledged[i]) >= 0) continue;
    peer.fault = "its NIC acknowledged writes and lost them (" + peer.broken + ")";
    peer.shut = true;
    return false;
  }
  return true;
}

// What is left of the peer was severed at both ends, so that the counts are final.
template <Endpoint E>
bool StripedEndpoint<E>::arrived(PeerIndex index, void* context)
  requires Mending<E>
{
  auto* place = static_cast<Place*>(context);
  const Place was = *place;
  *place = {};
  return was.line < kMaxLines &&
         static_cast<int32_t>(was.number - peers_[index].sent[was.line]) < 0;
}

// A line may be given up for good: then its link breaks if it carried, or when it was the last one
// is lost.
template <Endpoint E>
void StripedEndpoint<E>::look_for_faults()
  requires Mending<E>
{
  bool out = false;
  for (PeerIndex index = 0; index < peers_.size(); ++index) {
    Peer& peer = peers_[index];
    if (!peer.fault.empty()) continue;
    if (peer.alone != 0 && !peer.severing) remake_alone(peer);
    if (!peer.severing && look_for_silence(peer)) broken_.push_back(index);
    const uint32_t up = peer.stripes.up();
    out = out || (up != 0 && up != peer.all());
    uint32_t found = 0;
    for (uint32_t i = 0; i < peer.at.size(); ++i) found |= faulty(peer, i) ? 1u << i : 0;
    const uint32_t fresh = found & ~peer.given_up;
    if (fresh == 0) continue;
    peer.given_up = found;
    const std::string why = why_given_up(peer);
    detail::add_reason(peer.broken, why);
    if (found == peer.all() || (peer.own.era == 0 && !peer.begun)) peer.fault = why;
    if (peer.fault.empty() && (fresh & up) == 0) continue;
    broken_.push_back(index);
    peer.shut = true;
  }
  looks_ = looks_ + 1;
  if (out && looks_ % detail::kJoinLooks == 0) meet();
}

// Whether a line completes nothing of what is under way, not even as failed, while another one has
// nothing to wait for, or goes on.
template <Endpoint E>
bool StripedEndpoint<E>::look_for_silence(Peer& peer)
  requires Mending<E>
{
  uint32_t still = 0;
  bool out = false;
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    const bool waits = peer.completed[i] == peer.looked[i] && peer.stripes.inflight(i) > 0;
    still |= waits ? 1u << i : 0;
    peer.silent[i] = waits ? peer.silent[i] + 1 : 0;
  }
  peer.looked = peer.completed;
  if ((peer.stripes.up() & ~still) == 0) {  // the peer itself stands still
    peer.silent = {};
    return false;
  }
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    if (peer.silent[i] < detail::kSilentLooks) continue;
    detail::add_reason(peer.broken, "a NIC completed nothing, while another one did");
    note_break(peer, i, 0);
    peer.silent[i] = 0;
    out = true;
  }
  return out;
}

}  // namespace epfabric::agent
