// Things that need something done, in the order in which they came to need it: added and removed in
// constant time, and looked through by cursors that go on where they stopped. So a proxy's turn
// costs what it does, not what there is. Used by remote_transport.h for its links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace epfabric::agent {

// `place` is the item's own: 0 = not in the list.
template <class Item, uint32_t Item::* place>
class WorkList {
 public:
  // Starts again from the beginning where the list was put together anew in between.
  struct Cursor {
    uint64_t generation = 0;
    size_t at = 0;
    void pass() { at += 1; }
  };

  // No allocation after this as long as there are at most `most` items.
  void reserve(size_t most) { items_.reserve(2 * most + kSlack + 1); }
  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }

  void add(Item& item) {
    if (item.*place != 0) return;
    items_.push_back(&item);
    item.*place = static_cast<uint32_t>(items_.size());
    count_ += 1;
  }
  void remove(Item& item) {
    if (item.*place == 0) return;
    items_[item.*place - 1] = nullptr;
    item.*place = 0;
    count_ -= 1;
    if (count_ == 0 || items_.size() > 2 * count_ + kSlack) close_up();
  }
  // The items are gone.
  void forget() {
    items_.clear();
    count_ = 0;
    generation_ += 1;
  }

  // The first item at or behind the cursor, which then stands there; nullptr at the end.
  Item* at(Cursor& cursor) const {
    if (cursor.generation != generation_) cursor = {generation_, 0};
    while (cursor.at < items_.size() && items_[cursor.at] == nullptr) cursor.at += 1;
    return cursor.at < items_.size() ? items_[cursor.at] : nullptr;
  }

 private:
  static constexpr size_t kSlack = 16;

  void close_up() {
    size_t kept = 0;
    for (Item* item : items_) {
      if (item == nullptr) continue;
      items_[kept++] = item;
      item->*place = static_cast<uint32_t>(kept);
    }
    items_.resize(kept);
    generation_ += 1;
  }

  std::vector<Item*> items_;  // nullptr: it was removed
  size_t count_ = 0;
  uint64_t generation_ = 1;
};

}  // namespace epfabric::agent
