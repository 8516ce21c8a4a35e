// Any tokens and stop strings: what the cutter delivers is what cutting the whole text at once
// gives, in valid pieces, and ids are cut at the same place.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text_cutter.h"
#include "engine/utf8.h"
#include "kernels/base/check.h"
#include "tests/fuzz/byte_reader.h"

namespace condense {
namespace {

struct Token {
  std::string bytes;
  bool may_stop = true;
};

struct Expected {
  size_t end = 0;  // of the delivered bytes
  int32_t stop_index = -1;
  int32_t tokens = 0;  // released in all
};

// Where the text is cut after `tokens`, the last of which is new, by a plain search of all of it.
Expected CutWhole(const std::vector<std::string>& stops, const std::vector<Token>& tokens) {
  std::string whole;
  size_t first_allowed = 0;
  for (const Token& token : tokens) {
    whole += token.bytes;
    if (!token.may_stop) first_allowed = whole.size();
  }
  Expected expected;
  expected.end = whole.size();
  for (size_t i = 0; i < stops.size(); ++i) {
    const size_t at = whole.find(stops[i], first_allowed);
    if (at == std::string::npos || (expected.stop_index >= 0 && at >= expected.end)) continue;
    expected.end = at;
    expected.stop_index = static_cast<int32_t>(i);
  }
  size_t begin = 0;
  for (const Token& token : tokens) {
    const size_t end = begin + token.bytes.size();
    if (begin < expected.end || end <= expected.end) ++expected.tokens;
    begin = end;
  }
  return expected;
}

std::string Join(const std::vector<Token>& tokens) {
  std::string whole;
  for (const Token& token : tokens) whole += token.bytes;
  return whole;
}

void Try(const std::vector<std::string>& stops, const std::vector<Token>& tokens) {
  TextCutter cutter(stops);
  std::vector<Token> seen;
  std::string delivered;
  int32_t released = 0;
  const auto take = [&](const TextCut& cut) {
    CHECK(IsValidUtf8(cut.text));
    CHECK_GE(cut.released_tokens, 0);
    delivered += cut.text;
    released += cut.released_tokens;
    CHECK_LE(released, static_cast<int32_t>(seen.size()));
  };
  for (const Token& token : tokens) {
    seen.push_back(token);
    const TextCut cut = cutter.Append(token.bytes, token.may_stop);
    take(cut);
    const Expected expected = CutWhole(stops, seen);
    CHECK_EQ(cut.stop_index, expected.stop_index);
    if (cut.stop_index < 0) continue;
    CHECK(delivered == ReplaceInvalidUtf8(std::string_view(Join(seen)).substr(0, expected.end)));
    CHECK_EQ(released, expected.tokens);
    return;
  }
  const TextCut rest = cutter.Flush();
  take(rest);
  CHECK_EQ(rest.stop_index, -1);
  CHECK(delivered == ReplaceInvalidUtf8(Join(seen)));
  CHECK_EQ(released, static_cast<int32_t>(seen.size()));
}

}  // namespace
}  // namespace condense

// The number of stop strings, each with its length; then tokens, each after a byte of its length
// and whether it may stop.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  condense::ByteReader reader(data, std::min<size_t>(size, 512));
  std::vector<std::string> stops(reader.Take<uint8_t>() % 4);
  for (std::string& stop : stops) {
    stop = reader.TakeText(1 + reader.Take<uint8_t>() % 8);
    if (stop.empty()) stop = "a";
  }
  std::vector<condense::Token> tokens;
  while (!reader.empty()) {
    const auto head = reader.Take<uint8_t>();
    tokens.push_back({.bytes = reader.TakeText(head % 8), .may_stop = (head & 0x80) == 0});
  }
  condense::Try(stops, tokens);
  return 0;
}
