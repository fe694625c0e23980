// Regions that no CPU may touch, as GPU memory is, by real dma-bufs (of vgem, a DRM device without
// hardware). Soft RoCE of this kernel takes no dma-buf, so that registering one is played at the
// seam to libibverbs: the NIC gets ordinary memory that stands for the device's, under the same
// addresses. The agent has no mapping of either: a CPU that touched such a region would end the
// program with SIGSEGV.
#include <dlfcn.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <map>
#include <random>

#include "cores.h"
#include "ends.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr uint32_t kHalf = kBytes / 2 / kUnitBytes;  // units

// As in the kernel's drm.h and drm_mode.h, which Debian does not install.
struct DumbBuffer {
  uint32_t height, width, bits, flags, handle, pitch;
  uint64_t bytes;
};
struct Exported {
  uint32_t handle, flags;
  int32_t fd;
};
constexpr unsigned long kMakeDumb = _IOWR('d', 0xB2, DumbBuffer),
                        kExport = _IOWR('d', 0x2D, Exported);

// Memory of another device, and its dma-buf.
struct Device {
  static inline std::map<ino_t, std::byte*> all;  // by dma-buf
  FileDescriptor dmabuf;
  std::byte* bytes = nullptr;

  Device() {
    REQUIRE(std::system("modprobe vgem") == 0);
    const FileDescriptor card(::open("/dev/dri/card0", O_RDWR | O_CLOEXEC));
    REQUIRE(card.get() >= 0);
    DumbBuffer made{1, kBytes / 4, 32, 0, 0, 0, 0};
    REQUIRE(::ioctl(card.get(), kMakeDumb, &made) == 0);
    Exported out{made.handle, O_CLOEXEC | O_RDWR, -1};
    REQUIRE(::ioctl(card.get(), kExport, &out) == 0);
    dmabuf = FileDescriptor(out.fd);
    void* at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    bytes = static_cast<std::byte*>(at);
    all[inode(dmabuf.get())] = bytes;
  }
  ~Device() {
    all.erase(inode(dmabuf.get()));
    ::munmap(bytes, kBytes);
  }
  Device(const Device&) = delete;
  static ino_t inode(int fd) {
    struct stat info{};
    return ::fstat(fd, &info) == 0 ? info.st_ino : 0;
  }
};

struct Played {
  static inline Ibverbs real{};
  using RegisterAt = ibv_mr* (*)(ibv_pd*, void*, size_t, uint64_t, int);
  static inline RegisterAt register_at = nullptr;

  Played() {
    real = ibverbs();
    register_at = reinterpret_cast<RegisterAt>(
        ::dlsym(::dlopen("libibverbs.so.1", RTLD_NOW), "ibv_reg_mr_iova"));
    const bool found = register_at != nullptr;
    REQUIRE(found);
    const_cast<Ibverbs&>(ibverbs()).register_dmabuf_mr =
        [](ibv_pd* domain, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access) {
          const auto found = Device::all.find(Device::inode(fd));
          if (found == Device::all.end() || offset + bytes > kBytes) {
            errno = EINVAL;
            return static_cast<ibv_mr*>(nullptr);
          }
          return register_at(domain, found->second + offset, bytes, iova, access);
        };
  }
  ~Played() { const_cast<Ibverbs&>(ibverbs()) = real; }
  Played(const Played&) = delete;
};

struct Bed {
  Played played;  // ends last
  std::vector<Device> devices;
  std::vector<std::unique_ptr<Core>> cores;
  std::vector<RankPod> pods;

  // Ranks 0 and 1 on one node, 2 on another; 0 and 2 have memory of a device, 1 of the host.
  explicit Bed(uint32_t stripes) : devices(3) {
    const std::vector<std::vector<uint32_t>> nodes{{0, 1}, {2}};
    for (const char end : {'a', 'b'}) {
      CoreSettings settings;
      settings.address = "127.0.2.1";
      settings.stripes = stripes;
      settings.ports = {port_at(end, 0), port_at(end, 1)};
      cores.push_back(std::make_unique<Core>(settings));
    }
    pods.resize(3);
    for (uint32_t rank = 0; rank < 3; ++rank) {
      pods[rank].session = cores[rank / 2]->open_session({1, {rank, 3, 2, 16, 4}, {-1, -1}});
      Session& session = *pods[rank].session;
      if (rank == 1) {
        pods[1].region_fd = FileDescriptor(::memfd_create("host", MFD_CLOEXEC | MFD_ALLOW_SEALING));
        const std::vector<std::byte> zeros(kBytes);
        REQUIRE(::write(pods[1].region_fd.get(), zeros.data(), kBytes) == ssize_t{kBytes});
        session.register_memfd(pods[1].region_fd.get(), kBytes);
      } else {
        session.register_dmabuf(devices[rank].dmabuf.get(), kBytes);
      }
      add_rings(pods[rank]);
    }
    std::vector<std::thread> opening;
    for (uint32_t node = 0; node < 2; ++node) {
      opening.emplace_back([this, node, &nodes] {
        std::vector<std::shared_ptr<Session>> local;
        std::vector<RemoteRank> remote;
        for (uint32_t rank = 0; rank < 3; ++rank) {
          const auto& session = pods[rank].session;
          if (rank / 2 == node)
            local.push_back(session);
          else
            remote.push_back({rank, rank / 2, encode(session->describe())});
        }
        cores[node]->open_epoch({1, 1, 0, kTestLimitNs, nodes}, local, remote);
      });
    }
    for (std::thread& thread : opening) thread.join();
    for (const auto& core : cores) core->start_epoch(1);
  }
  std::byte* memory(uint32_t rank) { return rank == 1 ? pods[1].memory() : devices[rank].bytes; }
  // Whether `units` from the first half of one's memory came to the second half of the other's.
  bool sends(uint32_t from, uint32_t to, uint32_t units, uint64_t times) {
    std::mt19937_64 random(std::random_device{}());
    auto* words = reinterpret_cast<uint64_t*>(memory(from));
    for (uint64_t i = 0; i < units * 2; ++i) words[i] = random();
    std::memset(memory(to) + kBytes / 2, 0xFF, kBytes / 2);
    Slot slot{};
    if (!pack_write({to, 0, kHalf, units, 1, 1}, slot) || !pods[from].push(0, slot)) return false;
    const uint64_t* word = pods[to].session->segments().signal(from, 0, 1);
    if (wait_at_least(word, times, pods[to].aborts(), kTestLimitNs) != Waited::kDone) return false;
    return std::memcmp(memory(to) + kBytes / 2, memory(from), units * kUnitBytes) == 0;
  }
  uint64_t refused(uint32_t rank) {
    return pods[rank]
        .session->rings()[0]
        ->count()
        .refused[static_cast<size_t>(Refusal::kUnsupported)]
        .get();
  }
  void close() {
    for (const auto& core : cores) core->close_epoch(1);
    for (RankPod& pod : pods) pod.session->close(kTestLimitNs);
    for (const auto& core : cores) core->close();
  }
};

}  // namespace

