#include "tools/eval/line_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace condense {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Whether every element that opens closes, in order.
bool IsBalanced(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at + 1)) {
    const size_t end = xml.find('>', at);
    if (end == std::string::npos) return false;
    const bool closes = xml[at + 1] == '/';
    const size_t name = at + (closes ? 2 : 1);
    const std::string tag = xml.substr(name, xml.find_first_of(" />", name) - name);
    if (closes) {
      if (open.empty() || open.back() != tag) return false;
      open.pop_back();
    } else if (xml[end - 1] != '/') {
      open.push_back(tag);
    }
  }
  return open.empty();
}

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(LineChartTest, DrawsEveryPointOnce) {
  const std::string svg = DrawLineChart(
      {.title = "title", .x_label = "across", .y_label = "up"},
      {{.name = "one", .points = {{.x = 1, .y = 2, .note = "n"}, {.x = 2, .y = 3, .note = "n"}}},
       {.name = "two", .background = true, .points = {{.x = 4, .y = 1, .note = "n"}}}});
  EXPECT_EQ(Count(svg, "<title>n</title>"), 3u);
  for (const char* text : {"title", "across", "up", "one", "two"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_TRUE(IsBalanced(svg)) << svg;
}

TEST(LineChartTest, LeavesOutWhatIsNotFinite) {
  const std::string svg = DrawLineChart({.title = "t", .log_y = true},
                                        {{.name = "s",
                                          .points = {{.x = NAN, .y = 1, .note = "bad"},
                                                     {.x = 1, .y = INFINITY, .note = "bad"},
                                                     {.x = 2, .y = 0.01, .note = "good"},
                                                     {.x = 3, .y = 0.0, .note = "zero"}}}});
  EXPECT_THAT(svg, Not(HasSubstr("bad")));
  EXPECT_THAT(svg, HasSubstr("good"));
  EXPECT_THAT(svg, HasSubstr("zero"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(LineChartTest, HasAxesWithoutAnyPoint) {
  for (const bool log_y : {false, true}) {
    const std::string svg = DrawLineChart({.title = "t", .log_y = log_y}, {});
    EXPECT_TRUE(IsBalanced(svg));
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
  }
}

TEST(LineChartTest, AxesEndWhereTheLimitSays) {
  const std::string svg =
      DrawLineChart({.title = "t", .y_limit = 100.0},
                    {{.name = "s", .points = {{.x = 1, .y = 98.7}, {.x = 2, .y = 100.0}}}});
  EXPECT_THAT(svg, HasSubstr(">100</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">100.2</text>")));
}

TEST(LineChartTest, LogarithmicAxesHaveWholeDecades) {
  const std::string svg =
      DrawLineChart({.title = "t", .log_y = true},
                    {{.name = "s", .points = {{.x = 1, .y = 0.003}, {.x = 2, .y = 0.4}}}});
  for (const char* tick : {">0.001<", ">0.01<", ">0.1<", ">1<"}) EXPECT_THAT(svg, HasSubstr(tick));
}

TEST(LineChartTest, TheBackgroundCanBeCutOff) {
  const std::vector<ChartSeries> series = {
      {.name = "s", .points = {{.x = 1, .y = 0}, {.x = 2, .y = 2}}},
      {.name = "far",
       .background = true,
       .points = {{.x = 1, .y = 1, .note = "inside"}, {.x = 2, .y = 900, .note = "outside"}}}};
  const std::string whole = DrawLineChart({.title = "t"}, series);
  EXPECT_THAT(whole, HasSubstr("outside"));
  EXPECT_THAT(whole, HasSubstr(">1000<"));
  const std::string cut = DrawLineChart({.title = "t", .cut_background = true}, series);
  EXPECT_THAT(cut, HasSubstr("inside"));
  EXPECT_THAT(cut, Not(HasSubstr("outside")));
  EXPECT_THAT(cut, Not(HasSubstr(">1000<")));
  // Alone it is not cut.
  EXPECT_THAT(DrawLineChart({.title = "t", .cut_background = true}, {series[1]}),
              HasSubstr("outside"));
}

TEST(EscapeXmlTest, LeavesNothingThatMeansSomething) {
  EXPECT_EQ(EscapeXml("a<b>&\"c'"), "a&lt;b&gt;&amp;&quot;c&#39;");
  EXPECT_EQ(EscapeXml("a\x1b"
                      "b"),
            "a\xef\xbf\xbd"
            "b");
}

}  // namespace
}  // namespace condense
