// Included first by a *_model.cc: the code that it includes afterwards loads, stores and fences in
// the model of memory_model.h. Nothing in that code is changed, so that the orders that the model
// sees are those that it was written with.
#pragma once

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "memory_model.h"

namespace model {

// In place of std::atomic: words of 8 bytes are the model's where the run bound them.
template <class T>
class Atomic {
 public:
  constexpr Atomic(T value = T{}) : value_(value) {}
  T load(std::memory_order order) const {
    if constexpr (sizeof(T) == 8) return model::load(&value_, static_cast<int>(order));
    return value_;
  }
  void store(T value, std::memory_order order) {
    if constexpr (sizeof(T) == 8) return model::store(&value_, value, static_cast<int>(order));
    value_ = value;
  }
  T fetch_add(T amount, std::memory_order) { return std::exchange(value_, value_ + amount); }
  T fetch_sub(T amount, std::memory_order) { return std::exchange(value_, value_ - amount); }
  const T* word() const { return &value_; }

 private:
  T value_;
};

}  // namespace model

namespace std {
template <class T>
using modelled_atomic = ::model::Atomic<T>;
}

#define atomic modelled_atomic
#define __atomic_load_n(word, order) ::model::load(word, order)
#define __atomic_store_n(word, value, order) ::model::store(word, value, order)
#define __atomic_thread_fence(order) ::model::fence(order)
#define private public  // to name the words that are to be watched
