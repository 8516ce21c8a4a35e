// Runs the kept inputs of one fuzzer, so that its properties are tested by every compiler and
// without libFuzzer.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace condense {
namespace {

TEST(CONDENSE_FUZZ_SUITE, KeptInputsPass) {
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(CONDENSE_FUZZ_CORPUS)) {
    SCOPED_TRACE(entry.path());
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()),
              0);
    ++inputs;
  }
  EXPECT_GT(inputs, 0) << CONDENSE_FUZZ_CORPUS;
}

}  // namespace
}  // namespace condense
