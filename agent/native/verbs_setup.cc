// Making a verbs endpoint, and its links: queues, memory, greetings, the states of queue pairs.
#include <epfabric/platform.h>
#include <fcntl.h>
#include <sys/random.h>

#include <cerrno>
#include <optional>

#include "verbs_endpoint.h"

namespace epfabric::agent {
namespace {

constexpr uint32_t kHeaderBytes = 40;  // before each received datagram
constexpr uint32_t kSlotBytes = kHeaderBytes + sizeof(Greeting);
constexpr uint32_t kSentAt = kGreetings * kSlotBytes;
constexpr uint32_t kPsnBits = (1u << 24) - 1;
constexpr uint8_t kHops = 64;
constexpr uint8_t kRetries = 7;
constexpr uint8_t kRetriesOfRecords = 7;  // 7: as often as it takes, while no receive is there
constexpr uint8_t kRecordDelay = 1;       // 10 µs until such a retry
constexpr int kMostReads = 16;
constexpr uint64_t kPairsNs = 10'000'000;  // one call of meet() makes queue pairs for
constexpr int kLinkAccess = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

template <class T>
T at_random() {
  T out;
  if (::getrandom(&out, sizeof(out), 0) != ssize_t{sizeof(out)})
    throw system_error("getrandom failed");
  return out;
}

uint8_t served_reads(const ibv_device_attr& device) {
  return static_cast<uint8_t>(std::clamp(device.max_qp_rd_atom, 1, kMostReads));
}

}  // namespace

VerbsEndpoint::VerbsEndpoint(const VerbsPort& port) : device_(port) {
  const QueueSizes& sizes = device_.sizes();
  const std::string where = " of " + device_.name() + " failed";
  channel_.reset(ibverbs().create_channel(device_.context()));
  if (!channel_ || ::fcntl(channel_->fd, F_SETFL, O_NONBLOCK) != 0)
    throw system_error("making a completion channel" + where);
  completions_.reset(ibverbs().create_cq(device_.context(), static_cast<int>(sizes.total), nullptr,
                                         channel_.get(), 0));
  if (!completions_) throw system_error("making a completion queue" + where);
  room_ = sizes.total - sizes.receive - 2 * kGreetings;
  ibv_srq_init_attr wanted{};
  wanted.attr.max_wr = sizes.receive;
  wanted.attr.max_sge = 1;
  receives_.reset(ibverbs().create_srq(device_.domain(), &wanted));
  if (!receives_) throw system_error("making a shared receive queue" + where);
  refills_.resize(sizes.receive);
  for (size_t i = 0; i < refills_.size(); ++i) {
    refills_[i].wr_id = kRecord;
    refills_[i].next = i + 1 < refills_.size() ? &refills_[i + 1] : nullptr;
  }
  taken_ = sizes.receive;
  refill();
  if (taken_ != 0) throw system_error("filling a shared receive queue" + where);
  make_datagrams();
  address_.queue = datagrams_->qp_num;
  address_.lid = device_.port().lid;
  address_.mtu = static_cast<uint8_t>(device_.port().active_mtu);
  address_.reads = served_reads(device_.attributes());
  address_.gid = device_.gid();
  address_.token = at_random<Token>();
}

void VerbsEndpoint::make_datagrams() {
  notes_.resize(kSentAt + kGreetings * sizeof(Greeting));
  notes_region_ = device_.register_memory(notes_.data(), notes_.size());
  uint32_t inlined = 0;
  datagrams_ = make_pair(IBV_QPT_UD, kGreetings, kGreetings, inlined);
  // The highest bit means something else.
  address_.queue_key = at_random<uint32_t>() & 0x7fffffff;
  ibv_qp_attr wanted{};
  wanted.qp_state = IBV_QPS_INIT;
  wanted.port_num = device_.port_number();
  wanted.qkey = address_.queue_key;
  const auto step = [&](ibv_qp_state state, int mask) {
    wanted.qp_state = state;
    if (const int error = ibverbs().modify_qp(datagrams_.get(), &wanted, IBV_QP_STATE | mask);
        error != 0) {
      throw system_error("setting up the datagrams of " + device_.name() + " failed", error);
    }
  };
  step(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  step(IBV_QPS_RTR, 0);
  step(IBV_QPS_RTS, IBV_QP_SQ_PSN);
  notes_room_ = kGreetings;
  receive_greetings(0, kGreetings);
}

void VerbsEndpoint::receive_greetings(uint32_t slot, uint32_t count) {
  for (uint32_t i = slot; i < slot + count; ++i) {
    ibv_sge place{reinterpret_cast<uint64_t>(notes_.data()) + i * kSlotBytes, kSlotBytes,
                  notes_region_->lkey};
    ibv_recv_wr request{};
    request.wr_id = uint64_t{i} * kTags + kGreeted;
    request.sg_list = &place;
    request.num_sge = 1;
    ibv_recv_wr* refused = nullptr;
    ::ibv_post_recv(datagrams_.get(), &request, &refused);
  }
}

// With as much room inside a WR as a record and a small payload need, where the device has it.
QueuePair VerbsEndpoint::make_pair(ibv_qp_type type, uint32_t send, uint32_t receive,
                                   uint32_t& inlined) {
  for (uint32_t bytes : {device_.inlined(), std::min(device_.inlined(), 32u), 0u}) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = completions_.get();
    wanted.srq = type == IBV_QPT_RC ? receives_.get() : nullptr;
    wanted.cap.max_send_wr = send;
    wanted.cap.max_recv_wr = receive;
    wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
    wanted.cap.max_inline_data = type == IBV_QPT_RC ? bytes : 0;
    wanted.qp_type = type;
    QueuePair out(ibverbs().create_qp(device_.domain(), &wanted));
    if (out) {
      inlined = std::min(bytes, wanted.cap.max_inline_data);
      return out;
    }
  }
  throw system_error("making a queue pair of " + device_.name() + " failed (" +
                     std::to_string(peers_.size()) + " peers, at most " +
                     std::to_string(device_.attributes().max_qp) + " queue pairs)");
}

VerbsEndpoint::LocalKey VerbsEndpoint::register_memory(std::byte* data, uint64_t bytes) {
  LocalKey out;
  out.region = device_.register_memory(data, bytes);
  out.remote = {out.region->rkey, reinterpret_cast<uint64_t>(data)};
  out.descriptor = reinterpret_cast<void*>(uint64_t{out.region->lkey});
  return out;
}

VerbsEndpoint::LocalKey VerbsEndpoint::register_dmabuf(int fd, std::byte* data, uint64_t bytes) {
  LocalKey out;
  out.region = device_.register_dmabuf(fd, 0, bytes, reinterpret_cast<uint64_t>(data));
  out.remote = {out.region->rkey, reinterpret_cast<uint64_t>(data)};
  out.descriptor = reinterpret_cast<void*>(kForeign | out.region->lkey);
  return out;
}

PeerIndex VerbsEndpoint::insert(const PeerAddress& peer) {
  const VerbsAddress at = verbs_address(peer.address);
  Peer& added = peers_.emplace_back();
  added.index = peers_.size() - 1;
  added.at = at;
  added.own_domain = peer.own_domain;
  added.their_domain = peer.their_domain;
  if (gone_) added.fault = device_.name() + " failed";
  return peers_.size() - 1;
}

// What it does not come to is left to the next call.
void VerbsEndpoint::meet() {
  const uint64_t begin = platform::clock_ns();
  uint32_t made = 0;
  std::optional<bool> active;
  for (size_t looks = peers_.size(); looks > 0 && notes_room_ > 0; --looks) {
    meeting_ = meeting_ + 1 < peers_.size() ? meeting_ + 1 : 0;
    Peer& peer = peers_[meeting_];
    if (peer.link.met() || peer.down || !peer.fault.empty()) continue;
    if (peer.link.generation > 1) {  // the port may still be down
      if (!active) active = device_.active();
      if (!*active) continue;
    }
    try {
      if (!peer.pair) {
        if (made > 0 && platform::clock_ns() - begin > kPairsNs) continue;
        made += 1;
        prepare(peer);
      }
      greet(peer);
    } catch (const NativeError& error) {
      refused(peer, error);
    }
  }
}

// After a connection that broke the way to the peer may need a moment, but one that was looked for
// in vain is not looked for again. A queue pair that could not be connected is of no use, and the
// peer may know it: the next one is of another generation.
void VerbsEndpoint::refused(Peer& peer, const NativeError& error) {
  if (peer.link.generation == 1 || handles_.failed(peer.index)) return kill(peer, error.what());
  peer.pair.reset();
  peer.link = again(peer.link);
}

ibv_ah_attr VerbsEndpoint::route_to(const VerbsAddress& at) const {
  ibv_ah_attr out{};
  std::memcpy(out.grh.dgid.raw, at.gid.data(), at.gid.size());
  out.grh.sgid_index = static_cast<uint8_t>(device_.gid_index());
  out.grh.hop_limit = kHops;
  out.is_global = device_.ethernet() ? 1 : 0;
  out.dlid = at.lid;
  out.port_num = device_.port_number();
  return out;
}

AddressHandle VerbsEndpoint::handle_for(ibv_ah_attr route) const {
  return AddressHandle(ibverbs().create_ah(device_.domain(), &route));
}

void VerbsEndpoint::prepare(Peer& peer) {
  // Once: one whose MAC address is another one now is met by the next epoch only. While a group
  // runs it is made elsewhere, since this thread would serve nobody meanwhile.
  if (!peer.handle && peer.link.generation == 1) {
    peer.handle = handle_for(route_to(peer.at));
    if (!peer.handle) throw system_error(device_.name() + " knows no way to the peer");
  } else if (!peer.handle) {
    handles_.look(peer.index, route_to(peer.at));
    peer.handle = handles_.take(peer.index);
    if (!peer.handle) throw NativeError(device_.name() + " knows no way to the peer");
  }
  QueuePair pair = make_pair(IBV_QPT_RC, device_.sizes().send, 0, inlined_);
  peer.psn = device_.psn().value_or(at_random<uint32_t>()) & kPsnBits;
  ibv_qp_attr wanted{};
  wanted.qp_state = IBV_QPS_INIT;
  wanted.port_num = device_.port_number();
  wanted.qp_access_flags = kLinkAccess | (device_.applies_atomics() ? IBV_ACCESS_REMOTE_ATOMIC : 0);
  const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (const int error = ibverbs().modify_qp(pair.get(), &wanted, mask); error != 0)
    throw system_error("a queue pair of " + device_.name() + " cannot be used", error);
  peer.pair = std::move(pair);
  peer.ending = Ending::kNot;
  peer.spent = peer.late = false;
}

// The peer's queue pair is known: ready to receive from it, and to send to it once it is ready.
void VerbsEndpoint::connect(Peer& peer, const Greeting& greeting) {
  ibv_qp_attr wanted{};
  wanted.qp_state = IBV_QPS_RTR;
  wanted.path_mtu = std::min(device_.port().active_mtu, static_cast<ibv_mtu>(peer.at.mtu));
  wanted.dest_qp_num = greeting.queue;
  wanted.rq_psn = greeting.psn;
  wanted.max_dest_rd_atomic = served_reads(device_.attributes());
  wanted.min_rnr_timer = kRecordDelay;
  wanted.ah_attr = route_to(peer.at);
  const auto step = [&](int mask) {
    const int error = ibverbs().modify_qp(peer.pair.get(), &wanted, IBV_QP_STATE | mask);
    if (error != 0) throw system_error("connecting on " + device_.name() + " failed", error);
  };
  step(IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
       IBV_QP_MIN_RNR_TIMER);
  wanted.qp_state = IBV_QPS_RTS;
  wanted.timeout = device_.quirk().ack_timeout;
  wanted.retry_cnt = kRetries;
  wanted.rnr_retry = kRetriesOfRecords;
  wanted.sq_psn = peer.psn;
  wanted.max_rd_atomic = static_cast<uint8_t>(
      std::min<int>(std::clamp(device_.attributes().max_qp_init_rd_atom, 1, kMostReads),
                    std::max<int>(peer.at.reads, 1)));
  step(IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
       IBV_QP_MAX_QP_RD_ATOMIC);
  peer.room = device_.sizes().send;
  peer.link.seen = greeting.generation;
  peer.theirs = {greeting.era, greeting.taken};
}

// Without room it is left to the next meet().
void VerbsEndpoint::greet(Peer& peer) {
  if (notes_room_ == 0) return;
  std::byte* note = notes_.data() + kSentAt + next_note_ * sizeof(Greeting);
  Greeting greeting;
  greeting.domain = peer.their_domain;
  greeting.to = peer.at.token;
  greeting.from = address_.token;
  greeting.queue = peer.pair->qp_num;
  greeting.psn = peer.psn;
  greeting.generation = peer.link.generation;
  greeting.seen = peer.link.seen;
  greeting.acknowledged = peer.link.acknowledged;
  greeting.era = peer.link.era;
  greeting.taken = peer.own.taken;
  std::memcpy(note, &greeting, sizeof(greeting));
  ibv_sge place{reinterpret_cast<uint64_t>(note), sizeof(greeting), notes_region_->lkey};
  ibv_send_wr request{};
  request.wr_id = kSaid;
  request.sg_list = &place;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.ud.ah = peer.handle.get();
  request.wr.ud.remote_qpn = peer.at.queue;
  request.wr.ud.remote_qkey = peer.at.queue_key;
  ibv_send_wr* refused = nullptr;
  if (::ibv_post_send(datagrams_.get(), &request, &refused) != 0) return;
  notes_room_ -= 1;
  next_note_ = (next_note_ + 1) % kGreetings;
}

// Anyone may send a datagram: only what knows both ends' tokens counts.
void VerbsEndpoint::take_greeting(const ibv_wc& done) {
  const auto slot = static_cast<uint32_t>(done.wr_id / kTags);
  Greeting greeting;
  const uint32_t magic = greeting.magic;
  const bool whole =
      done.status == IBV_WC_SUCCESS && done.byte_len == kHeaderBytes + sizeof(greeting);
  if (whole)
    std::memcpy(&greeting, notes_.data() + slot * kSlotBytes + kHeaderBytes, sizeof(greeting));
  receive_greetings(slot, 1);
  if (!whole || greeting.magic != magic || greeting.to != address_.token) return;
  for (Peer& peer : peers_) {
    if (peer.own_domain != greeting.domain || peer.at.token != greeting.from) continue;
    if (peer.resting && peer.fault.empty() && greeting.era > peer.heard)
      broken_.push_back(peer.index);
    peer.heard = std::max(peer.heard, greeting.era);
    if (!peer.pair || peer.down || !peer.fault.empty()) return;  // it says so again
    try {
      const Answer answer = hear(peer.link, greeting);
      if (answer == Answer::kConnect && connecting_ == 0) return;  // likewise
      if (answer == Answer::kConnect) connecting_ -= 1;
      if (answer == Answer::kConflict) {
        peer.theirs.era = greeting.era;
        disturb(peer, "its end of the connection broke");
      }
      if (answer == Answer::kConnect) connect(peer, greeting);
      if (answer == Answer::kConnect || answer == Answer::kRepeat) greet(peer);
    } catch (const NativeError& error) {
      refused(peer, error);
    }
    return;
  }
}

}  // namespace epfabric::agent
