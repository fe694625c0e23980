// Fuzz: one proxy's loop and transport, as agents run them, against peers and a pod that say
// anything: records, immediates, commands, failing posts, time that passes. No signal word goes
// back or is changed by another rank's agent, nobody answers an ATOMIC that another agent was sent,
// and a masked rank's rings come to rest.
// Input: how the group is, then events.
#include <sys/mman.h>

#include <array>
#include <memory>

#include "fuzz.h"
#include "hostile_endpoint.h"
#include "loop.h"
#include "loop_commands.h"
#include "loop_turn.h"
#include "remote_post.h"
#include "session.h"

namespace epfabric::agent {
namespace {

constexpr uint32_t kWorld = 4, kRings = 4, kSignals = 4, kDepth = 16, kEpoch = 7, kLinks = 4;
constexpr uint64_t kRegionBytes = 65536, kMs = 1'000'000;
constexpr uint64_t kFirstSequence = (uint64_t{1} << 32) - 40;
// Of the links, in the order in which open() makes them: rank 3 has two proxies.
constexpr std::array<uint32_t, kLinks> kRankOf{1, 2, 3, 3}, kProxyOf{0, 0, 0, 1};

// How a record differs from what an agent would say.
enum Wrong : uint8_t {
  kKind = 1,
  kRing = 2,
  kIndex = 4,
  kAge = 8,
  kSource = 16,
  kTarget = 32,
  kCredit = 64,
  kOrder = 128
};

// What a peer says.
struct Saying {
  uint8_t link, wrong, kind, ring;
  uint16_t index;
  int16_t offset;  // of the sequence
  uint32_t consumed, unused;
  uint64_t value, extra;
};
static_assert(sizeof(Saying) == 32);

// The session of rank 0, alone on its node, and its transport. Made once: it costs milliseconds.
template <class E>
struct Site {
  using Transport = RemoteTransport<E>;
  ProxyCount count;
  Events events;
  std::shared_ptr<BarrierStats> stats = std::make_shared<BarrierStats>(3);
  HostileEndpoint* endpoint = nullptr;
  std::shared_ptr<Session> session;
  std::unique_ptr<Transport> transport;
  std::vector<SessionBlob> blobs;
  std::atomic<bool> registered{false};

  Site() {
    const Shape shape{0, kWorld, kRings, kDepth, kSignals};
    ProxySettings settings;
    settings.serve = [this](Proxy& proxy) {  // this thread then has the loop to itself
      NoRemote none;
      Loop<NoRemote> loop(proxy, none);
      proxy.started();
      while (!registered.load(std::memory_order_acquire)) loop.turn();
      while (!loop.stopping()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    };
    session = std::make_shared<Session>(SessionSettings{1, shape, {-1}, 1 << 20}, settings);
    FileDescriptor fd(::memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const std::vector<std::byte> zeros(kRegionBytes);
    require(::write(fd.get(), zeros.data(), kRegionBytes) == kRegionBytes, "a region is made");
    session->register_memfd(fd.get(), kRegionBytes);
    registered.store(true, std::memory_order_release);
    Limits limits;
    limits.first_sequence = kFirstSequence;
    transport = std::make_unique<Transport>(&endpoint, 0, shape, 1, limits, count);
    transport->add_region(session->regions()[0]);
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      SessionBlob blob{rank, kWorld, kRings, kSignals, {{0, kRegionBytes}}, {}};
      for (uint32_t proxy = 0; proxy < (rank == 3 ? 2 : 1); ++proxy)
        blob.proxies.push_back({{}, {1, 0}, {{2, 0}}});
      blobs.push_back(std::move(blob));
    }
  }
};

using Words = std::array<uint64_t, size_t{kWorld} * kRings * kSignals>;
using Answers = std::array<uint64_t, size_t{kRings} * kDepth>;

// One execution.
template <class E>
class Play {
 public:
  Play(Site<E>& site, uint8_t how)
      : site_(site),
        endpoint_(*site.endpoint),
        epoch_(std::make_shared<Epoch>(EpochPlan{1,
                                                 kEpoch,
                                                 how & 2u ? 1u : 0u,
                                                 1000 * kMs,
                                                 {{0}, {1, 2}, {3}},
                                                 (how & 4) != 0,
                                                 {},
                                                 {},
                                                 (how & 8) != 0},
                                       std::vector{site.session}, site.blobs, site.stats,
                                       site.events)),
        loop_(*site.session->proxies()[0], *site.transport) {
    endpoint_.peers.clear();
    endpoint_.mood = Mood::kTakes;
    for (uint32_t i = 0; i < words().size(); ++i) *word(i) = 0;
    for (uint32_t ring = 0; ring < kRings; ++ring) empty(ring);
    loop_.open(epoch_);
    require(endpoint_.peers.size() == kLinks, "the links are as they are meant");
    epoch_->start();
  }

