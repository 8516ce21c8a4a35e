#ifndef CONDENSE_TESTS_SUPPORT_METRIC_VALUE_H_
#define CONDENSE_TESTS_SUPPORT_METRIC_VALUE_H_

// One number of what /metrics serves.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "metrics/metrics.h"

namespace condense {

// `series`: name and labels as they are served. Fails the test if there is none.
inline double MetricValue(const Metrics& metrics, const std::string& series) {
  const std::string text = "\n" + metrics.Serialize();
  const size_t at = text.find("\n" + series + " ");
  if (at == std::string::npos) {
    ADD_FAILURE() << "no " << series;
    return 0.0;
  }
  return std::strtod(text.c_str() + at + series.size() + 2, nullptr);
}

}  // namespace condense

#endif  // CONDENSE_TESTS_SUPPORT_METRIC_VALUE_H_
