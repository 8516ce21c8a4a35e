#ifndef CONDENSE_TOOLS_EVAL_LINE_CHART_H_
#define CONDENSE_TOOLS_EVAL_LINE_CHART_H_

// A chart of lines and points as one SVG element that needs nothing around it.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/eval/quality_stats.h"

namespace condense {

struct ChartPoint {
  double x = 0.0;
  double y = 0.0;
  std::optional<Interval> interval;  // of y
  std::string note;                  // shown when pointed at
};

struct ChartSeries {
  std::string name;
  bool background = false;  // grey and dashed: something to compare with
  bool line = true;         // joins the points in their order
  std::vector<ChartPoint> points;
};

struct ChartFrame {
  std::string title, x_label, y_label;
  bool log_y = false;             // values of 0 or less are drawn on the lower edge
  double x_start = 0.0;           // where the axis begins
  std::optional<double> y_limit;  // no tick goes beyond: 100 for percent
  // The axis is for the others: what lies in the background is cut off where it leaves them far
  // behind.
  bool cut_background = false;
  // A dotted horizontal line.
  std::optional<double> mark;
  std::string mark_label;
};

// Text and axes have the colour of the text around the chart, series have colours that are readable
// on light and dark. Points with a number that is not finite are left out.
std::string DrawLineChart(const ChartFrame& frame, const std::vector<ChartSeries>& series);

// For text and attributes of HTML and SVG; control characters become U+FFFD.
std::string EscapeXml(std::string_view text);

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_LINE_CHART_H_
