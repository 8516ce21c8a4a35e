#include "tools/eval/line_chart.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "tools/format.h"

namespace condense {
namespace {

constexpr double kWidth = 560, kPlotHeight = 250;
constexpr double kLeft = 74, kRight = 16, kTop = 34, kBelowPlot = 46;
constexpr double kLegendRow = 18, kLetter = 6.6;  // pixels; widths of texts are estimated
constexpr const char* kColors[] = {"#2f7ed8", "#d9632f", "#2a9d68", "#a95bd0",
                                   "#c48a06", "#d6457f", "#1592a8", "#7a6ff0"};
constexpr char kBackgroundColor[] = "#8a8f98";

// Values of one axis and where they lie. In a logarithmic axis everything is the logarithm.
struct Axis {
  double low = 0.0, high = 1.0;    // of the values
  double first = 0.0, last = 1.0;  // pixels
  bool log = false;
  std::vector<double> ticks;  // values

  double Coordinate(double value) const { return log ? std::log10(value) : value; }
  double Place(double value) const {
    if (log && value < low) value = low;
    const double from = Coordinate(low), to = Coordinate(high);
    const double share = (Coordinate(value) - from) / (to - from);
    return first + share * (last - first);
  }
  bool Holds(double value) const { return log || (value >= low && value <= high); }
};

// 1, 2 or 5 times a power of ten.
double NiceStep(double span, int steps) {
  const double raw = span / steps;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * 0.999) return factor * power;
  }
  return 10.0 * power;
}

Axis LinearAxis(double low, double high, std::optional<double> limit) {
  if (!(high - low > 1e-9)) {
    low -= 0.5;
    high += 0.5;
  }
  const double step = NiceStep(high - low, 5);
  Axis axis;
  axis.low = std::floor(low / step) * step;
  axis.high = std::ceil(high / step) * step;
  if (limit.has_value() && axis.high > *limit) axis.high = *limit;
  const int count = static_cast<int>(std::lround((axis.high - axis.low) / step));
  for (int i = 0; i <= count; ++i) {
    const double tick = axis.low + i * step;
    axis.ticks.push_back(std::abs(tick) < step * 1e-6 ? 0.0 : tick);
  }
  return axis;
}

Axis LogAxis(double low, double high) {
  Axis axis;
  axis.log = true;
  const double from = std::floor(std::log10(low)), to = std::ceil(std::log10(high));
  axis.low = std::pow(10.0, from);
  axis.high = std::pow(10.0, std::max(to, from + 1));
  for (double e = from; e <= std::max(to, from + 1); ++e) axis.ticks.push_back(std::pow(10.0, e));
  return axis;
}

