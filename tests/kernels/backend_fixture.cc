#include "tests/kernels/backend_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cpu/cpu_features.h"

namespace condense {

std::vector<BackendInstance> TestedBackends() {
  std::vector<BackendInstance> instances;
  instances.push_back({"reference", [] { return std::make_unique<ReferenceBackend>(); }});
  for (const cpu::CpuIsa isa : cpu::AvailableCpuIsas()) {
    for (const int threads : {1, 2}) {
      BackendOptions options;
      options.kind = "cpu";
      options.num_threads = threads;
      options.cpu_isa = cpu::CpuIsaName(isa);
      instances.push_back({"cpu_" + options.cpu_isa + "_" + std::to_string(threads),
                           [options] { return MakeBackend(options); }});
    }
  }
  return instances;
}

double NormalizedError(const std::vector<float>& actual, const std::vector<float>& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += (double{actual[i]} - expected[i]) * (double{actual[i]} - expected[i]);
    norm += double{expected[i]} * expected[i];
  }
  // NaN compares false with every bound, as it should.
  return norm == 0.0 ? std::sqrt(error) : std::sqrt(error / norm);
}

double LargestRelativeError(const std::vector<float>& actual, const std::vector<float>& expected,
                            double floor) {
  EXPECT_EQ(actual.size(), expected.size());
  double largest = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::abs(expected[i]) < floor) continue;
    const double error = std::abs((double{actual[i]} - expected[i]) / expected[i]);
    if (!(error <= largest)) largest = error;
  }
  return largest;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> RandomFloats(int64_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace condense
