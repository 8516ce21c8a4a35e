#ifndef CONDENSE_TESTS_METRICS_DOCUMENTED_METRICS_H_
#define CONDENSE_TESTS_METRICS_DOCUMENTED_METRICS_H_

// Metric families as rows of docs/metrics.md: read from that page, or made from what is served.

#include <map>
#include <string>

namespace condense {

struct MetricRow {
  std::string type;
  std::string labels;  // "outcome: error, length"; values sorted; none for an info metric
  std::string unit;    // of the page only
  std::string buckets;
  std::string meaning;  // the help text
};

// Keyed by the metric's name.
using MetricRows = std::map<std::string, MetricRow>;

MetricRows ReadMetricsPage(const std::string& path);
// `exposition`: the text format that Prometheus scrapes. Leaves out the label `model`.
MetricRows ParseExposition(const std::string& exposition);
// The row as it would stand on the page.
std::string FormatRow(const std::string& name, const MetricRow& row);

}  // namespace condense

#endif  // CONDENSE_TESTS_METRICS_DOCUMENTED_METRICS_H_