bool Finite(const ChartPoint& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

class Chart {
 public:
  Chart(const ChartFrame& frame, const std::vector<ChartSeries>& series)
      : frame_(frame), series_(series) {
    MakeAxes();
  }

  std::string Draw() {
    DrawFrame();
    int colors = 0;
    std::vector<std::string> color_of;
    for (const ChartSeries& series : series_) {
      color_of.push_back(series.background ? kBackgroundColor
                                           : kColors[colors++ % std::size(kColors)]);
    }
    // What is in the background is drawn first.
    for (const bool background : {true, false}) {
      for (size_t s = 0; s < series_.size(); ++s) {
        if (series_[s].background == background) DrawSeries(s, color_of[s]);
      }
    }
    const double height = DrawLegend(color_of);
    return absl::StrFormat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-label=\"%s\" "
        "viewBox=\"0 0 %g %g\" font-family=\"system-ui, sans-serif\" font-size=\"12\" "
        "fill=\"currentColor\">\n%s</svg>\n",
        EscapeXml(frame_.title), kWidth, height, out_);
  }

 private:
  void MakeAxes() {
    double x_high = frame_.x_start, y_low = INFINITY, y_high = -INFINITY;
    const auto take_y = [&](double y) {
      if (!std::isfinite(y) || (frame_.log_y && y <= 0)) return;
      y_low = std::min(y_low, y);
      y_high = std::max(y_high, y);
    };
    const bool foreground =
        std::any_of(series_.begin(), series_.end(),
                    [](const ChartSeries& series) { return !series.background; });
    for (const ChartSeries& series : series_) {
      for (const ChartPoint& point : series.points) {
        if (!Finite(point)) continue;
        x_high = std::max(x_high, point.x);
        if (series.background && frame_.cut_background && foreground) continue;
        take_y(point.y);
        if (point.interval.has_value()) take_y(point.interval->low);
        if (point.interval.has_value()) take_y(point.interval->high);
      }
    }
    if (frame_.mark.has_value()) take_y(*frame_.mark);
    if (!(y_low <= y_high)) {
      y_low = frame_.log_y ? 0.001 : 0.0;
      y_high = 1.0;
    }
    x_ = LinearAxis(frame_.x_start, x_high, std::nullopt);
    x_.low = frame_.x_start;
    std::erase_if(x_.ticks, [&](double tick) { return tick <= frame_.x_start; });
    x_.ticks.insert(x_.ticks.begin(), frame_.x_start);
    y_ = frame_.log_y ? LogAxis(y_low, y_high) : LinearAxis(y_low, y_high, frame_.y_limit);
    x_.first = kLeft;
    x_.last = kWidth - kRight;
    y_.first = kTop + kPlotHeight;
    y_.last = kTop;
  }

  void Line(double x1, double y1, double x2, double y2, const std::string& style) {
    absl::StrAppendFormat(&out_, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1,
                          y1, x2, y2, style);
  }
  void Text(double x, double y, const std::string& style, const std::string& text) {
    absl::StrAppendFormat(&out_, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, style,
                          EscapeXml(text));
  }

  void DrawFrame() {
    constexpr char kGrid[] = "stroke=\"currentColor\" stroke-opacity=\"0.13\"";
    constexpr char kEdge[] = "stroke=\"currentColor\" stroke-opacity=\"0.55\"";
    Text(kLeft, 18, "font-size=\"14\" font-weight=\"600\"", frame_.title);
    for (const double tick : y_.ticks) {
      const double y = y_.Place(tick);
      Line(x_.first, y, x_.last, y, kGrid);
      Text(x_.first - 7, y + 4, "text-anchor=\"end\"", absl::StrFormat("%.6g", tick));
    }
    for (const double tick : x_.ticks) {
      const double x = x_.Place(tick);
      Line(x, y_.first, x, y_.first + 4, kEdge);
      Text(x, y_.first + 17, "text-anchor=\"middle\"", absl::StrFormat("%.6g", tick));
    }
    Line(x_.first, y_.first, x_.last, y_.first, kEdge);
    Line(x_.first, y_.first, x_.first, y_.last, kEdge);
    Text((x_.first + x_.last) / 2, y_.first + 35, "text-anchor=\"middle\"", frame_.x_label);
    const double middle = (y_.first + y_.last) / 2;
    Text(15, middle,
         absl::StrFormat("text-anchor=\"middle\" transform=\"rotate(-90 15 %.1f)\"", middle),
         frame_.y_label);
    if (!frame_.mark.has_value()) return;
    const double y = y_.Place(*frame_.mark);
    Line(x_.first, y, x_.last, y,
         "stroke=\"currentColor\" stroke-opacity=\"0.8\" stroke-dasharray=\"1 4\" "
         "stroke-linecap=\"round\" stroke-width=\"1.6\"");
    const double label_y = y - y_.last < 14 ? y + 14 : y - 5;
    Text(x_.first + 5, label_y, "font-size=\"11\" fill-opacity=\"0.8\"", frame_.mark_label);
  }

  // Shapes differ too, for those who see colours alike.
  std::string Marker(size_t series, double x, double y, const std::string& color,
                     const std::string& note) const {
    static constexpr const char* kShapes[] = {"M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
                                              "M-3.6 -3.6h7.2v7.2h-7.2z", "M0 -4.8L4.6 3.4H-4.6z",
                                              "M0 -5L5 0L0 5L-5 0z", "M0 4.8L4.6 -3.4H-4.6z"};
    const std::string title =
        note.empty() ? std::string() : absl::StrFormat("<title>%s</title>", EscapeXml(note));
    return absl::StrFormat(
        "<path d=\"%s\" transform=\"translate(%.1f %.1f)\" fill=\"%s\">%s</path>\n",
        kShapes[series % std::size(kShapes)], x, y, color, title);
  }

  void DrawSeries(size_t index, const std::string& color) {
    const ChartSeries& series = series_[index];
    std::string path;
    for (const ChartPoint& point : series.points) {
      if (!Finite(point)) continue;
      absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L", x_.Place(point.x),
                            y_.Place(point.y));
    }
    if (path.empty()) return;
    // An inner svg element cuts off what leaves the plot.
    absl::StrAppendFormat(&out_,
                          "<svg x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" "
                          "viewBox=\"%g %g %g %g\">\n",
                          kLeft, kTop - 2, kWidth - kLeft, kPlotHeight + 4, kLeft, kTop - 2,
                          kWidth - kLeft, kPlotHeight + 4);
    if (series.line) {
      absl::StrAppendFormat(&out_, "<path d=\"%s\" fill=\"none\" stroke=\"%s\" %s/>\n", path, color,
                            LineStyle(series));
    }
    for (const ChartPoint& point : series.points) {
      if (Finite(point) && point.interval.has_value()) DrawInterval(point, color);
    }
    out_ += "</svg>\n";
    for (const ChartPoint& point : series.points) {
      if (!Finite(point) || !y_.Holds(point.y)) continue;
      out_ += Marker(index, x_.Place(point.x), y_.Place(point.y), color, point.note);
    }
  }

  void DrawInterval(const ChartPoint& point, const std::string& color) {
    const double x = x_.Place(point.x);
    const double low = y_.Place(point.interval->low), high = y_.Place(point.interval->high);
    const std::string style =
        absl::StrFormat("stroke=\"%s\" stroke-width=\"1.3\" stroke-opacity=\"0.75\"", color);
    Line(x, low, x, high, style);
    Line(x - 3.5, low, x + 3.5, low, style);
    Line(x - 3.5, high, x + 3.5, high, style);
  }

  static std::string LineStyle(const ChartSeries& series) {
    return series.background ? "stroke-width=\"1.6\" stroke-dasharray=\"6 4\""
                             : "stroke-width=\"2.2\" stroke-linejoin=\"round\"";
  }

  // Returns the height of the whole picture.
  double DrawLegend(const std::vector<std::string>& color_of) {
    double x = kLeft, y = kTop + kPlotHeight + kBelowPlot + 12;
    for (size_t s = 0; s < series_.size(); ++s) {
      const double width = 34 + kLetter * static_cast<double>(series_[s].name.size()) + 12;
      if (x > kLeft && x + width > kWidth - kRight) {
        x = kLeft;
        y += kLegendRow;
      }
      if (series_[s].line) {
        Line(x, y, x + 26, y,
             absl::StrFormat("stroke=\"%s\" %s", color_of[s], LineStyle(series_[s])));
      }
      out_ += Marker(s, x + 13, y, color_of[s], "");
      Text(x + 32, y + 4, "", series_[s].name);
      x += width;
    }
    return y + 14;
  }

  const ChartFrame& frame_;
  const std::vector<ChartSeries>& series_;
  Axis x_, y_;
  std::string out_;
};

}  // namespace

std::string DrawLineChart(const ChartFrame& frame, const std::vector<ChartSeries>& series) {
  return Chart(frame, series).Draw();
}

std::string EscapeXml(std::string_view text) {
  std::string out;
  for (const char c : WithoutControls(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace condense
