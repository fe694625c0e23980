// Python face of the native producer: the only file here that knows Python; used by epfabric.ring.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <tuple>

#include "ring.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace epfabric::host {
namespace {

using Commands = nb::ndarray<const uint64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;
using Status = uint8_t;  // a Waited

Status status_of(Waited waited) { return static_cast<Status>(waited); }

void need_attached(const Segments& segments) {
  if (!segments.attached()) {
    throw std::runtime_error("this session is closed, or was opened by the parent process");
  }
}

// Waits release the interpreter's lock; short operations keep it.
template <typename Action>
Waited without_gil(Action action) {
  nb::gil_scoped_release release;
  return action();
}

// A rank that is masked while its word is waited for would let the wait run to its end: every so
// often the mask is looked at. MASKED = 3 goes on after the values of Waited.
constexpr Status kMasked = 3;
constexpr uint64_t kMaskLookNs = 10'000'000;

Status wait_signal(const Segments& segments, uint32_t rank, const uint64_t* word, uint64_t at_least,
                   uint64_t timeout_ns) {
  nb::gil_scoped_release release;
  const uint64_t begin = platform::clock_ns();
  for (;;) {
    const bool masked = segments.masked(rank);  // before the word: what came first counts
    const uint64_t spent = platform::clock_ns() - begin;
    const uint64_t left = spent < timeout_ns ? timeout_ns - spent : 0;
    const uint64_t slice = masked ? 0 : std::min(left, kMaskLookNs);
    const Waited waited = wait_at_least(word, at_least, segments.aborts(), slice);
    if (waited != Waited::kTimedOut) return status_of(waited);
    if (masked) return kMasked;
    if (left <= kMaskLookNs) return status_of(waited);
  }
}

const uint64_t* checked_signal(const Segments& segments, uint32_t rank, uint32_t ring,
                               uint32_t index) {
  need_attached(segments);
  const Geometry& geometry = segments.geometry();
  if (rank >= geometry.world || ring >= geometry.rings || index >= geometry.signals) {
    throw std::invalid_argument("no such signal word: there are " + std::to_string(geometry.world) +
                                " ranks, " + std::to_string(geometry.rings) + " rings and " +
                                std::to_string(geometry.signals) + " words of each");
  }
  return segments.signal(rank, ring, index);
}

std::tuple<Status, uint64_t> add(Ring& ring, const Slot& command, uint64_t timeout_ns) {
  need_attached(ring.segments());
  uint64_t ticket = 0;
  const Waited waited = without_gil([&] { return ring.add(command, timeout_ns, ticket); });
  return {status_of(waited), ticket};
}

std::tuple<Status, uint64_t> push_write(Ring& ring, const Write& write, uint64_t timeout_ns) {
  Slot command{};
  if (!pack_write(write, command)) throw std::invalid_argument("a field of WRITE does not fit");
  return add(ring, command, timeout_ns);
}

std::tuple<Status, uint64_t> push_signal(Ring& ring, uint32_t rank, uint32_t signal,
                                         uint32_t advance, uint64_t timeout_ns) {
  Slot command{};
  if (!pack_signal(rank, signal, advance, command)) {
    throw std::invalid_argument("a field of SIGNAL does not fit");
  }
  return add(ring, command, timeout_ns);
}

std::tuple<Status, uint64_t> push_add(Ring& ring, uint32_t rank, uint64_t word, uint64_t operand,
                                      uint64_t timeout_ns) {
  Slot command{};
  if (!pack_atomic(Op::kAdd, rank, word, operand, command)) {
    throw std::invalid_argument("a field of ATOMIC ADD does not fit");
  }
  return add(ring, command, timeout_ns);
}

std::tuple<Status, uint64_t> push_cas(Ring& ring, uint32_t rank, uint64_t word, uint64_t expected,
                                      uint64_t value, uint64_t timeout_ns) {
  Slot pair[2]{};
  if (!pack_cas(rank, word, expected, value, pair)) {
    throw std::invalid_argument("a field of ATOMIC CAS does not fit");
  }
  need_attached(ring.segments());
  uint64_t ticket = 0;
  const Waited waited = without_gil([&] { return ring.add_pair(pair, timeout_ns, ticket); });
  return {status_of(waited), ticket};
}

std::tuple<Status, uint64_t> push_list(Ring& ring, const Commands& commands, uint64_t timeout_ns) {
  need_attached(ring.segments());
  const auto* first = reinterpret_cast<const Slot*>(commands.data());
  if (reinterpret_cast<uintptr_t>(first) % alignof(uint64_t) != 0) {
    throw std::invalid_argument("the commands must lie on 8-byte boundaries");
  }
  uint64_t pushed = 0;
  const Waited waited = without_gil(
      [&] { return ring.push(std::span(first, commands.shape(0)), timeout_ns, pushed); });
  return {status_of(waited), pushed};
}

nb::dict layout_dict(uint32_t rings, uint32_t depth, uint32_t signals, uint32_t world) {
  if (!layout_valid(rings, depth, signals, world)) {
    throw std::invalid_argument("the geometry is outside the limits of layout.h");
  }
  const Layout at = layout_of(rings, depth, signals, world);
  nb::dict fields;
  fields["slots"] = at.slots;
  fields["pod_bytes"] = at.pod_bytes;
  fields["counters"] = at.counters;
  fields["mask"] = at.mask;
  fields["results"] = at.results;
  fields["signals"] = at.signals;
  fields["agent_bytes"] = at.agent_bytes;
  return fields;
}

// Where the words lie that Python code names, for the test of its mirror.
nb::dict offsets_dict() {
  nb::dict offsets;
  offsets["pod_abort"] = offsetof(PodHeader, abort);
  offsets["agent_abort"] = offsetof(AgentHeader, abort);
  offsets["agent_heartbeat"] = offsetof(AgentHeader, heartbeat);
  offsets["agent_epoch"] = offsetof(AgentHeader, epoch);
  offsets["ring_tail"] = offsetof(RingCounters, tail);
  offsets["ring_completed"] = offsetof(RingCounters, completed);
  offsets["ring_refused"] = offsetof(RingCounters, refused);
  offsets["ring_refused_ticket"] = offsetof(RingCounters, last_refused_ticket);
  offsets["ring_refused_reason"] = offsetof(RingCounters, last_refused_reason);
  offsets["ring_masked"] = offsetof(RingCounters, masked);
  offsets["ring_counters_bytes"] = sizeof(RingCounters);
  offsets["slot_bytes"] = sizeof(Slot);
  offsets["atomic_result_bytes"] = sizeof(AtomicResult);
  offsets["pod_magic"] = kPodMagic;
  offsets["agent_magic"] = kAgentMagic;
  return offsets;
}

// The C++ packing, for the test that the Python mirror packs alike; None where it refuses.
nb::object pair_of(bool fits, const Slot& slot) {
  return fits ? nb::object(nb::make_tuple(slot.lo, slot.hi)) : nb::object(nb::none());
}

void bind_packing(nb::module_& module) {
  module.def("layout", &layout_dict, "rings"_a, "depth"_a, "signals"_a, "world"_a);
  module.def("offsets", &offsets_dict);
  module.def("lap_of", [](uint64_t ticket, uint32_t depth) { return lap_of(ticket, depth); });
  module.def("pack_write", [](uint32_t rank, uint32_t source, uint32_t destination, uint32_t units,
                              uint32_t signal, uint32_t advance) {
    Slot slot{};
    return pair_of(pack_write(Write{rank, source, destination, units, signal, advance}, slot),
                   slot);
  });
  module.def("pack_signal", [](uint32_t rank, uint32_t signal, uint32_t advance) {
    Slot slot{};
    return pair_of(pack_signal(rank, signal, advance, slot), slot);
  });
  module.def("pack_atomic", [](uint8_t op, uint32_t rank, uint64_t offset, uint64_t operand) {
    Slot slot{};
    return pair_of(pack_atomic(static_cast<Op>(op), rank, offset, operand, slot), slot);
  });
  module.def("pack_drain", [](uint64_t until) { return pair_of(true, pack_drain(until)); });
  module.def(
      "pack_barrier", [](bool rail) { return pair_of(true, pack_barrier(rail)); },
      "rail"_a = false);
  module.def("unpack_write", [](uint64_t lo, uint64_t hi) {
    const Write w = unpack_write(Slot{lo, hi});
    return std::tuple(w.rank, w.source, w.destination, w.units, w.signal, w.advance);
  });
}

void bind_segments(nb::module_& module) {
  nb::class_<Segments>(module, "Segments")
      .def(
          "__init__",
          [](Segments* at, int pod_fd, int agent_fd, uint32_t rings, uint32_t depth,
             uint32_t signals, uint32_t world) {
            new (at) Segments(pod_fd, agent_fd, Geometry{rings, depth, signals, world});
          },
          "pod_fd"_a, "agent_fd"_a, "rings"_a, "depth"_a, "signals"_a, "world"_a)
      .def_prop_ro("attached", &Segments::attached)
      .def("detach", &Segments::detach)
      .def_prop_ro("addresses",
                   [](const Segments& self) {
                     need_attached(self);
                     return std::tuple(self.pod(), self.agent());
                   })
      .def("aborted",
           [](const Segments& self) {
             need_attached(self);
             return self.aborts().set();
           })
      .def("heartbeat",
           [](const Segments& self) {
             need_attached(self);
             return self.heartbeat();
           })
      .def("masked",
           [](const Segments& self) {
             need_attached(self);
             nb::list ranks;
             for (uint32_t rank = 0; rank < self.geometry().world; ++rank) {
               if (self.masked(rank)) ranks.append(rank);
             }
             return ranks;
           })
      .def("set_pod_abort",
           [](Segments& self) {
             need_attached(self);
             self.set_pod_abort();
           })
      .def(
          "signal",
          [](const Segments& self, uint32_t rank, uint32_t ring, uint32_t index) {
            return platform::load_acquire(checked_signal(self, rank, ring, index));
          },
          "rank"_a, "ring"_a, "index"_a)
      .def(
          "wait_signal",
          [](const Segments& self, uint32_t rank, uint32_t ring, uint32_t index, uint64_t at_least,
             uint64_t timeout_ns) {
            return wait_signal(self, rank, checked_signal(self, rank, ring, index), at_least,
                               timeout_ns);
          },
          "rank"_a, "ring"_a, "index"_a, "at_least"_a, "timeout_ns"_a);
}

void bind_ring(nb::module_& module) {
  nb::class_<Ring>(module, "Ring")
      .def(nb::init<std::shared_ptr<Segments>, uint32_t, uint32_t>(), "segments"_a, "index"_a,
           "batch"_a)
      .def(
          "write",
          [](Ring& self, uint32_t rank, uint32_t source, uint32_t destination, uint32_t units,
             uint32_t signal, uint32_t advance, uint64_t timeout_ns) {
            return push_write(self, Write{rank, source, destination, units, signal, advance},
                              timeout_ns);
          },
          "rank"_a, "source"_a, "destination"_a, "units"_a, "signal"_a, "advance"_a, "timeout_ns"_a)
      .def("signal", &push_signal, "rank"_a, "signal"_a, "advance"_a, "timeout_ns"_a)
      .def("atomic_add", &push_add, "rank"_a, "word"_a, "operand"_a, "timeout_ns"_a)
      .def("atomic_cas", &push_cas, "rank"_a, "word"_a, "expected"_a, "value"_a, "timeout_ns"_a)
      .def(
          "result",
          [](const Ring& self, uint64_t ticket) {
            need_attached(self.segments());
            return self.result(ticket);
          },
          "ticket"_a)
      .def(
          "drain",
          [](Ring& self, uint64_t timeout_ns) {
            return add(self, pack_drain(self.next_ticket()), timeout_ns);
          },
          "timeout_ns"_a)
      .def(
          "barrier",
          [](Ring& self, uint64_t timeout_ns, bool rail) {
            return add(self, pack_barrier(rail), timeout_ns);
          },
          "timeout_ns"_a, "rail"_a = false)
      .def("push", &push_list, "commands"_a.noconvert(), "timeout_ns"_a)
      .def(
          "flush",
          [](Ring& self, uint64_t timeout_ns) {
            need_attached(self.segments());
            return status_of(without_gil([&] { return self.flush(timeout_ns); }));
          },
          "timeout_ns"_a)
      .def(
          "wait",
          [](Ring& self, uint64_t ticket, uint64_t timeout_ns) {
            need_attached(self.segments());
            if (ticket >= self.next_ticket()) {
              throw std::invalid_argument("ticket " + std::to_string(ticket) +
                                          " was not given out yet by this ring");
            }
            return status_of(without_gil([&] { return self.wait(ticket, timeout_ns); }));
          },
          "ticket"_a, "timeout_ns"_a)
      .def_prop_ro("next_ticket", &Ring::next_ticket)
      .def_prop_ro("depth", [](const Ring& self) { return self.segments().geometry().depth; })
      .def("completed",
           [](const Ring& self) {
             need_attached(self.segments());
             return self.completed();
           })
      .def("tail",
           [](const Ring& self) {
             need_attached(self.segments());
             return self.tail();
           })
      .def("refused", [](const Ring& self) {
        need_attached(self.segments());
        const Refused refused = self.refused();
        return std::tuple(refused.count, refused.last_ticket, refused.last_reason);
      });
}

}  // namespace
}  // namespace epfabric::host

NB_MODULE(_producer, module) {
  module.doc() = "The producing end of EPFabric's rings for a CPU process.";
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const epfabric::host::RingBusy&) {
      PyErr_SetString(PyExc_RuntimeError,
                      "another thread is using this ring: give each thread a ring of its own");
    }
  });
  module.attr("DONE") = static_cast<uint8_t>(epfabric::Waited::kDone);
  module.attr("ABORTED") = static_cast<uint8_t>(epfabric::Waited::kAborted);
  module.attr("TIMED_OUT") = static_cast<uint8_t>(epfabric::Waited::kTimedOut);
  module.attr("MASKED") = epfabric::host::kMasked;
  epfabric::host::bind_packing(module);
  epfabric::host::bind_segments(module);
  epfabric::host::bind_ring(module);
}
