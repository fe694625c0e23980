// The seam between remote_transport.h and a network: what an endpoint (one per proxy, used by its
// thread only) can do. A compile-time concept; fabric.h and verbs_endpoint.h satisfy it.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "atomics_choice.h"
#include "stripes.h"

namespace epfabric::agent {

// Where a remote region begins, as its owner's endpoint names it.
struct RemoteKey {
  uint64_t key = 0;
  uint64_t base = 0;
};

// What a device still has; `of` says which limit that is and how it is raised.
struct DeviceLimits {
  static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  uint64_t connections = kNone;
  uint64_t registrations = kNone;  // of one proxy
  std::string of{};
};

struct Completion {
  void* context = nullptr;  // of an own operation
  bool record = false;      // a peer's write with immediate
  uint64_t imm = 0;
  int error = 0;
  std::string detail;
};

// What wait_fd() says instead of a descriptor: there is none to wait on, or there is
// something to poll before waiting, or nothing ever comes.
inline constexpr int kNoWaitFd = -1;
inline constexpr int kPollFirst = -2;
inline constexpr int kNoQueue = -3;

// Names a peer's endpoint: what insert() gave.
using PeerIndex = uint64_t;

// What a connection's two ends know of each other: the peer's address(), and the domains by which
// each end's records name the other.
struct PeerAddress {
  const std::vector<std::byte>& address;
  uint32_t own_domain;    // the peer is known by it here
  uint32_t their_domain;  // this end is known by it there
};

// From own memory to one place in the peer's.
struct Piece {
  const void* data;
  void* descriptor;
  uint64_t bytes;
  uint64_t address;
  uint64_t key;
};
inline constexpr size_t kMaxPieces = 2;
using Pieces = std::span<const Piece>;

// register_memory() returns something with `remote`, a RemoteKey, and `descriptor`, for pieces;
// registered while it lives. A post of 1-kMaxPieces pieces returns 0, -EAGAIN (busy: try again), or
// another error; it completes when its source may be reused, in write_through() when it and every
// earlier write to that peer is visible there. gathers(): a write may have two pieces. A peer takes
// writes once it is met(); meet() tries, off the path of commands. attend() looks at what befell
// the device, off that path too; fault() says why a peer cannot be reached any more, or nothing.
// wait_fd() becomes readable when poll() may find something, or is kNoWaitFd, or kPollFirst. Set-up
// throws NativeError.
template <class T>
concept Endpoint = requires(T endpoint, std::byte* data, uint64_t bytes, const PeerAddress& at,
                            PeerIndex peer, Pieces pieces, const Piece& piece, uint32_t imm,
                            void* context, Completion* out, size_t capacity) {
  typename T::LocalKey;
  { endpoint.register_memory(data, bytes) } -> std::same_as<typename T::LocalKey>;
  { endpoint.address() } -> std::same_as<std::vector<std::byte>>;
  { endpoint.insert(at) } -> std::same_as<PeerIndex>;
  { endpoint.meet() };
  { endpoint.met(peer) } -> std::same_as<bool>;
  { endpoint.attend() };
  { endpoint.fault(peer) } -> std::same_as<const std::string&>;
  { endpoint.max_bytes() } -> std::same_as<uint64_t>;
  { endpoint.gathers() } -> std::same_as<bool>;
  { endpoint.write(peer, pieces, context) } -> std::same_as<ssize_t>;
  { endpoint.write_with_imm(peer, pieces, imm, context) } -> std::same_as<ssize_t>;
  { endpoint.write_through(peer, piece, context) } -> std::same_as<ssize_t>;
  { endpoint.poll(out, capacity) } -> std::same_as<size_t>;
  { endpoint.wait_fd() } -> std::same_as<int>;
  { T::text_of(int{}) } -> std::same_as<std::string>;
};

// In a descriptor: no CPU may read this memory, so that no WR carries it itself.
inline constexpr uint64_t kForeign = uint64_t{1} << 63;

// Registers memory that no CPU may touch, by its dma-buf; `data` is where keys say that it begins.
template <class T>
concept Foreign = Endpoint<T> && requires(T endpoint, int fd, std::byte* data, uint64_t bytes) {
  { endpoint.register_dmabuf(fd, data, bytes) } -> std::same_as<typename T::LocalKey>;
};

// A write completes when the peer's NIC has it, so that how long that takes speaks of the network:
// pace.h goes by it. line_ns_per_kib(): what 1 KiB takes on the NIC's line; 0 = not known, then own
// bytes in the way count as others' do.
template <class T>
concept Paced = Endpoint<T> && requires(const T endpoint) {
  { endpoint.line_ns_per_kib() } -> std::same_as<uint64_t>;
};

// Of writes to one peer none is sure to be visible there before a later one, and immediates arrive
// in any order: remote_gate.h gives a link its order back. write_through() isn't used then.
template <class T>
concept Unordered = Endpoint<T> && requires { requires T::kUnordered; };

// Its NIC applies atomics: to a word of 8 bytes of the peer's, after every earlier write to that
// peer, as one party with every other atomic that comes to that word through the peer's NIC.
// `word.data` is where its value before comes to, in host order. ability(): whether this
// device does, for all that was registered.
template <class T>
concept HardwareAtomics = Endpoint<T> && requires(T endpoint, PeerIndex peer, const Piece& word,
                                                  uint64_t operand, uint64_t swap, void* context) {
  { endpoint.ability() } -> std::same_as<AtomicsAbility>;
  { endpoint.fetch_add(peer, word, operand, context) } -> std::same_as<ssize_t>;
  { endpoint.compare_swap(peer, word, operand, swap, context) } -> std::same_as<ssize_t>;
};

// Completion.error of an operation that failed because its connection broke.
inline constexpr int kBroken = ECONNRESET;

// What an end tells its peer with a new connection: how many records it has taken, or as a line of
// several how many immediates have come by each. Only connections of one era join (lines of a link
// are made anew together).
struct Told {
  uint32_t era = 0;
  std::array<uint32_t, kMaxLines> taken{};
};

// An endpoint whose connections can be made anew. next_broken() names one that broke, here or at
// the peer, since the last call; posts on it are refused with -EAGAIN. sever() takes a step of
// ending it, and is true once poll() has told of all that came of it, and that what was under way
// failed with kBroken: nothing that the peer sent on it arrives any more. remake() makes the next
// one; what the peer told, told(), is known once met(), and its era once that broke it. An
// unordered endpoint tells by itself, says of an operation that failed with kBroken whether it
// arrived(), and can give_up() ways that broke too often, in the end the peer. broken_by(): why it
// broke.
template <class T>
concept Mending =
    Endpoint<T> &&
    requires(T endpoint, PeerIndex peer, PeerIndex& out, const Told& told) {
      { endpoint.next_broken(out) } -> std::same_as<bool>;
      { endpoint.sever(peer) } -> std::same_as<bool>;
      { endpoint.remake(peer, told) };
      { endpoint.broken_by(peer) } -> std::same_as<const std::string&>;
    } &&
    (requires(T endpoint, PeerIndex peer) {
      { endpoint.told(peer) } -> std::same_as<const Told&>;
    } || requires(T endpoint, PeerIndex peer, void* context, uint32_t tries) {
      { endpoint.arrived(peer, context) } -> std::same_as<bool>;
      { endpoint.give_up(peer, tries) };
    });

// Can be one of several NICs of a StandbyEndpoint. rest(): the peer is not met and told nothing
// until remake(). heard(): the latest era that it told in a greeting; next_broken() names a resting
// one that told a later one than before. gone(): the device failed, and all peers have a fault;
// then sever() also ends what never completes, and poll() does not tell of that any more.
// name() is for messages. Of keys and descriptors it uses the low 32 bits.
template <class T>
concept Resting = Mending<T> && requires(T endpoint, PeerIndex peer) {
  { endpoint.rest(peer) };
  { endpoint.heard(peer) } -> std::same_as<uint32_t>;
  { endpoint.gone() } -> std::same_as<bool>;
  { endpoint.name() } -> std::same_as<std::string>;
};

// A connection that is made anew may go over another line. lines(): how many a link still has;
// leave(): the present one is of no use. settled(): the link is whole again; says what it goes over
// if that is another line than before, else nothing. stay(): links have one line from now on.
template <class T>
concept Movable = Mending<T> && requires(T endpoint, PeerIndex peer) {
  { endpoint.lines(peer) } -> std::same_as<uint32_t>;
  { endpoint.leave(peer) };
  { endpoint.settled(peer) } -> std::same_as<std::string>;
  { endpoint.stay() };
};

}  // namespace epfabric::agent
