// A proxy's endpoint on a port of an RDMA device: one reliable queue pair per link, all on one
// completion queue and one shared receive queue. Satisfies endpoint.h; used by its proxy's thread
// only. verbs_setup.cc makes and connects, verbs_endpoint.cc posts and polls.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "endpoint.h"
#include "verbs_device.h"
#include "verbs_greeting.h"
#include "verbs_handles.h"

namespace epfabric::agent {

class VerbsEndpoint {
 public:
  // Memory registered with this endpoint.
  struct LocalKey {
    MemoryRegion region;
    RemoteKey remote;
    void* descriptor = nullptr;
  };

  explicit VerbsEndpoint(const VerbsPort& port);

  LocalKey register_memory(std::byte* data, uint64_t bytes);
  LocalKey register_dmabuf(int fd, std::byte* data, uint64_t bytes);
  std::vector<std::byte> address() const { return bytes_of(address_); }
  PeerIndex insert(const PeerAddress& peer);
  // Sends a greeting to each peer that is not met yet; makes its queue pair first.
  void meet();
  bool met(PeerIndex peer) const { return !peers_[peer].down && peers_[peer].link.met(); }
  uint64_t max_bytes() const { return device_.port().max_msg_sz; }
  int wait_fd();
  // Reads the device's events; who is hit has a fault() from then on.
  void attend();
  const std::string& fault(PeerIndex peer) const { return peers_[peer].fault; }

  bool gathers() const { return true; }
  ssize_t write(PeerIndex peer, Pieces pieces, void* context) {
    return post(peer, pieces, IBV_WR_RDMA_WRITE, 0, context);
  }
  ssize_t write_with_imm(PeerIndex peer, Pieces pieces, uint32_t imm, void* context) {
    return post(peer, pieces, IBV_WR_RDMA_WRITE_WITH_IMM, imm, context);
  }
  // A read: its answer comes after the peer's NIC has put every earlier write into memory.
  ssize_t write_through(PeerIndex peer, const Piece& piece, void* context) {
    return post(peer, {&piece, 1}, IBV_WR_RDMA_READ, 0, context);
  }
  AtomicsAbility ability() const { return device_.ability(); }
  ssize_t fetch_add(PeerIndex peer, const Piece& word, uint64_t operand, void* context) {
    return post_atomic(peer, word, IBV_WR_ATOMIC_FETCH_AND_ADD, operand, 0, context);
  }
  ssize_t compare_swap(PeerIndex peer, const Piece& word, uint64_t operand, uint64_t swap,
                       void* context) {
    return post_atomic(peer, word, IBV_WR_ATOMIC_CMP_AND_SWP, operand, swap, context);
  }
  static std::string text_of(int error) { return std::strerror(error); }
  size_t poll(Completion* out, size_t capacity);
  // Ends the link to this peer for good; what is under way fails with `why`.
  void kill(PeerIndex peer, const std::string& why) { kill(peers_[peer], why); }
  // Breaks its connection, which can be made anew.
  void disturb(PeerIndex peer, const std::string& why) { disturb(peers_[peer], why); }
  bool next_broken(PeerIndex& out);
  bool sever(PeerIndex peer);
  void remake(PeerIndex peer, const Told& told);
  const Told& told(PeerIndex peer) const { return peers_[peer].theirs; }
  const std::string& broken_by(PeerIndex peer) const { return peers_[peer].broken; }
  void rest(PeerIndex peer);
  uint32_t heard(PeerIndex peer) const { return peers_[peer].heard; }
  bool gone() const { return gone_; }
  std::string name() const { return device_.name(); }