  void run(Input& input) {
    std::array<bool, kWorld + 1> spoke{true};  // the own rank; the others while that is queued
    while (input.left() != 0) {
      const Words before = words();
      const Answers unanswered = answers();
      if (endpoint_.quiet()) spoke = {true};
      spoke[event(input)] = true;
      loop_.work(now_ns_);
      const Words after = words();
      for (uint32_t i = 0; i < after.size(); ++i) {
        require(after[i] >= before[i], "no signal word goes back");
        require(after[i] == before[i] || spoke[i / (kRings * kSignals)],
                "a rank's words are changed by its own agent only");
      }
      const Answers answered = answers();
      for (uint32_t i = 0; i < answered.size(); ++i) {
        require(answered[i] == unanswered[i] || spoke[asked_[i]],
                "an ATOMIC is answered by the agent that it was sent to only");
      }
    }
    come_to_rest();
  }

 private:
  uint64_t* word(uint32_t i) const { return site_.session->segments().signal(0, 0, 0) + i; }
  Words words() const {
    Words out;
    std::copy_n(word(0), out.size(), out.begin());
    return out;
  }
  // By ring and place: which ATOMIC's old value is there.
  Answers answers() const {
    Answers out;
    for (uint32_t i = 0; i < out.size(); ++i)
      out[i] = site_.session->segments().results(i / kDepth)[i % kDepth].done;
    return out;
  }
  Slot* slots(uint32_t ring) { return const_cast<Slot*>(site_.session->segments().slots(ring)); }

  // Nothing of the execution before is visible in the ring.
  void empty(uint32_t ring) {
    heads_[ring] = site_.session->rings()[ring]->taken();
    for (uint64_t ticket = heads_[ring]; ticket < heads_[ring] + kDepth; ++ticket) {
      const uint64_t unseen = lap_of(ticket, kDepth) ^ kLapBit;
      slots(ring)[ticket & (kDepth - 1)] = {unseen, unseen};
    }
  }

  // The rank whose agent spoke, or kWorld.
  uint32_t event(Input& input) {
    const auto what = input.get<uint8_t>();
    switch (what % 8) {
      case 0:
        endpoint_.mood = static_cast<Mood>(what / 8 % 4);
        return kWorld;
      case 1:
      case 2:
        push(what / 8 % kRings, input.get<Slot>());
        return kWorld;
      case 3: {
        const auto imm = input.get<uint64_t>();
        endpoint_.announce(imm);
        const uint32_t domain = unpack_imm(imm).domain;
        return domain < kLinks ? kRankOf[domain] : kWorld;
      }
      case 4:
        now_ns_ += input.get<uint16_t>() * kMs;
        return kWorld;
      default:
        return say(input.get<Saying>());
    }
  }

  void push(uint32_t ring, const Slot& slot) {
    if (heads_[ring] - site_.session->rings()[ring]->retired() >= kDepth) return;
    const uint64_t lap = lap_of(heads_[ring], kDepth);
    asked_[ring * kDepth + heads_[ring] % kDepth] = std::min(rank_of(slot.lo), kWorld);
    slots(ring)[heads_[ring]++ & (kDepth - 1)] = {(slot.lo & ~kLapBit) | lap,
                                                  (slot.hi & ~kLapBit) | lap};
  }

  uint32_t say(const Saying& said) {
    const uint32_t domain = said.link % kLinks, rank = kRankOf[domain];
    HostileEndpoint::Peer& peer = endpoint_.peers[domain];
    const auto wrong = [&said](Wrong what) { return (said.wrong & what) != 0; };
    const uint32_t proxies = rank == 3 ? 2 : 1;
    ControlRecord record;
    record.kind = static_cast<RecordKind>(wrong(kKind) ? said.kind : 1 + said.kind % 11);
    const bool old = record.kind == RecordKind::kOld, order = is_order(record.kind);
    const auto ring = static_cast<uint8_t>((said.ring * proxies + kProxyOf[domain]) % kRings);
    // An answer that is wrong is one to what another peer was asked.
    const ControlRecord& asked =
        wrong(kIndex) ? endpoint_.peers[said.index % kLinks].asked : peer.asked;
    record.ring = wrong(kRing) ? said.ring : old ? asked.ring : ring;
    const auto index = static_cast<uint16_t>(said.index % (order ? kSignals : 1));
    record.index = old ? asked.index : wrong(kIndex) ? said.index : index;
    record.source = static_cast<uint16_t>(wrong(kSource) ? said.index : rank);
    record.destination = wrong(kTarget) ? said.index : 0;
    record.epoch = kEpoch + (wrong(kAge) ? 1 : 0);
    const uint64_t first = Unordered<E> ? kFirstSequence : 0;
    record.consumed = wrong(kCredit) ? said.consumed : static_cast<uint32_t>(first + peer.received);
    record.value = said.value;
    record.extra = said.extra;
    const uint64_t next = first + (Unordered<E> ? peer.sequences : peer.records);
    const auto sequence = static_cast<uint16_t>(next + (wrong(kOrder) ? said.offset : 0));
    endpoint_.say(domain, record, pack_imm({kImmControl, domain, sequence}));
    peer.records += 1;
    peer.sequences += 1;
    return rank;
  }

