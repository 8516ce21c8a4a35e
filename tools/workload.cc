#include "tools/workload.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "kernels/base/check.h"

namespace condense {

const char kPlainText[] =
    "The harbour town wakes before the sun does. Fishing boats leave while the streets are still "
    "dark, and the baker on the corner has already sold half of her bread to the crews. By eight "
    "the market fills the square: apples and onions in wooden boxes, honey from the hills, cloth "
    "in every colour, and an old man who repairs clocks under a green umbrella. Children cut "
    "through the crowd on their way to school and count the ships at the pier. In winter, storms "
    "keep everyone indoors for days; people read, play cards, mend nets and argue about the price "
    "of fuel. When the weather clears, the whole coast smells of salt and pine, and visitors come "
    "by train to walk along the cliffs. Nobody agrees on who built the lighthouse, but its lamp "
    "has been lit every night for more than a hundred years.";

absl::StatusOr<LengthRange> ParseLengthRange(const std::string& flag, const std::string& text) {
  const size_t dash = text.find('-', 1);
  LengthRange range;
  const bool low_ok = absl::SimpleAtoi(text.substr(0, dash), &range.low);
  const bool high_ok = dash == std::string::npos
                           ? (range.high = range.low, low_ok)
                           : absl::SimpleAtoi(text.substr(dash + 1), &range.high);
  if (!low_ok || !high_ok || range.low < 1 || range.high < range.low) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is a number of tokens or a range of at least 1, for example 128 or 64-256; got \"%s\"",
        flag, text));
  }
  return range;
}

Workload::Workload(std::vector<TokenId> pool, LengthRange prompt, LengthRange output, uint64_t seed)
    : pool_(std::move(pool)), prompt_(prompt), output_(output), content_(seed), rhythm_(~seed) {
  CHECK(!pool_.empty());
}

WorkloadItem Workload::Next() {
  WorkloadItem item;
  std::uniform_int_distribution<int32_t> prompt_len(prompt_.low, prompt_.high);
  std::uniform_int_distribution<int32_t> output_len(output_.low, output_.high);
  std::uniform_int_distribution<size_t> pick(0, pool_.size() - 1);
  item.prompt.resize(prompt_len(content_));
  for (TokenId& token : item.prompt) token = pool_[pick(content_)];
  item.output_tokens = output_len(content_);
  return item;
}

absl::Duration Workload::NextGap(double rate, Arrivals arrivals) {
  if (arrivals == Arrivals::kFixed) return absl::Seconds(1.0 / rate);
  return absl::Seconds(std::exponential_distribution<double>(rate)(rhythm_));
}

}  // namespace condense
