// The path of operations over verbs: posting, completions, the receives that records use up.
#include "verbs_endpoint.h"

#include <endian.h>
#include <epfabric/platform.h>

#include <cerrno>

namespace epfabric::agent {
namespace {

constexpr int kMaxPoll = 64;
constexpr uint32_t kRefill = 32;
constexpr uint32_t kConnectsAtOnce = 8;  // in one poll
// So long a device is waited for that does not say that a queue pair uses up no more receives. Soft
// RoCE never does.
constexpr uint64_t kSpentNs = 200'000'000;
// So long one is that does not complete what a failed queue pair holds, until it counts as failed.
constexpr uint64_t kSilentNs = 6'000'000'000;

std::string text_of_status(const ibv_wc& done) {
  std::string out = ibverbs().status_text(done.status);
  if (done.status == IBV_WC_RETRY_EXC_ERR)
    out += " (the peer, or the network to it, does not answer)";
  if (done.status == IBV_WC_REM_ACCESS_ERR)
    out += " (the peer's NIC refuses the address or the key)";
  if (done.vendor_err != 0) out += ", vendor's code " + std::to_string(done.vendor_err);
  return out;
}

}  // namespace

// Two pieces are two WRs that the NIC is told of at once; the last one's completion is both's.
ssize_t VerbsEndpoint::post(PeerIndex index, Pieces pieces, ibv_wr_opcode opcode, uint32_t imm,
                            void* context) {
  Peer& peer = peers_[index];
  const auto count = static_cast<uint32_t>(pieces.size());
  if (const ssize_t refused = ready(peer, count); refused != 0) return refused;
  ibv_sge places[kMaxPieces];
  ibv_send_wr requests[kMaxPieces];
  for (uint32_t i = 0; i < count; ++i) {
    const Piece& piece = pieces[i];
    const bool last = i + 1 == count;
    places[i] = {reinterpret_cast<uint64_t>(piece.data), static_cast<uint32_t>(piece.bytes),
                 static_cast<uint32_t>(reinterpret_cast<uint64_t>(piece.descriptor))};
    ibv_send_wr& request = requests[i];
    request.wr_id = reinterpret_cast<uint64_t>(context) | (last ? kLast : kFirst);
    request.next = last ? nullptr : &requests[i + 1];
    request.sg_list = &places[i];
    request.num_sge = 1;
    request.opcode = last ? opcode : IBV_WR_RDMA_WRITE;
    request.send_flags = last ? IBV_SEND_SIGNALED : 0;
    if (i == 0 && peer.atomics > 0) request.send_flags |= IBV_SEND_FENCE;
    const bool readable = (reinterpret_cast<uint64_t>(piece.descriptor) & kForeign) == 0;
    if (piece.bytes <= inlined_ && readable && request.opcode != IBV_WR_RDMA_READ)
      request.send_flags |= IBV_SEND_INLINE;
    request.imm_data = htobe32(imm);
    request.wr.rdma.remote_addr = piece.address;
    request.wr.rdma.rkey = static_cast<uint32_t>(piece.key);
  }
  return submit(peer, requests, {&peer, count, 0}, context);
}

// The device holds it back while as many of the queue pair's reads and atomics are under way as the
// two ends agreed on. It needs no fence: only what follows an atomic may be seen before it.
ssize_t VerbsEndpoint::post_atomic(PeerIndex index, const Piece& word, ibv_wr_opcode opcode,
                                   uint64_t operand, uint64_t swap, void* context) {
  Peer& peer = peers_[index];
  if (const ssize_t refused = ready(peer, 1); refused != 0) return refused;
  ibv_sge place{reinterpret_cast<uint64_t>(word.data), static_cast<uint32_t>(word.bytes),
                static_cast<uint32_t>(reinterpret_cast<uint64_t>(word.descriptor))};
  ibv_send_wr request{};
  request.wr_id = reinterpret_cast<uint64_t>(context) | kLast;
  request.sg_list = &place;
  request.num_sge = 1;
  request.opcode = opcode;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.atomic.remote_addr = word.address;
  request.wr.atomic.compare_add = operand;
  request.wr.atomic.swap = swap;
  request.wr.atomic.rkey = static_cast<uint32_t>(word.key);
  return submit(peer, &request, {&peer, 1, 1}, context);
}

ssize_t VerbsEndpoint::ready(const Peer& peer, uint32_t count) const {
  if (!peer.fault.empty()) return -ENOTCONN;
  const bool busy = peer.down || !peer.link.met() || peer.room < count || room_ < count;
  return busy ? -EAGAIN : 0;
}

ssize_t VerbsEndpoint::submit(Peer& peer, ibv_send_wr* requests, const Posting& posting,
                              void* context) {
  ibv_send_wr* refused = nullptr;
  const int error = ::ibv_post_send(peer.pair.get(), requests, &refused);
  if (error != 0 && refused == &requests[0]) return error == ENOMEM ? -EAGAIN : -error;
  if (error != 0) {  // half of it is under way
    kill(peer, "its queue pair took half of a write");
    return -error;
  }
  *static_cast<Posting*>(context) = posting;
  peer.room -= posting.requests;
  peer.atomics += posting.atomics;
  room_ -= posting.requests;
  return 0;
}

size_t VerbsEndpoint::poll(Completion* out, size_t capacity) {
  ibv_wc done[kMaxPoll];
  const int most = static_cast<int>(std::min<size_t>(capacity, kMaxPoll));
  size_t found = 0;
  int got;
  connecting_ = kConnectsAtOnce;
  do {  // until there is something to tell, or nothing at all
    got = ::ibv_poll_cq(completions_.get(), most, done);
    if (got < 0) {
      empty_ = true;
      lose_device("the completion queue of " + device_.name() + " cannot be polled");
      out[0] = Completion{nullptr, false, 0, EIO, "it cannot be polled"};
      return 1;
    }
    for (int i = 0; i < got; ++i) found += take(done[i], out[found]) ? 1 : 0;
  } while (found == 0 && got > 0);
  empty_ = got < most;
  if (taken_ >= kRefill || empty_) refill();
  return found;
}

// Whether it is one that the caller is told of.
bool VerbsEndpoint::take(const ibv_wc& done, Completion& out) {
  // Of a queue pair that was ended without it: what it names may be in use again.
  if (gone_ && done.wr_id % kTags <= kRecord && owner_of(done.qp_num) == nullptr) return false;
  switch (done.wr_id % kTags) {
    case kRecord:
      taken_ += 1;
      if (done.status != IBV_WC_SUCCESS) {
        Peer* peer = owner_of(done.qp_num);
        if (peer != nullptr) blame(*peer, done, "its record was not received: ");
        return false;
      }
      out.context = nullptr;
      out.record = true;
      out.imm = be32toh(done.imm_data);
      out.error = 0;
      return true;
    case kGreeted:
      take_greeting(done);
      return false;
    case kSaid:
      notes_room_ += 1;
      return false;
    case kFirst: {  // only ever tells of an error; the last one's completion follows
      Peer* peer = owner_of(done.qp_num);
      if (peer != nullptr) blame(*peer, done);
      return false;
    }
    case kEnd:
      room_ += 1;
      peers_[done.wr_id / kTags].ending = Ending::kEnded;
      return false;
    default:
      finish(done, out);
      return true;
  }
}

void VerbsEndpoint::finish(const ibv_wc& done, Completion& out) {
  auto* posting = reinterpret_cast<Posting*>(done.wr_id);
  Peer& peer = *posting->peer;
  peer.room += posting->requests;
  peer.atomics -= posting->atomics;
  room_ += posting->requests;
  out.context = posting;
  out.record = false;
  out.error = 0;
  if (done.status == IBV_WC_SUCCESS) return;
  blame(peer, done);
  out.error = peer.fault.empty() ? kBroken : EIO;
  out.detail = peer.fault.empty() ? peer.broken : peer.fault;
}

// A completion's status only says how it failed; the device may have said why. What the peer's NIC
// or our own refused will be refused again.
void VerbsEndpoint::blame(Peer& peer, const ibv_wc& done, const std::string& what) {
  attend();
  switch (done.status) {
    case IBV_WC_LOC_QP_OP_ERR:  // soft RoCE, where the link is down
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_REM_ABORT_ERR:
    case IBV_WC_FATAL_ERR:
      return disturb(peer, device_.name() + ": " + what + text_of_status(done));
    default:
      return kill(peer, device_.name() + ": " + what + text_of_status(done));
  }
}

// Puts back what records used up, all in one call.
void VerbsEndpoint::refill() {
  if (taken_ == 0) return;
  const uint32_t count = std::min(taken_, static_cast<uint32_t>(refills_.size()));
  ibv_recv_wr& last = refills_[count - 1];
  ibv_recv_wr* const next = last.next;
  last.next = nullptr;
  ibv_recv_wr* refused = nullptr;
  if (::ibv_post_srq_recv(receives_.get(), refills_.data(), &refused) == 0) taken_ -= count;
  last.next = next;
}

VerbsEndpoint::Peer* VerbsEndpoint::owner_of(uint32_t queue) {
  for (Peer& peer : peers_) {
    if (peer.pair && peer.pair->qp_num == queue) return &peer;
  }
  return nullptr;
}

// The first reason stands.
void VerbsEndpoint::kill(Peer& peer, const std::string& why) {
  if (!peer.fault.empty()) return;
  peer.fault = why;
  fail_pair(peer);
}

void VerbsEndpoint::disturb(Peer& peer, const std::string& why) {
  if (!peer.fault.empty() || peer.down) return;
  peer.down = true;
  peer.broken = why;
  broken_.push_back(peer.index);
}

bool VerbsEndpoint::next_broken(PeerIndex& out) {
  if (broken_.empty()) return false;
  out = broken_.back();
  broken_.pop_back();
  return true;
}

// In the error state it flushes what it holds and takes nothing in. Once it has used up its last
// receive, all that came of it is in the completion queue before the completion of a WR that is
// posted then. Nothing comes of one that was never connected.
bool VerbsEndpoint::sever(PeerIndex index) {
  Peer& peer = peers_[index];
  if (peer.pair && peer.link.seen != 0) {
    if (peer.ending == Ending::kNot) {
      fail_pair(peer);
      peer.ending = Ending::kFailed;
      peer.failed_ns = platform::clock_ns();
    }
    if (peer.ending == Ending::kFailed) {
      attend();
      const bool spent = peer.spent || platform::clock_ns() - peer.failed_ns > kSpentNs;
      if (spent && post_end(peer)) {
        peer.ending = Ending::kLast;
        peer.failed_ns = platform::clock_ns();
      }
    }
    if (peer.ending != Ending::kEnded) return silent(peer) && destroy(peer);
  }
  peer.pair.reset();
  return true;
}

// Whether what it holds will not complete any more: a poll that began when the time was over came
// to the queue's end. This process may have stood still meanwhile.
bool VerbsEndpoint::silent(Peer& peer) {
  const uint64_t waited_ns = platform::clock_ns() - peer.failed_ns;
  if (waited_ns <= (gone_ ? kSpentNs : kSilentNs)) return false;
  if (!std::exchange(peer.late, true)) empty_ = false;
  return empty_;
}

// Nothing comes of it afterwards: the device says so, or the kernel took the device away, and all
// that it had with it. What it leaves of it here is then lost, which no call would give back.
bool VerbsEndpoint::destroy(Peer& peer) {
  lose_device(device_.name() + " does not complete what it holds");
  const int error = ibverbs().destroy_qp(peer.pair.get());
  if (error != 0 && !device_.removed()) {
    peer.failed_ns = platform::clock_ns();  // once more, but not at once
    return false;
  }
  (void)peer.pair.release();
  return true;
}

// The first reason stands.
void VerbsEndpoint::lose_device(const std::string& why) {
  if (gone_) return;
  gone_ = true;
  for (Peer& peer : peers_) kill(peer, why);
}

bool VerbsEndpoint::post_end(Peer& peer) {
  if (room_ == 0 || peer.room == 0) return false;
  ibv_send_wr request{};
  request.wr_id = peer.index * kTags + kEnd;
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  if (::ibv_post_send(peer.pair.get(), &request, &refused) != 0) return false;
  room_ -= 1;
  return true;
}

void VerbsEndpoint::rest(PeerIndex index) {
  Peer& peer = peers_[index];
  peer.down = peer.resting = true;
  std::erase(broken_, index);
  if (!peer.handle) handles_.look(index, route_to(peer.at));
}

void VerbsEndpoint::remake(PeerIndex index, const Told& told) {
  Peer& peer = peers_[index];
  peer.resting = false;
  peer.link = again(peer.link, told.era);
  peer.own = told;
  peer.down = false;
  try {
    prepare(peer);
  } catch (const NativeError& error) {
    refused(peer, error);
  }
}

// A queue pair in the error state completes all that it holds.
void VerbsEndpoint::fail_pair(Peer& peer) {
  ibv_qp_attr wanted{};
  wanted.qp_state = IBV_QPS_ERR;
  if (peer.pair) ibverbs().modify_qp(peer.pair.get(), &wanted, IBV_QP_STATE);
}

// Armed, then looked at once more: what came in between tells of itself by no event.
int VerbsEndpoint::wait_fd() {
  ibv_cq* queue = nullptr;
  void* ignored = nullptr;
  while (ibverbs().get_cq_event(channel_.get(), &queue, &ignored) == 0) {
    ibverbs().ack_cq_events(queue, 1);
    armed_ = false;
  }
  if (armed_) return channel_->fd;
  if (::ibv_req_notify_cq(completions_.get(), 0) != 0) return kNoWaitFd;
  armed_ = true;
  return kPollFirst;
}

void VerbsEndpoint::attend() {
  while (const auto trouble = device_.next_trouble()) {
    gone_ = gone_ || trouble->gone;
    for (Peer& peer : peers_) {
      if (trouble->qp != nullptr && trouble->qp != peer.pair.get()) continue;
      if (trouble->spent) {
        peer.spent = true;
        continue;
      }
      if (peer.down) peer.broken = trouble->text;  // says more than a status
      if (trouble->passes) {
        disturb(peer, trouble->text);
      } else {
        kill(peer, trouble->text);
      }
    }
  }
}

}  // namespace epfabric::agent