  // What is posted completes, all ranks are masked: nothing may be left.
  void come_to_rest() {
    endpoint_.mood = Mood::kTakes;
    for (int i = 0; i < 1000 && !endpoint_.quiet(); ++i) work_on();
    require(endpoint_.quiet(), "a proxy comes to the end of its queue");
    epoch_->mask({0, 1, 2, 3});
    for (int i = 0; i < 4 || !endpoint_.quiet(); ++i) {
      require(i < 1000, "a proxy comes to the end of its queue");
      work_on();
    }
    for (const auto& ring : site_.session->rings())
      require(!ring->holding() && ring->retired() == ring->taken(),
              "a masked rank's rings come to rest");
    require(site_.transport->inflight() == 0, "operations come back");
    (void)site_.events.take();
  }
  void work_on() {
    now_ns_ += 11 * kMs;  // beats are 10 ms apart
    loop_.work(now_ns_);
  }

  Site<E>& site_;
  HostileEndpoint& endpoint_;
  std::shared_ptr<Epoch> epoch_;
  Loop<RemoteTransport<E>> loop_;
  std::array<uint64_t, kRings> heads_{};
  std::array<uint32_t, size_t{kRings} * kDepth> asked_{};  // the rank of each command
  uint64_t now_ns_ = platform::clock_ns();
};

template <class E>
void play(uint8_t how, Input& input) {
  static Site<E>* const site = new Site<E>;  // its thread outlives all
  Play<E>(*site, how).run(input);
}

}  // namespace

void fuzz(Input& input) {
  const auto how = input.get<uint8_t>();
  if (how & 1) return play<UnorderedHostileEndpoint>(how, input);
  play<HostileEndpoint>(how, input);
}

// Each kind of group: commands of the own rank, and what honest peers say to them; then one peer
// answers an ATOMIC that the other one was sent.
std::vector<std::vector<std::byte>> seeds() {
  std::vector<Slot> commands(6);
  const bool fit = pack_write({1, 0, 0, 4, 1, 1}, commands[0]) &&
                   pack_atomic(Op::kAdd, 3, 8, 1, commands[1]) &&
                   pack_atomic(Op::kCas, 2, 8, 0, commands[2]) &&
                   pack_atomic(Op::kCasSwap, 0, 0, 1, commands[3]);
  require(fit, "seeds fit");
  commands[4] = pack_drain(4);
  commands[5] = pack_barrier();
  std::vector<std::vector<std::byte>> out;
  for (uint8_t how = 0; how < 16; ++how) {
    Output to;
    const auto say = [&to](uint8_t link, RecordKind kind, uint64_t value, uint64_t extra,
                           uint8_t wrong = 0, uint16_t index = 1) {
      to.put(uint8_t{5});
      const auto said = static_cast<uint8_t>(static_cast<uint8_t>(kind) - 1);
      to.put(Saying{link, wrong, said, 1, index, 0, 0, 0, value, extra});
    };
    to.put(how);
    for (const Slot& slot : commands) {
      to.put(uint8_t{1});
      to.put(slot);
    }
    say(1, RecordKind::kSignal, 1, 0);
    say(2, RecordKind::kAdd, 5, 8);
    say(1, RecordKind::kExpect, 5, 8);
    say(1, RecordKind::kSwap, 6, 0);
    say(2, RecordKind::kOld, 5, 0);
    say(1, RecordKind::kOld, 5, 0);
    say(3, RecordKind::kCredit, 0, 0);
    for (const uint8_t link : {2, 0}) {
      if (how & 8) {
        say(link, RecordKind::kRound, 0, pack_round({static_cast<uint8_t>(link ? 0 : 1)}));
      } else if (how & 2) {
        if (link == 0) say(link, RecordKind::kRelease, 0, 1);
      } else {
        say(link, RecordKind::kArrive, 0, pack_arrival({kRankOf[link], 0}));
      }
    }
    to.put(uint8_t{4});
    to.put(uint16_t{600});
    say(1, RecordKind::kSignal, 2, 0);
    out.push_back(to.bytes);
    Output lie;
    std::swap(to, lie);
    to.put(how);
    for (const Slot& slot : {commands[1], commands[2], commands[3]}) {
      to.put(uint8_t{1});
      to.put(slot);
    }
    say(1, RecordKind::kOld, 5, 0, kIndex, 2);
    out.push_back(to.bytes);
  }
  return out;
}

}  // namespace epfabric::agent
