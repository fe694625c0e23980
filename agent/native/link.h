// What a transport knows of a connection and of what is under way on it. Used by
// remote_transport.h.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "endpoint.h"
#include "gate.h"
#include "joining.h"
#include "pace.h"

namespace epfabric::agent {

class Ring;

struct Limits {
  uint32_t inflight = 256;  // operations per destination rank and proxy
  uint64_t inflight_bytes = 64u << 20;
  uint64_t stall_ns = 10'000'000'000;
  // Connections made anew that carry nothing of what they had to, or breaks of a line after the
  // first (breaks.h).
  uint32_t tries = 3;
  uint32_t session_inflight = UINT32_MAX;  // operations per proxy, whatever their destination
  bool adaptive = false;                   // `inflight` and `inflight_bytes` are ceilings (pace.h)
  Joining joining{};
  // Of a link's records, or if unordered its operations; the same at both ends. Tests begin just
  // below a wrap.
  uint64_t first_sequence = 0;
};

// The first half of a peer's CAS.
struct CasHalf {
  uint64_t value = 0;
  uint64_t word = 0;
  bool there = false;
};

// How far a broken connection is from being made anew.
enum class Mend : uint8_t {
  kWhole,
  kBroken,     // what is under way fails, and what had come of the old one is taken
  kMeeting,    // the new one is being made
  kReplaying,  // what the peer has not taken is sent again
};

inline constexpr uint64_t kMeetEveryNs = 10'000'000;
inline constexpr uint64_t kTellEveryNs = 1'000'000'000;
// Links that are looked at in one turn, and operations of one that are sent again: a port that goes
// away breaks all links at once, and others wait for the turn's end.
inline constexpr size_t kMendsAtOnce = 8;
inline constexpr size_t kReplaysAtOnce = 64;

struct Operation;

// A connection between this proxy and one proxy of a remote rank.
struct Link {
  uint32_t rank = 0;
  uint32_t proxy = 0;
  PeerIndex peer = 0;
  RemoteKey mailbox;    // where our records go: base is that of our domain's slots
  uint32_t domain = 0;  // the receiver's name for us
  const std::vector<RemoteKey>* regions = nullptr;
  Outbox outbox;
  Inbox inbox;
  // ATOMICs: ours that the peer has to answer, halves of its CAS by ring of its proxy, and our
  // answers that could not be sent yet.
  uint32_t atomics = 0;
  uint64_t answered_ns = 0;  // the last answer, or the first ATOMIC after none
  std::vector<CasHalf> expected;
  std::array<ControlRecord, kMaxAtomics> answers;
  uint32_t unsent = 0;
  uint32_t inflight = 0;
  uint32_t cap = 0;        // of it
  uint64_t cap_bytes = 0;  // of the next
  uint64_t inflight_bytes = 0;
  uint64_t posted = 0;         // operations that rings wait for
  uint64_t marked = 0;         // of these, before the last marker
  uint64_t delivered = 0;      // known to be visible at the peer
  uint64_t drain = 0;          // the last DRAIN that has a marker here
  uint64_t progress_ns = 0;    // last completion, or first operation after none
  uint64_t busy_since_ns = 0;  // refused posts without any success or credit since; 0 = none
  int error = 0;               // a post that failed for another reason than a full queue
  uint32_t behind = 0;         // its places in the lists of links with undelivered operations,
  uint32_t unmarked = 0;       // and of those that have some behind the last marker
  Pace pace;
  bool owes = false;  // in the list of credits to send
  bool probed = false;
  bool connected = false;
  bool broken = false;  // for good
  Mend mend = Mend::kWhole;
  uint32_t tries = 0;               // new ones that had to carry something and did not
  uint32_t held = 0;                // operations that failed
  uint64_t broken_ns = 0;           // when it broke
  uint64_t order = 0;               // of the next operation
  std::vector<Operation*> journal;  // to send again
  size_t replayed = 0;
  std::unique_ptr<Gate> gate;  // unordered: `posted` and `delivered` are its sequences
};

inline constexpr uint64_t kNoRecord = UINT64_MAX;

struct Operation {
  std::array<void*, 8> context{};  // first: the completion names it; providers write into it
  Link* link = nullptr;            // nullptr: it is free
  Ring* ring = nullptr;            // nullptr: nothing waits for it
  uint64_t ticket = 0;
  uint64_t bytes = 0;
  uint64_t posted_ns = 0;     // these two for `pace`
  uint64_t own_ns = 0;        // the line's time for what was before it in the NIC, and for itself
  uint64_t covers = 0;        // marker, wait: the link's operations before it
  Operation* next = nullptr;  // wait: the link's next one
  Ring* asker = nullptr;      // atomic by NIC: whose ticket it is, and where its old value comes to
  uint64_t* old = nullptr;
  // kWait is none of the network's: it is done when credit covers it.
  enum class Kind : uint8_t {
    kPart,
    kRecord,
    kCredit,
    kProbe,
    kMarker,
    kWait,
    kAtomic
  } kind = Kind::kPart;
  uint64_t order = 0;           // on its link; this and the next two to post it again
  uint64_t record = kNoRecord;  // the number of its record
  Piece payload{};
  bool lost = false;  // it failed; held until its rank is masked, has left, or the epoch has ended
  bool abandoned = false;  // nobody waits for its completion, since its rank is masked
};

}  // namespace epfabric::agent