 private:
  // How far the end of a queue pair has come: its records are in the completion queue until they
  // are polled, and some drivers take them out of it when it is destroyed.
  enum class Ending : uint8_t {
    kNot,
    kFailed,  // it completes what it holds, and takes no more in
    kLast,    // behind all that is a last WR, whose completion is awaited
    kEnded,
  };
  struct Peer {
    PeerIndex index;
    VerbsAddress at;
    uint32_t own_domain;
    uint32_t their_domain;
    Acquaintance link;
    uint32_t psn = 0;      // of the own queue pair's first packet
    uint32_t room = 0;     // WRs that its send queue still takes
    uint32_t atomics = 0;  // under way
    AddressHandle handle;
    QueuePair pair;
    Ending ending = Ending::kNot;
    uint64_t failed_ns = 0;
    bool spent = false;  // the device said that it will use up no more receives
    bool late = false;   // it should have completed all by now
    std::string fault;
    bool down = false;     // its connection broke, and the next one is not begun
    bool resting = false;  // likewise: it has none until it is made anew
    uint32_t heard = 0;    // the latest era of its greetings
    std::string broken;    // why it broke last
    Told own, theirs;      // told when the queue pair was made, here and at the peer
  };
  // What a context begins with while it is under way.
  struct Posting {
    Peer* peer;
    uint32_t requests;
    uint32_t atomics;
  };
  // The low bits of a WR's id; others are the context's address.
  enum Tag : uint64_t {
    kLast = 0,
    kFirst = 1,
    kRecord = 2,
    kGreeted = 3,
    kSaid = 4,
    kEnd = 5,
    kTags = 8
  };

  void make_datagrams();
  void receive_greetings(uint32_t slot, uint32_t count);
  QueuePair make_pair(ibv_qp_type type, uint32_t send, uint32_t receive, uint32_t& inlined);
  ibv_ah_attr route_to(const VerbsAddress& at) const;
  AddressHandle handle_for(ibv_ah_attr route) const;
  void prepare(Peer& peer);
  void connect(Peer& peer, const Greeting& greeting);
  void greet(Peer& peer);
  void refused(Peer& peer, const NativeError& error);
  void take_greeting(const ibv_wc& done);
  void kill(Peer& peer, const std::string& why);
  void disturb(Peer& peer, const std::string& why);
  void fail_pair(Peer& peer);
  bool post_end(Peer& peer);
  void lose_device(const std::string& why);
  bool silent(Peer& peer);
  bool destroy(Peer& peer);

  ssize_t post(PeerIndex index, Pieces pieces, ibv_wr_opcode opcode, uint32_t imm, void* context);
  ssize_t post_atomic(PeerIndex index, const Piece& word, ibv_wr_opcode opcode, uint64_t operand,
                      uint64_t swap, void* context);
  ssize_t ready(const Peer& peer, uint32_t count) const;
  ssize_t submit(Peer& peer, ibv_send_wr* requests, const Posting& posting, void* context);
  bool take(const ibv_wc& done, Completion& out);
  void finish(const ibv_wc& done, Completion& out);
  void blame(Peer& peer, const ibv_wc& done, const std::string& what = "");
  void refill();
  Peer* owner_of(uint32_t queue);

  VerbsDevice device_;
  VerbsHandles<AddressHandle> handles_{[this](const ibv_ah_attr& to) { return handle_for(to); }};
  CompletionChannel channel_;
  CompletionQueue completions_;
  SharedReceiveQueue receives_;
  std::vector<std::byte> notes_;  // greetings: received ones with their header, then sent ones
  MemoryRegion notes_region_;
  QueuePair datagrams_;
  VerbsAddress address_;
  std::deque<Peer> peers_;   // in the order of their own domains; never moved
  uint32_t inlined_ = 0;     // bytes that a WR may carry itself
  uint32_t room_ = 0;        // completions of own WRs that the queue has room for
  uint32_t notes_room_ = 0;  // greetings that may be sent
  uint32_t next_note_ = 0;
  uint32_t taken_ = 0;       // receives that were used up
  uint32_t connecting_ = 0;  // queue pairs that this poll may still connect
  size_t meeting_ = 0;       // the peer that was greeted last
  std::vector<ibv_recv_wr> refills_;
  std::vector<PeerIndex> broken_;  // to be told of
  bool armed_ = false;
  bool empty_ = false;  // the completion queue, at the last poll
  bool gone_ = false;   // the device failed: not all that is under way may complete
};

static_assert(Resting<VerbsEndpoint> && HardwareAtomics<VerbsEndpoint>);

}  // namespace epfabric::agent
