// The one exception of the native core, for set-up and tear-down only: nothing on the proxies' path
// throws. module.cc turns it into epfabric_agent._native.NativeError.
#pragma once

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace epfabric::agent {

class NativeError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A NativeError for a failed system call: "what: reason".
inline NativeError system_error(const std::string& what, int error = errno) {
  return NativeError(what + ": " + std::strerror(error));
}

namespace detail {

// Adds a reason to those that there are.
inline void add_reason(std::string& out, const std::string& why) {
  if (why.empty() || out.find(why) != std::string::npos) return;
  out += (out.empty() ? "" : "; ") + why;
}

}  // namespace detail

// All are made, also where one fails; check() throws the first one's reason.
class Attempts {
 public:
  template <class Call>
  void make(Call&& call) {
    try {
      call();
    } catch (const NativeError& failed) {
      if (error_.empty()) error_ = failed.what();
    }
  }
  void check() const {
    if (!error_.empty()) throw NativeError(error_);
  }

 private:
  std::string error_;
};

}  // namespace epfabric::agent
