// What an ATOMIC takes at the transport's seam, between two processes whose one thread posts and
// polls as a proxy's loop does: ADD by the owner's agent beside a round trip of two signals, which
// is what its order and answer cost, and ADD by its NIC; then an order as a record of 32 bytes
// beside an immediate alone. Options: first, rounds, trips, verbs (0: tcp;ofi_rxm; 1: the first
// soft-RoCE rail, in the VM). Run by benches/atomics.py.
#include <fcntl.h>

#include <string>

#include "bench.h"
#include "epoch.h"
#include "fabric_transport.h"
#include "processes.h"
#include "session.h"
#include "verbs_transport.h"

namespace epfabric::bench {
namespace {

using namespace epfabric::agent;

constexpr uint64_t kBytes = 65536;
constexpr uint64_t kWord = 8;
constexpr uint64_t kLimitNs = 120'000'000'000;
constexpr Shape kShape{0, 2, 1, 64, 1};
constexpr uint64_t kLooks = 1024;  // polls between two looks at the wire

std::shared_ptr<Session> make_session(uint32_t rank) {
  Shape shape = kShape;
  shape.rank = rank;
  FileDescriptor fd{::memfd_create("bench-region", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  const std::vector<std::byte> zeros(kBytes);
  if (::write(fd.get(), zeros.data(), kBytes) != ssize_t{kBytes}) give_up("no region");
  // Its one proxy has no transport and no epoch: it sleeps.
  auto out = std::make_shared<Session>(SessionSettings{1, shape, {-1}, kBytes}, ProxySettings{});
  out->register_memfd(fd.get(), kBytes);
  return out;
}

// One end: rank 0 asks, rank 1 owns the word.
template <class E>
class Side {
 public:
  template <class Network>
  Side(uint32_t rank, const Wire& wire, const Network& network, AtomicsWish wish)
      : rank_(rank),
        wire_(wire),
        session_(make_session(rank)),
        ring_(0, session_->segments().slots(0), session_->segments().counters(0),
              session_->segments().results(0), kShape.depth),
        transport_(network, 0, session_->shape(), 1, Limits{}, count_) {
    SessionBlob own{rank, 2, 1, 1, session_->extents(), {}, {wish, transport_.ability()}};
    own.proxies.push_back({transport_.address(),
                           transport_.mailbox(),
                           {transport_.add_region(session_->regions()[0])}});
    wire_.send(encode(own));
    std::vector<SessionBlob> blobs(2);
    blobs[1 - rank] = decode(wire_.receive());
    blobs[rank] = own;
    epoch_ =
        std::make_unique<Epoch>(EpochPlan{1, 1, 0, kLimitNs, {{0}, {1}}}, std::vector{session_},
                                std::move(blobs), std::make_shared<BarrierStats>(5), events_);
    transport_.open(*epoch_);
    const uint64_t begin = now_ns();
    while (transport_.connect() > 0) {
      for (uint64_t i = 0; i < kLooks; ++i) poll();
      if (now_ns() - begin > kLimitNs) give_up("the two ends did not meet");
    }
    meet(0);
  }

  bool by_nic() const { return epoch_->atomics().by_nic; }
  uint64_t word() const {
    return platform::load_acquire(reinterpret_cast<uint64_t*>(session_->regions()[0].at(0)) +
                                  kWord);
  }

  // ADD 1; what the word held before.
  uint64_t add() {
    const Atomic atomic{1 - rank_, kWord, 1, 0};
    uint32_t sent = 0;
    const AtomicPart part{&ring_, &atomic, false, 0, &sent};
    const uint64_t ticket = ring_.ticket();
    transport_.begin_turn(now_ns());
    while (transport_.atomic(part).how == Applied::How::kBusy) poll();
    ring_.await_answer(1 - rank_);
    ring_.finish();
    while (ring_.retired() <= ticket) poll();
    return platform::load_relaxed(&session_->segments().results(0)[ticket % kShape.depth].old);
  }
  void signal() {
    const SignalPart part{&ring_, 1 - rank_, 0, ++sent_};
    transport_.begin_turn(now_ns());
    Posted posted = transport_.signal(part);
    for (; posted.bytes == 0; posted = transport_.signal(part)) poll();
    if (posted.pending) ring_.add_part();
    ring_.finish();
  }
  void exchange() {
    signal();
    while (received_ < sent_) poll();
  }
  // The other side's part, until it says that it is done.
  uint64_t serve() {
    uint64_t told;
    for (uint64_t looks = 0;; ++looks) {
      poll();
      while (sent_ < received_) signal();
      if (looks % kLooks == 0 && wire_.told(told)) break;
    }
    wire_.tell(word());
    return told;
  }
  // Goes on when the other side is here too; what it said.
  uint64_t meet(uint64_t value) {
    wire_.tell(value);
    uint64_t other;
    while (!wire_.told(other)) poll();
    return other;
  }

 private:
  void poll() {
    transport_.send_credits();
    transport_.poll(
        32, [this](Link& link, const ControlRecord& record) { return take(link, record); },
        [](uint32_t, const std::string& text) { give_up(text.c_str()); },
        [](int, const std::string& text) { give_up(text.c_str()); });
    ring_.retire();
  }
  // As Loop::take_record() does.
  const char* take(Link& link, const ControlRecord& record) {
    if (record.kind == RecordKind::kSignal) received_ = record.value;
    if (record.kind == RecordKind::kOld)
      return ring_.take_answer(record.index, link.rank, record.value) ? nullptr : "not asked";
    if (record.kind != RecordKind::kAdd) return nullptr;
    ControlRecord answer;
    answer.kind = RecordKind::kOld;
    answer.ring = record.ring;
    answer.index = record.index;
    answer.value =
        apply(session_->regions()[0].at(record.extra * kWordBytes), false, record.value, 0);
    return transport_.answer(link, answer);
  }

  const uint32_t rank_;
  const Wire wire_;
  std::shared_ptr<Session> session_;
  ProxyCount count_;
  Ring ring_;
  Events events_;
  RemoteTransport<E> transport_;
  std::unique_ptr<Epoch> epoch_;
  uint64_t sent_ = 0, received_ = 0;
};

constexpr Metric kAdd{"add_seconds", "s", false};

// Rank 0's; whether every old value was the next one and the word holds their number.
template <class E>
void measure(Side<E>& side, const Wire& wire, uint64_t round, uint64_t trips) {
  const std::string name = side.by_nic() ? "ADD by NIC" : "ADD by agent";
  std::vector<double> adds, signals;
  uint64_t expected = side.add() + 1;
  bool good = true;
  const auto timed = [](std::vector<double>& out, auto&& call) {
    const uint64_t begin = now_ns();
    call();
    out.push_back(static_cast<double>(now_ns() - begin) / 1e9);
  };
  // Turn by turn, so that both meet the same machine.
  for (uint64_t i = 0; i < trips; ++i) {
    timed(adds, [&] { good = side.add() == expected++ && good; });
    if (!side.by_nic()) timed(signals, [&] { side.exchange(); });
  }
  wire.tell(round);
  uint64_t held;
  while (!wire.told(held)) {
  }
  good = good && held == expected;
  print_samples(name, kAdd, kOurs, round, good, adds);
  if (!signals.empty()) print_samples(name, kAdd, "two signals", round, good, signals);
}

// An endpoint alone, for half round trips of one write with immediate.
template <class E>
class Bare {
 public:
  template <class Network>
  Bare(const Wire& wire, const Network& network)
      : wire_(wire),
        endpoint_(network),
        memory_(4096),
        key_(endpoint_.register_memory(memory_.data(), memory_.size())) {
    wire_.send(endpoint_.address());
    peer_ = endpoint_.insert({wire_.receive(), 0, 0});
    wire_.send(std::as_bytes(std::span(&key_.remote, 1)));
    std::memcpy(&remote_, wire_.receive().data(), sizeof(remote_));
    const uint64_t begin = now_ns();
    while (!endpoint_.met(peer_)) {
      endpoint_.meet();
      for (uint64_t i = 0; i < kLooks; ++i) poll();
      if (now_ns() - begin > kLimitNs) give_up("the two ends did not meet");
    }
    wire_.tell(0);
    for (uint64_t other; !wire_.told(other);) poll();
  }

  // Half round trips of each of these sizes in turn, so that all meet the same machine.
  template <size_t N>
  std::array<std::vector<double>, N> ping_pong(bool first, const std::array<uint64_t, N>& sizes,
                                               uint64_t trips) {
    std::array<std::vector<double>, N> out;
    for (uint64_t i = 0; i < trips * N; ++i) {
      const uint64_t begin = now_ns(), number = total_ + 1;
      if (first) send(sizes[i % N], number);
      while (received_ < number) poll();
      good_ = good_ && last_ == (number & 0xfffffff);
      total_ = number;
      if (!first) send(sizes[i % N], number);
      out[i % N].push_back(static_cast<double>(now_ns() - begin) / 2e9);
    }
    while (done_ < posted_) poll();
    return out;
  }
  bool good() const { return good_; }

 private:
  struct Context {
    std::array<void*, 8> words{};
  };
  void send(uint64_t bytes, uint64_t number) {
    const Piece piece{memory_.data(), key_.descriptor, bytes, remote_.base + 2048, remote_.key};
    Context* context = &contexts_[posted_ % contexts_.size()];
    const auto imm = static_cast<uint32_t>(number & 0xfffffff);
    for (;;) {
      const ssize_t result = endpoint_.write_with_imm(peer_, {&piece, 1}, imm, context);
      if (result == 0) break;
      if (result != -EAGAIN) give_up("a write was refused");
      poll();
    }
    posted_ += 1;
  }
  void poll() {
    const size_t got = endpoint_.poll(completions_.data(), completions_.size());
    for (size_t i = 0; i < got; ++i) {
      if (completions_[i].error != 0) give_up(completions_[i].detail.c_str());
      if (completions_[i].record) last_ = completions_[i].imm;
      (completions_[i].record ? received_ : done_) += 1;
    }
  }

  const Wire wire_;
  E endpoint_;
  std::vector<std::byte> memory_;
  typename E::LocalKey key_;
  std::array<Context, 256> contexts_;
  std::array<Completion, 64> completions_;
  PeerIndex peer_ = 0;
  RemoteKey remote_;
  uint64_t posted_ = 0, done_ = 0, received_ = 0, total_ = 0, last_ = 0;
  bool good_ = true;
};

template <class E, class Network>
int compare(bool first, const Wire& wire, const Network& network, const Options& options,
            std::span<const AtomicsWish> wishes) {
  const uint64_t trips = options.number("trips", 2000), from = options.number("first", 0);
  const uint64_t end = from + options.number("rounds", 1);
  for (const AtomicsWish wish : wishes) {
    Side<E> side(first ? 0 : 1, wire, network, wish);
    for (uint64_t round = from; round < end; ++round) {
      if (first) {
        measure(side, wire, round, trips);
      } else {
        side.serve();
      }
    }
    side.meet(0);
  }
  Bare<E> bare(wire, network);
  for (uint64_t round = from; round < end; ++round) {
    const std::array<uint64_t, 2> sizes{sizeof(ControlRecord), 0};
    bare.ping_pong(first, sizes, trips / 10 + 1);
    const auto [record, alone] = bare.ping_pong(first, sizes, trips);
    if (!first) continue;
    const Metric metric{"latency_seconds", "s", false};
    print_samples("one order", metric, kOurs, round, bare.good(), record);
    print_samples("one order", metric, "an immediate alone", round, bare.good(), alone);
  }
  return bare.good() ? 0 : 1;
}

int run(int count, char** values) {
  const Options options(count, values);
  int fd;
  const pid_t child = fork_with(fd, 240);
  const bool first = child != 0;
  pin(first ? 0 : 1);
  const Wire wire(fd);
  int code = 1;
  if (options.number("verbs", 0) != 0) {
    const VerbsPort port{first ? "ra0" : "rb0", 1, first ? "10.9.0.1" : "10.9.0.2", 32, 0};
    const AtomicsWish wishes[] = {AtomicsWish::kEmulated, AtomicsWish::kHardware};
    code = compare<StandbyVerbsEndpoint>(first, wire, VerbsStandby{{port}}, options, wishes);
  } else {
    const Fabric fabric("tcp;ofi_rxm", first ? "127.0.3.1" : "127.0.3.2");
    const AtomicsWish wishes[] = {AtomicsWish::kEmulated};
    code = compare<FabricEndpoint>(first, wire, fabric, options, wishes);
  }
  if (!first) ::_exit(code);
  return ended_well(child) ? code : 1;
}

}  // namespace
}  // namespace epfabric::bench

int main(int count, char** values) {
  try {
    return epfabric::bench::run(count, values);
  } catch (const epfabric::agent::NativeError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