TEST_CASE("what ranks of two nodes have in memory that no CPU may touch goes by their NICs alone") {
  for (const uint32_t stripes : {1u, 2u}) {
    CAPTURE(stripes);
    Bed bed(stripes);
    uint64_t times = 0;
    // 1 and 2 units would be carried by the WR itself; the last are several stripes.
    for (const uint32_t units : {1u, 2u, 448u, kHalf}) {
      times += 1;
      CHECK(bed.sends(0, 2, units, times));
      CHECK(bed.sends(2, 0, units, times));
      CHECK(bed.sends(1, 2, units, times));
      CHECK(bed.sends(2, 1, units, times));
    }
    CHECK(bed.pods[0].run(0, pack_drain(bed.pods[0].rings[0].head)));
    for (const auto& core : bed.cores) CHECK(core->failure(1) == "");
    bed.close();
  }
}

TEST_CASE("what a CPU would have to do in memory that it may not touch is refused, and goes on") {
  Bed bed(1);
  Slot slot{};
  for (const auto& [from, to] : {std::pair{0u, 1u}, {1u, 0u}, {0u, 0u}}) {
    const uint64_t before = bed.refused(from);
    REQUIRE(pack_write({to, 0, kHalf, 4, 1, 1}, slot));
    CHECK(bed.pods[from].run(0, slot));
    CHECK(bed.refused(from) == before + 1);
  }
  // Also from another node, where the agent of the owner would apply it.
  for (const auto& [from, to] : {std::pair{1u, 0u}, {2u, 0u}, {1u, 2u}}) {
    Slot add{};
    REQUIRE(pack_atomic(Op::kAdd, to, 8, 1, add));
    const uint64_t before = bed.refused(from);
    CHECK(bed.pods[from].run(0, add));
    CHECK(bed.refused(from) == before + 1);
  }
  Slot add{};
  REQUIRE(pack_atomic(Op::kAdd, 1, 8, 1, add));
  CHECK(bed.pods[2].run(0, add));
  CHECK(bed.refused(2) == 1);
  for (const auto& core : bed.cores) CHECK(core->failure(1) == "");
  CHECK(bed.sends(0, 2, 4, 1));
  bed.close();
}

TEST_CASE("what is no dma-buf, or shorter than it is said to be, is refused") {
  Played played;
  Device device;
  CoreSettings settings;
  settings.address = "127.0.2.1";
  settings.ports = {port_at('a', 0)};
  Core core(settings);
  const auto session = core.open_session({1, {0, 1, 2, 16, 4}, {-1, -1}});
  const FileDescriptor other_file(::memfd_create("no dma-buf", MFD_CLOEXEC));
  REQUIRE(::ftruncate(other_file.get(), kBytes) == 0);
  CHECK_THROWS_AS(session->register_dmabuf(other_file.get(), kBytes), NativeError);
  CHECK_THROWS_AS(session->register_dmabuf(device.dmabuf.get(), 2 * kBytes), NativeError);
  CHECK_THROWS_AS(session->register_dmabuf(device.dmabuf.get(), 100), NativeError);
  CHECK(session->register_dmabuf(device.dmabuf.get(), kBytes).offset == 0);
  CHECK(session->register_dmabuf(device.dmabuf.get(), kBytes).offset == kBytes);
  session->close(kTestLimitNs);
  core.close();
  Core other(CoreSettings{});
  const auto alone = other.open_session({1, {0, 1, 2, 16, 4}, {-1, -1}});
  CHECK_THROWS_AS(alone->register_dmabuf(device.dmabuf.get(), kBytes), NativeError);
  alone->close(kTestLimitNs);
  other.close();
}
