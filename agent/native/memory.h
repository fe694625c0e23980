// RAII for file descriptors and mappings; used by segments, regions and mailboxes.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "error.h"

namespace epfabric::agent {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { reset(); }
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }
  // The caller closes it.
  int release() { return std::exchange(fd_, -1); }
  FileDescriptor duplicate() const {
    FileDescriptor copy(::fcntl(fd_, F_DUPFD_CLOEXEC, 0));
    if (copy.get() < 0) throw system_error("a file descriptor cannot be duplicated");
    return copy;
  }

 private:
  int fd_ = -1;
};

class Mapping {
 public:
  Mapping() = default;
  // Shared, writable mapping of a descriptor. MADV_DONTFORK: no child of the agent keeps it.
  Mapping(int fd, uint64_t bytes, const std::string& what) : Mapping(bytes, MAP_SHARED, fd, what) {}
  // Zeroed memory that costs nothing until it is touched.
  static Mapping anonymous(uint64_t bytes, const std::string& what) {
    return Mapping(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, what);
  }
  // Addresses without memory: whoever touches one ends with SIGSEGV.
  static Mapping addresses(uint64_t bytes, const std::string& what) {
    Mapping out = anonymous(bytes, what);
    if (::mprotect(out.data_, bytes, PROT_NONE) != 0)
      throw system_error("addresses for " + std::to_string(bytes) + " bytes of " + what +
                         " cannot be kept");
    return out;
  }
  Mapping(Mapping&& other) noexcept { swap(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Mapping() { reset(); }
  void reset() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
  }
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Mapping(uint64_t bytes, int flags, int fd, const std::string& what) {
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (data == MAP_FAILED) {
      throw system_error("mapping " + std::to_string(bytes) + " bytes of " + what + " failed");
    }
    data_ = static_cast<std::byte*>(data);
    bytes_ = bytes;
    ::madvise(data, bytes, MADV_DONTFORK);
  }
  void swap(Mapping& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace epfabric::agent
