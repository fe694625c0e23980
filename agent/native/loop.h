// A proxy's loop: take up to 32 commands (control before bulk, least recently served ring first),
// post them, poll completions, retire in order, advance the counters; then wait if there was
// nothing. No allocation, lock, map or virtual call per command. Instantiated in proxy.cc for each
// transport.
#pragma once

#include "proxy.h"

namespace epfabric::agent {

// A node without a network: every rank of the group has to be on it.
class NoRemote {
 public:
  void begin_turn(uint64_t) {}
  RemoteKey add_region(const Region&) { return {}; }
  AtomicsAbility ability() const { return AtomicsAbility::kUnable; }
  void open(Epoch&) {}
  size_t connect() { return 0; }
  std::string unreachable() const { return ""; }
  Posted write(const WritePart&, const SignalPart*) { return {}; }
  std::vector<std::byte> address() const { return {}; }
  Posted signal(const SignalPart&) { return {}; }
  Applied atomic(const AtomicPart&) { return {}; }
  static bool by_nic() { return false; }
  const char* answer(Link&, const ControlRecord&) { return nullptr; }
  bool drain(Ring&, uint64_t&) { return true; }
  void flush() {}
  uint64_t undelivered() const { return 0; }
  bool send(uint32_t, const ControlRecord&) { return false; }
  void send_credits() {}
  void abandon(uint32_t) {}
  void stop_trying() {}
  template <class Take, class Lose, class Fail>
  size_t poll(size_t, Take&&, Lose&&, Fail&&) {
    return 0;
  }
  template <class Lose>
  void watch(Lose&&) {}
  int wait_fd() { return kNoQueue; }
  static constexpr bool kDeliveredIsTaken = true;
  static constexpr bool kComesUnasked = false;
  uint64_t most_waiting() const { return 0; }
  uint64_t inflight() const { return 0; }
};
static_assert(Transport<NoRemote>);

template <class Remote>
class Loop {
 public:
  Loop(Proxy& proxy, Remote& remote);
  // Takes part in the epoch, when another thread asks for it; by the thread that turns.
  void open(const std::shared_ptr<Epoch>& epoch);
  // Turns until the proxy is asked to stop.
  void run();
  // One turn: work, then a wait if there was nothing.
  void turn();
  // One look at everything; false when there was nothing to do. A thread that serves several loops
  // reads the time once for all of them.
  bool work(uint64_t now_ns);
  bool stopping() const {
    return proxy_.stop_.load(std::memory_order_acquire);  // partner: Proxy::ask_stop()
  }

 private:
  bool block();
  bool handle_request();

  uint32_t serve_rings();
  uint32_t serve_pass(bool control, uint32_t budget);
  uint32_t serve(Ring& ring, uint32_t budget);
  bool advance(Ring& ring);
  bool advance_write(Ring& ring, Held& held);
  bool advance_atomic(Ring& ring, Held& held);
  bool advance_barrier(Ring& ring, Held& held);
  bool advance_rail(Ring& ring, Held& held);
  bool pass_over(Ring& ring, uint32_t rank);
  template <class To>
  bool post(To& to, Ring& ring, Held& held);

  struct Unsettled {
    const Proxy* proxy;
    uint64_t mark, handled;  // settled when it has come to one of these
  };
  // Since the release of a delegate's barrier.
  struct Settling {
    bool begun = false;
    std::vector<Unsettled> left{};
  };
  bool step_barrier(Delegate& delegate, Settling& settling);
  bool settled(Settling& settling);
  void begin(Settling& settling);
  void note_waiting();
  bool session_quiet() const;
  void note_undelivered();
  const char* take_record(Link& link, const ControlRecord& record);
  const char* take_order(Link& link, const ControlRecord& record);
  const char* take_answer(const Link& link, const ControlRecord& record);
  void take_changes();
  std::string lost_text(int rank, const std::string& text) const;
  void lose(uint32_t rank, const std::string& text);
  void report_lost(uint32_t rank, const std::string& text);
  void fail(int rank, const std::string& text);
  void barrier_timed_out(const Delegate& delegate, bool rail);
  void record_barrier();
  void look_at_pod();
  void beat();
  bool active() const;

  uint64_t& signal_value(const Ring& ring, const Write& write);

  Proxy& proxy_;
  Remote& remote_;
  const Shape shape_;
  LoopbackTransport loopback_;
  std::vector<Ring*> order_;  // served rings, least recently served first
  Mapping signal_values_;     // by served ring, destination rank, word
  Idle idle_;
  std::shared_ptr<Epoch> epoch_;
  SessionView view_;
  uint64_t now_ns_ = 0;
  uint64_t turn_bytes_ = 0;
  uint64_t handled_ = 0;  // completions
  uint64_t beat_ns_ = 0;
  uint64_t given_up_ns_ = 0;  // when the pod's abort word was seen
  uint64_t undelivered_ = 0;  // as the proxy says to others
  size_t unconnected_ = 0;
  bool failed_ = false;
  uint64_t changes_ = 0;         // of the epoch's ranks, that were taken note of
  std::vector<uint8_t> lost_;    // by rank: it was reported
  std::vector<uint8_t> masked_;  // by rank: the state in which what was under way was given up

  // Proxy 0 only.
  const Session* session_ = nullptr;
  uint64_t barriers_ = 0;  // that the session's rank has left
  uint32_t position_ = 0;
  std::unique_ptr<Delegate> delegate_;  // where this rank is its node's
  Settling settling_;
  uint64_t rails_ = 0;  // barriers along its rail that the rank has left
  Meeting rail_meeting_{1};
  std::unique_ptr<Delegate> rail_;
  Settling rail_settling_;
  bool left_last_ = false;  // the barrier before `barriers_`, as the last one of the node
  uint64_t left_ns_ = 0;
};

}  // namespace epfabric::agent
