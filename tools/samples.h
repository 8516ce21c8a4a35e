#ifndef CONDENSE_TOOLS_SAMPLES_H_
#define CONDENSE_TOOLS_SAMPLES_H_

// A set of measured values and its percentiles.

#include <cstddef>
#include <vector>

namespace condense {

// Threads: thread-compatible.
class Samples {
 public:
  void Add(double value, size_t times = 1) { values_.insert(values_.end(), times, value); }
  void Add(const Samples& other) {
    values_.insert(values_.end(), other.values_.begin(), other.values_.end());
  }
  size_t count() const { return values_.size(); }
  // Of an empty set: 0.
  double Mean() const;
  // Linear between the two nearest values; `share` in [0, 1]. Of an empty set: 0.
  double Percentile(double share) const;
  double Median() const { return Percentile(0.5); }

 private:
  std::vector<double> values_;
};

}  // namespace condense

#endif  // CONDENSE_TOOLS_SAMPLES_H_
