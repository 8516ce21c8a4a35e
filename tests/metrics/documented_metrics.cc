#include "tests/metrics/documented_metrics.h"

#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace condense {
namespace {

// What the samples of one family show.
struct Samples {
  std::map<std::string, std::set<std::string>> label_values;
  std::vector<std::string> edges;
};

// `sample`: name{label="value",...} number. REQUIRES: no quotes or commas in the values.
void ReadLabels(const std::string& sample, Samples* samples) {
  const std::string labels = sample.substr(0, sample.find('}')).substr(sample.find('{') + 1);
  for (const std::string& label : std::vector<std::string>(absl::StrSplit(labels, ','))) {
    const std::vector<std::string> parts = absl::StrSplit(label, '"');
    if (parts.size() != 3) continue;
    const std::string name = parts[0].substr(0, parts[0].size() - 1);
    const std::string& value = parts[1];
    if (name == "model" || value == "+Inf") continue;
    if (name != "le") {
      samples->label_values[name].insert(value);
    } else if (samples->edges.empty() || std::stod(samples->edges.back()) < std::stod(value)) {
      samples->edges.push_back(value);  // ascending, so the edges of one series only
    }
  }
}

std::string FormatLabels(const std::string& family, const Samples& samples) {
  std::vector<std::string> labels;
  for (const auto& [name, values] : samples.label_values) {
    labels.push_back(absl::EndsWith(family, "_info")
                         ? name
                         : absl::StrFormat("%s: %s", name, absl::StrJoin(values, ", ")));
  }
  return absl::StrJoin(labels, ", ");
}

}  // namespace

MetricRows ReadMetricsPage(const std::string& path) {
  MetricRows rows;
  std::ifstream page(path);
  for (std::string line; std::getline(page, line);) {
    if (!absl::StartsWith(line, "| `condense_")) continue;
    std::vector<std::string> cells = absl::StrSplit(line, '|');
    for (std::string& cell : cells) absl::StripAsciiWhitespace(&cell);
    if (cells.size() != 8) continue;
    const std::string name = cells[1].substr(1, cells[1].size() - 2);
    rows[name] = {cells[2], cells[3], cells[4], cells[5], cells[6]};
  }
  return rows;
}

MetricRows ParseExposition(const std::string& exposition) {
  MetricRows rows;
  std::map<std::string, Samples> samples;
  std::string family;
  std::istringstream text(exposition);
  for (std::string line; std::getline(text, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
    if (words[0] == "#" && words.size() == 4) {
      family = words[2];
      (words[1] == "HELP" ? rows[family].meaning : rows[family].type) = words[3];
    } else if (absl::StartsWith(line, family)) {
      ReadLabels(line, &samples[family]);
    }
  }
  for (auto& [name, row] : rows) {
    row.labels = FormatLabels(name, samples[name]);
    row.buckets = absl::StrJoin(samples[name].edges, " ");
  }
  return rows;
}

std::string FormatRow(const std::string& name, const MetricRow& row) {
  return absl::StrFormat("| `%s` | %s | %s | %s | %s | %s |", name, row.type, row.labels, row.unit,
                         row.buckets, row.meaning);
}

}  // namespace condense
