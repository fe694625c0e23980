// Checks, maps and seals the memory that a pod registers. A memfd that the pod could still shrink,
// or that has holes, would let the pod kill the agent (SIGBUS) or charge it for the pages.
#include "region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

namespace epfabric::agent {
namespace {

constexpr int kWanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

void check_bytes(uint64_t bytes) {
  if (bytes == 0 || bytes % kPageBytes != 0)
    throw NativeError("a region has a multiple of 4096 bytes, not " + std::to_string(bytes));
}

void check_whole(int fd, uint64_t bytes) {
  struct stat info{};
  if (::fstat(fd, &info) != 0)
    throw system_error("the region's file descriptor cannot be examined");
  if (static_cast<uint64_t>(info.st_size) != bytes) {
    throw NativeError("the region's memfd has " + std::to_string(info.st_size) + " bytes, not " +
                      std::to_string(bytes) +
                      ": set its size with ftruncate before registering it");
  }
  const off_t hole = ::lseek(fd, 0, SEEK_HOLE);
  if (hole < info.st_size || static_cast<uint64_t>(info.st_blocks) * 512 < bytes) {
    throw NativeError("the region's memfd has holes (first at byte " + std::to_string(hole) +
                      "): write to every page before registering it");
  }
}

// Of huge pages the holes cannot be seen, and a fault in one may be a SIGBUS.
void check_pages(int fd) {
  struct statfs info{};
  if (::fstatfs(fd, &info) != 0) throw system_error("the region's memfd cannot be examined");
  if (info.f_type != TMPFS_MAGIC) {
    throw NativeError("the region's memfd is not of ordinary pages: leave MFD_HUGETLB out");
  }
}

void check_seals(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0)
    throw NativeError("the region's file descriptor is not a memfd: use memfd_create()");
  if (seals & F_SEAL_SEAL) {
    throw NativeError(
        "the region's memfd cannot be sealed: create it with MFD_ALLOW_SEALING, leave the sealing "
        "to the "
        "agent, and register each memfd once");
  }
  if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) {
    throw NativeError("the region's memfd is sealed against writing: register one without seals");
  }
}

}  // namespace

Region map_region(int fd, uint64_t bytes, uint64_t offset) {
  check_bytes(bytes);
  check_seals(fd);
  check_pages(fd);
  check_whole(fd, bytes);
  Region region{Mapping(fd, bytes, "a region"), {offset, offset + bytes}};
  if (::fcntl(fd, F_ADD_SEALS, kWanted) != 0) {
    throw system_error("the region's memfd cannot be sealed: open it for writing");
  }
  check_whole(fd, bytes);  // again: from here on the pod cannot change it any more
  return region;
}

// Of what its exporter made nothing can be taken away while there is a descriptor.
Region keep_dmabuf(int fd, uint64_t bytes, uint64_t offset) {
  check_bytes(bytes);
  struct statfs info{};
  if (::fstatfs(fd, &info) != 0) throw system_error("the region's dma-buf cannot be examined");
  if (info.f_type != DMA_BUF_MAGIC)
    throw NativeError("the region's file descriptor is not a dma-buf: export GPU memory as one");
  const off_t size = ::lseek(fd, 0, SEEK_END);
  if (size < 0 || static_cast<uint64_t>(size) < bytes)
    throw NativeError("the region's dma-buf has " + std::to_string(size) + " bytes, not " +
                      std::to_string(bytes));
  FileDescriptor kept(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (kept.get() < 0) throw system_error("the region's dma-buf cannot be kept");
  return {Mapping::addresses(bytes, "a region"), {offset, offset + bytes}, std::move(kept)};
}

}  // namespace epfabric::agent
