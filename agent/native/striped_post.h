// How a striped endpoint posts a write on one of its lines, and what it learns of it. Included by
// striped_endpoint.h.
#pragma once

#include "striped_endpoint.h"

namespace epfabric::agent {

// A line that is full leaves the write to the next best. One that was given up may have half of it.
template <Endpoint E>
ssize_t StripedEndpoint<E>::post(Peer& peer, Pieces pieces, const uint32_t* imm, void* context) {
  if (peer.shut) return peer.fault.empty() ? -EAGAIN : -ENOTCONN;
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) {
    if (piece.key >= peer.keys.size() / peer.lines) return -EINVAL;
    bytes += piece.bytes;
  }
  if (free_.empty()) return -EAGAIN;
  Flight* flight = free_.back();
  free_.pop_back();
  *flight = {{}, context, &peer, bytes, 0, {}};
  ssize_t result = -EAGAIN;
  for (uint32_t among = peer.stripes.up(); among != 0 && result == -EAGAIN;) {
    const uint32_t line = peer.stripes.choose(bytes, among, inflight_);
    among &= ~(1u << line);
    flight->line = line;
    result = post(line, peer, pieces, imm, flight);
    if (Mending<E> && result != 0 && result != -EAGAIN && faulty(peer, line)) {
      peer.shut = true;
      result = -EAGAIN;
      break;
    }
    if (result != 0) continue;
    peer.stripes.posted(line, bytes);
    inflight_[line] += bytes;
    return 0;
  }
  flight->peer = nullptr;
  free_.push_back(flight);
  return result;
}

template <Endpoint E>
ssize_t StripedEndpoint<E>::post(uint32_t line, Peer& peer, Pieces pieces, const uint32_t* imm,
                                 Flight* flight) {
  std::array<Piece, kMaxPieces> out;
  for (size_t i = 0; i < pieces.size(); ++i) {
    out[i] = pieces[i];
    out[i].descriptor = (*static_cast<const Descriptors*>(pieces[i].descriptor))[line];
    out[i].key = peer.keys[pieces[i].key * peer.lines + line];
  }
  const Pieces over{out.data(), pieces.size()};
  E& endpoint = lines_[line];
  if (imm == nullptr) return endpoint.write(peer.at[line], over, flight);
  flight->place = {line, peer.sent[line]};
  const ssize_t result = endpoint.write_with_imm(peer.at[line], over, *imm, flight);
  if (result == 0) peer.sent[line] += 1;
  return result;
}

// Another line is first each time, so that none waits for those that always have something.
template <Endpoint E>
size_t StripedEndpoint<E>::poll(Completion* out, size_t capacity) {
  const auto count = static_cast<uint32_t>(lines_.size());
  size_t got = 0;
  for (; got < capacity && !ended_.empty(); ++got) {
    Flight* flight = ended_.front();
    ended_.pop_front();
    out[got] = Completion{flight, false, 0, kBroken, "it never completed"};
    settle(flight->line, out[got]);
  }
  first_ = first_ + 1 < count ? first_ + 1 : 0;
  for (uint32_t i = 0; i < count && got < capacity; ++i) {
    const uint32_t line = first_ + i < count ? first_ + i : first_ + i - count;
    size_t more = lines_[line].poll(out + got, capacity - got);
    // A queue that cannot be polled is its line's matter, whose peers have a fault.
    if (gone(line) && more == 1 && out[got].context == nullptr && out[got].error != 0) more = 0;
    for (const size_t end = got + more; got < end; ++got) settle(line, out[got]);
  }
  return got;
}

template <Endpoint E>
void StripedEndpoint<E>::settle(uint32_t line, Completion& done) {
  if (done.record) {
    const uint32_t domain = unpack_imm(done.imm).domain;
    if (Mending<E> && domain < peers_.size()) peers_[domain].own.taken[line] += 1;
    return;
  }
  if (done.context == nullptr) return;
  auto* flight = static_cast<Flight*>(done.context);
  flight->peer->stripes.completed(line, flight->bytes);
  inflight_[line] -= flight->bytes;
  done.context = flight->told;
  if constexpr (Mending<E>) note(line, *flight, done);
  flight->peer = nullptr;
  free_.push_back(flight);
}

// Of those that fail on a line the first is what broke it.
template <Endpoint E>
void StripedEndpoint<E>::note(uint32_t line, const Flight& flight, Completion& done)
  requires Mending<E>
{
  Peer& peer = *flight.peer;
  peer.completed[line] += 1;
  if (done.error == 0) {
    if (flight.place.line < kMaxLines) peer.acknowledged[line] = flight.place.number + 1;
    return peer.breaks[line].carried(flight.bytes);
  }
  note_break(peer, line, flight.bytes);
  if (!peer.fault.empty()) return;
  done.error = kBroken;  // on this line; there are others
  *static_cast<Place*>(done.context) = flight.place;
}

}  // namespace epfabric::agent
