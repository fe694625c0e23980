// libFuzzer's side of a target: `TARGET --seeds FOLDER` writes its seeds there and ends; else
// libFuzzer runs, with its own options.
#include "fuzz.h"

#include <filesystem>
#include <fstream>
#include <string>

namespace agent = epfabric::agent;

extern "C" int LLVMFuzzerInitialize(int* count, char*** values) {
  if (*count != 3 || std::string((*values)[1]) != "--seeds") return 0;
  const std::filesystem::path folder((*values)[2]);
  const auto all = agent::seeds();
  for (size_t i = 0; i < all.size(); ++i) {
    std::ofstream to(folder / ("seed-" + std::to_string(i)), std::ios::binary);
    to.write(reinterpret_cast<const char*>(all[i].data()),
             static_cast<std::streamsize>(all[i].size()));
    to.close();
    agent::require(!to.fail(), "a seed can be written");
  }
  std::_Exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  agent::Input input({reinterpret_cast<const std::byte*>(data), bytes});
  agent::fuzz(input);
  return 0;
}
