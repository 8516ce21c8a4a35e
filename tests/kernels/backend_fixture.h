#ifndef CONDENSE_TESTS_KERNELS_BACKEND_FIXTURE_H_
#define CONDENSE_TESTS_KERNELS_BACKEND_FIXTURE_H_

// What the op tests share: the list of backends under test, arrays in backend memory, random
// inputs, error measures.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/support/reference_backend.h"

namespace condense {

// A backend under test. To put a new backend under every op test, add its line to TestedBackends().
struct BackendInstance {
  std::string name;  // letters, digits and underscores
  std::function<absl::StatusOr<std::unique_ptr<Backend>>()> make;
};
inline void PrintTo(const BackendInstance& instance, std::ostream* out) { *out << instance.name; }
// What this machine can run, the reference itself included: it must keep the exact equalities too.
std::vector<BackendInstance> TestedBackends();

// Largest normalised error ||actual - expected|| / ||expected|| that a test accepts.
namespace tolerance {
inline constexpr double kElementwise = 1e-6;
inline constexpr double kAttention = 2e-6;
// Sums of float products: weights of kF32, kF16 and kBf16 are exact in float.
inline constexpr double kMatmulFloat = 2e-6;
// Activations are 12 bits per 32 columns: half a step of amax / 2032, over normal inputs.
inline constexpr double kMatmulPacked = 1e-3;
}  // namespace tolerance

double NormalizedError(const std::vector<float>& actual, const std::vector<float>& expected);
// Largest |actual - expected| / |expected| over elements whose |expected| is at least `floor`.
double LargestRelativeError(const std::vector<float>& actual, const std::vector<float>& expected,
                            double floor);
bool SameBits(const std::vector<float>& a, const std::vector<float>& b);

// Standard normal values.
std::vector<float> RandomFloats(int64_t size, uint32_t seed);

// An array in backend memory.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Backend* backend, int64_t size) : backend_(backend), size_(size) {
    absl::StatusOr<Buffer> buffer = backend->Allocate(size * static_cast<int64_t>(sizeof(T)));
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    if (buffer.ok()) buffer_ = *std::move(buffer);
  }
  DeviceArray(Backend* backend, const std::vector<T>& values)
      : DeviceArray(backend, static_cast<int64_t>(values.size())) {
    backend->CopyToDevice(buffer_.data(), reinterpret_cast<const std::byte*>(values.data()),
                          buffer_.size_bytes());
  }

  T* get() const { return buffer_.as<T>(); }
  std::vector<T> Read() const {
    std::vector<T> values(size_);
    backend_->CopyToHost(reinterpret_cast<std::byte*>(values.data()), buffer_.data(),
                         buffer_.size_bytes());
    EXPECT_TRUE(backend_->Synchronize().ok());
    return values;
  }

 private:
  Backend* backend_;
  int64_t size_;
  Buffer buffer_;
};

class BackendFixture : public testing::TestWithParam<BackendInstance> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Backend>> backend = GetParam().make();
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }
  Backend* backend() { return backend_.get(); }
  Backend* reference() { return &reference_; }

 private:
  std::unique_ptr<Backend> backend_;
  ReferenceBackend reference_;
};

inline std::string BackendInstanceName(const testing::TestParamInfo<BackendInstance>& info) {
  return info.param.name;
}

}  // namespace condense

#endif  // CONDENSE_TESTS_KERNELS_BACKEND_FIXTURE_H_
