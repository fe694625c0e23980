// Runs small threads of real code under every execution that C++'s memory model allows, also those
// in which a load sees a store that its own thread's later stores led to (no order between relaxed
// accesses is taken for granted, so whatever a CPU or a GPU may reorder is covered).
//
// How: each thread runs alone, again and again. Where it loads a word of a thread that ran before,
// every store of that run is tried; where it loads one of a later thread, every store that the
// trial declares, and the later thread has to make it. What is left are the executions that keep
// C++'s rules: happens-before without a cycle, and coherence. Each word has one thread that stores
// to it, so that the order of its stores is that thread's.
//
// modelled.h puts load(), store() and fence() in place of the compiler's. Used by *_model.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace model {

struct Event {
  enum class Kind : uint8_t { kLoad, kStore, kFence } kind;
  int order;     // __ATOMIC_…
  int location;  // of a load or store
  int index;     // which store of the location: 0 is its first content
  uint64_t value;
};

using Events = std::vector<Event>;

// Thrown through the code under test: this run tells nothing that another one does not.
struct Abandon {};

// A load: the stores that it may see, and the one that it sees in this run.
struct Choice {
  std::vector<std::pair<int, uint64_t>> options;  // index and value
  size_t at = 0;
};

class World;

// The thread that runs now.
class Run {
 public:
  explicit Run(World& world) : world_(world) {}

  // The word at `address` is the location of that name, in this run.
  void bind(const std::string& location, const void* address);
  // What must hold; the first thing that does not is remembered.
  void expect(bool holds, const std::string& what);
  // Where this run can only wait: nothing that comes later in it matters.
  void assume(bool holds) {
    if (!holds) throw Abandon{};
  }

  // What the last load saw.
  uint64_t last() const { return events_.back().value; }

  uint64_t load(const uint64_t* word, int order);
  void store(uint64_t* word, uint64_t value, int order);
  void fence(int order) { events_.push_back({Event::Kind::kFence, order, -1, 0, 0}); }

 private:
  friend class World;

  uint64_t choose(int location, int order);
  std::vector<std::pair<int, uint64_t>> options(int location, int order);
  int located(const void* address) const;

  World& world_;
  int thread_ = 0;
  std::vector<std::pair<const void*, int>> bound_;
  Events events_;
  std::vector<int> stores_;  // by location: how many by this thread
  std::vector<int> seen_;    // by location: the newest store that it loaded
  std::vector<Choice> trail_;
  size_t step_ = 0;
  std::string violation_;
};

struct Result {
  uint64_t executions = 0;
  uint64_t violations = 0;
  std::string first;  // what the first violation is, with its execution
};

class World {
 public:
  using Body = std::function<void(Run&)>;

  int thread(const std::string& name, Body body);
  // A word that only `writer` stores to, at first 0. `values`: what its stores may be, in order;
  // needed where a thread that was added before the writer loads it.
  void location(const std::string& name, int writer, std::vector<uint64_t> values = {});
  // Explores everything, or up to the first violation.
  Result check();
  // Explores and prints; false for a violation, or where nothing could be run to its end.
  bool report(const std::string& trial);

 private:
  friend class Run;
  struct Location {
    std::string name;
    int writer;
    std::vector<uint64_t> values;  // from index 1 on
  };
  struct Thread {
    std::string name;
    Body body;
  };
  struct Finished {
    Events events;
    std::string violation;
  };

  void explore(size_t thread, const std::function<void(Run&)>& visit);
  void combine(size_t thread);
  bool consistent(const Events* partial, int thread) const;
  std::string describe() const;

  std::vector<Thread> threads_;
  std::vector<Location> locations_;
  std::vector<Finished> finished_;  // of the threads before the one that runs
  Result result_;
};

// Of the thread that runs; plain ones between runs.
uint64_t load(const uint64_t* word, int order);
void store(uint64_t* word, uint64_t value, int order);
void fence(int order);

}  // namespace model
