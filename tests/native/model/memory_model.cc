// The exploration itself: runs of one thread, and putting them together.
#include "memory_model.h"

#include <array>
#include <bitset>
#include <cstdio>
#include <cstdlib>

namespace model {
namespace {

constexpr size_t kMost = 128;  // events of an execution
using Bits = std::bitset<kMost>;

Run* current = nullptr;

bool releases(int order) { return order >= __ATOMIC_RELEASE; }
bool acquires(int order) {
  return order == __ATOMIC_ACQUIRE || order == __ATOMIC_CONSUME || order >= __ATOMIC_ACQ_REL;
}

[[noreturn]] void give_up(const std::string& what) {
  std::fprintf(stderr, "model: %s\n", what.c_str());
  std::exit(2);
}

}  // namespace

void Run::bind(const std::string& location, const void* address) {
  for (size_t i = 0; i < world_.locations_.size(); ++i) {
    if (world_.locations_[i].name == location) return bound_.emplace_back(address, i), void();
  }
  give_up("no location " + location);
}

void Run::expect(bool holds, const std::string& what) {
  if (!holds && violation_.empty()) violation_ = what;
}

int Run::located(const void* address) const {
  for (const auto& [bound, location] : bound_) {
    if (bound == address) return location;
  }
  return -1;
}

// The stores that a load may see after what this thread has seen.
std::vector<std::pair<int, uint64_t>> Run::options(int location, int order) {
  const World::Location& at = world_.locations_[location];
  // The same load once more, in a loop, of the same store tells nothing.
  const bool again = !events_.empty() && events_.back().kind == Event::Kind::kLoad &&
                     events_.back().location == location && events_.back().order == order;
  const int oldest = seen_[location] + (again ? 1 : 0);
  std::vector<std::pair<int, uint64_t>> out;
  const auto offer = [&](int index, uint64_t value) {
    if (index < oldest) return;
    events_.push_back({Event::Kind::kLoad, order, location, index, value});
    if (world_.consistent(&events_, thread_)) out.emplace_back(index, value);
    events_.pop_back();
  };
  offer(0, 0);
  if (at.writer > thread_) {
    for (size_t i = 0; i < at.values.size(); ++i) offer(static_cast<int>(i) + 1, at.values[i]);
    return out;
  }
  for (const Event& event : world_.finished_[at.writer].events) {
    if (event.kind == Event::Kind::kStore && event.location == location)
      offer(event.index, event.value);
  }
  return out;
}

uint64_t Run::choose(int location, int order) {
  if (step_ == trail_.size()) trail_.push_back({options(location, order), 0});
  const Choice& choice = trail_[step_++];
  if (choice.options.empty()) throw Abandon{};
  const auto [index, value] = choice.options[choice.at];
  seen_[location] = index;
  events_.push_back({Event::Kind::kLoad, order, location, index, value});
  return value;
}

uint64_t Run::load(const uint64_t* word, int order) {
  const int location = located(word);
  if (location < 0 || world_.locations_[location].writer == thread_) return *word;
  return choose(location, order);
}

void Run::store(uint64_t* word, uint64_t value, int order) {
  *word = value;
  const int location = located(word);
  if (location < 0) return;
  World::Location& at = world_.locations_[location];
  if (at.writer != thread_) give_up("two threads store to " + at.name);
  const int index = ++stores_[location];
  events_.push_back({Event::Kind::kStore, order, location, index, value});
  if (!at.values.empty() && (static_cast<size_t>(index) > at.values.size() ||
                             at.values[static_cast<size_t>(index) - 1] != value))
    give_up("a store to " + at.name + " that the trial does not know: " + std::to_string(value));
}

uint64_t load(const uint64_t* word, int order) {
  return current == nullptr ? *word : current->load(word, order);
}
void store(uint64_t* word, uint64_t value, int order) {
  if (current == nullptr) *word = value;
  if (current != nullptr) current->store(word, value, order);
}
void fence(int order) {
  if (current != nullptr) current->fence(order);
}

int World::thread(const std::string& name, Body body) {
  threads_.push_back({name, std::move(body)});
  return static_cast<int>(threads_.size()) - 1;
}

void World::location(const std::string& name, int writer, std::vector<uint64_t> values) {
  locations_.push_back({name, writer, std::move(values)});
}

Result World::check() {
  finished_.clear();
  result_ = {};
  combine(0);
  return result_;
}

bool World::report(const std::string& trial) {
  const Result result = check();
  std::printf("%s: %llu executions%s%s\n", trial.c_str(),
              static_cast<unsigned long long>(result.executions),
              result.violations > 0 ? ", violated: " : "", result.first.c_str());
  std::fflush(stdout);
  return result.violations == 0 && result.executions > 0;
}

// Runs a thread once for each sequence of choices.
void World::explore(size_t thread, const std::function<void(Run&)>& visit) {
  std::vector<Choice> trail;
  do {
    Run run(*this);
    run.thread_ = static_cast<int>(thread);
    run.stores_.assign(locations_.size(), 0);
    run.seen_.assign(locations_.size(), 0);
    run.trail_ = std::move(trail);
    bool ended = true;
    current = &run;
    try {
      threads_[thread].body(run);
    } catch (const Abandon&) {
      ended = false;
    }
    current = nullptr;
    trail = std::move(run.trail_);
    if (ended) visit(run);
    while (!trail.empty() && trail.back().at + 1 >= trail.back().options.size()) trail.pop_back();
    if (!trail.empty()) trail.back().at += 1;
  } while (!trail.empty() && result_.violations == 0);
}

void World::combine(size_t thread) {
  if (thread == threads_.size()) {
    result_.executions += 1;
    for (const Finished& run : finished_) {
      if (run.violation.empty()) continue;
      result_.violations += 1;
      result_.first = run.violation + "\n" + describe();
      return;
    }
    return;
  }
  explore(thread, [&](Run& run) {
    if (!consistent(&run.events_, run.thread_)) return;
    // What earlier threads saw of this one's stores has to be there.
    for (const Finished& other : finished_) {
      for (const Event& event : other.events) {
        if (event.kind != Event::Kind::kLoad || event.index == 0) continue;
        if (locations_[event.location].writer != run.thread_) continue;
        if (event.index > run.stores_[event.location]) return;
      }
    }
    finished_.push_back({run.events_, run.violation_});
    combine(thread + 1);
    finished_.pop_back();
  });
}

// C++'s rules for the finished threads' events and those of one that still runs.
bool World::consistent(const Events* partial, int thread) const {
  struct Placed {
    const Event* event;
    int thread;
  };
  static std::vector<Placed> all;
  static std::vector<std::vector<int>> store_at;  // by location and index: where in `all`, or -1
  all.clear();
  store_at.resize(locations_.size());
  for (auto& stores : store_at) stores.assign(1, -1);
  for (int i = 0; i <= thread; ++i) {
    for (const Event& event : i < thread ? finished_[i].events : *partial) {
      if (event.kind == Event::Kind::kStore)
        store_at[event.location].push_back(static_cast<int>(all.size()));
      all.push_back({&event, i});
    }
  }
  const size_t n = all.size();
  if (n > kMost) give_up("an execution has too many events");
  std::array<Bits, kMost> before;  // before[i][j]: i happens before j
  for (size_t i = 0; i + 1 < n; ++i) {
    if (all[i].thread == all[i + 1].thread) before[i].set(i + 1);
  }
  // Synchronises-with: a release store or fence, and the acquire load or fence that sees it.
  for (size_t r = 0; r < n; ++r) {
    const Event& load = *all[r].event;
    if (load.kind != Event::Kind::kLoad) continue;
    const std::vector<int>& stores = store_at[load.location];
    if (load.index == 0 || static_cast<size_t>(load.index) >= stores.size()) continue;
    size_t from = static_cast<size_t>(stores[load.index]), to = r;
    bool released = releases(all[from].event->order), acquired = acquires(load.order);
    for (size_t f = from; !released && f-- > 0 && all[f].thread == all[from].thread;) {
      released = all[f].event->kind == Event::Kind::kFence && releases(all[f].event->order);
      if (released) from = f;
    }
    for (size_t f = r + 1; !acquired && f < n && all[f].thread == all[r].thread; ++f) {
      acquired = all[f].event->kind == Event::Kind::kFence && acquires(all[f].event->order);
      if (acquired) to = f;
    }
    if (released && acquired) before[from].set(to);
  }
  for (size_t k = 0; k < n; ++k) {
    for (size_t i = 0; i < n; ++i) {
      if (before[i][k]) before[i] |= before[k];
    }
  }
  for (size_t i = 0; i < n; ++i) {
    if (before[i][i]) return false;
    const Event& a = *all[i].event;
    if (a.kind == Event::Kind::kFence) continue;
    for (size_t j = 0; j < n; ++j) {
      const Event& b = *all[j].event;
      if (!before[i][j] || b.kind == Event::Kind::kFence || a.location != b.location) continue;
      // Coherence: nobody goes back, and a store comes after what was loaded before it.
      const bool strictly = b.kind == Event::Kind::kStore;
      if (strictly ? b.index <= a.index : b.index < a.index) return false;
    }
  }
  return true;
}

std::string World::describe() const {
  std::string out;
  for (size_t i = 0; i < finished_.size(); ++i) {
    out += "  " + threads_[i].name + ":\n";
    for (const Event& event : finished_[i].events) {
      static const char* const kOrders[] = {"relaxed", "consume", "acquire",
                                            "release", "acq_rel", "seq_cst"};
      out += "    ";
      if (event.kind == Event::Kind::kFence) {
        out += std::string("fence ") + kOrders[event.order] + "\n";
        continue;
      }
      char value[32];
      std::snprintf(value, sizeof(value), "%llx", static_cast<unsigned long long>(event.value));
      out += (event.kind == Event::Kind::kLoad ? "load " : "store ") +
             locations_[event.location].name + " " + value + " (" + std::to_string(event.index) +
             ", " + kOrders[event.order] + ")\n";
    }
  }
  return out;
}

}  // namespace model
