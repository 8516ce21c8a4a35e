#include "tools/bench_report.h"

#include "absl/strings/str_format.h"
#include "tools/format.h"
#include "tools/text_table.h"

namespace condense {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMessageBytes = 160;

Json PercentilesJson(const Samples& samples) {
  return {{"mean", samples.Mean()},         {"p50", samples.Percentile(0.5)},
          {"p90", samples.Percentile(0.9)}, {"p99", samples.Percentile(0.99)},
          {"max", samples.Percentile(1.0)}, {"samples", samples.count()}};
}

void AddPercentiles(const char* name, const Samples& samples, TextTable* table) {
  if (samples.count() == 0) {
    table->Add({name, "-", "-", "-", "-", "-"});
    return;
  }
  table->Add({name, FormatSeconds(samples.Mean()), FormatSeconds(samples.Percentile(0.5)),
              FormatSeconds(samples.Percentile(0.9)), FormatSeconds(samples.Percentile(0.99)),
              FormatSeconds(samples.Percentile(1.0))});
}

double PerSecond(int64_t count, absl::Duration elapsed) {
  const double seconds = absl::ToDoubleSeconds(elapsed);
  return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
}

}  // namespace

void RequestRecord::AddTokens(int64_t count, absl::Time now) {
  if (count <= 0) return;
  int64_t followers = count;
  if (generated_tokens == 0) {
    first_token = now;
    last_token = now;
    followers = count - 1;
  }
  if (followers > 0) {
    const double gap = absl::ToDoubleSeconds(now - last_token) / static_cast<double>(followers);
    inter_token_seconds.Add(gap, static_cast<size_t>(followers));
  }
  generated_tokens += count;
  last_token = now;
}

double BenchReport::KvRatio() const {
  if (kv_bytes_ <= 0) return 1.0;
  return static_cast<double>(kv_bytes_16bit_) / static_cast<double>(kv_bytes_);
}

void BenchReport::Add(const RequestRecord& record) {
  generated_tokens_ += record.generated_tokens;
  if (record.generated_tokens > 0) {
    ttft_.Add(absl::ToDoubleSeconds(record.first_token - record.start));
    inter_token_.Add(record.inter_token_seconds);
  }
  if (record.status.ok()) {
    ++finished_;
    prompt_tokens_ += record.prompt_tokens;
    kv_bytes_ += record.kv_bytes;
    kv_bytes_16bit_ += record.kv_bytes_16bit;
    total_.Add(absl::ToDoubleSeconds(record.end - record.start));
    return;
  }
  ++failed_;
  const std::string code = absl::StatusCodeToString(record.status.code());
  ++errors_[code];
  example_.try_emplace(code, record.status.message());
}

std::string BenchReport::ToTable(absl::Duration elapsed) const {
  std::string out = absl::StrFormat("%s requests finished and %s failed in %s (%s requests/s)\n",
                                    FormatCount(finished_), FormatCount(failed_),
                                    FormatSeconds(absl::ToDoubleSeconds(elapsed)),
                                    FormatNumber(PerSecond(finished_, elapsed)));
  out += absl::StrFormat("tokens/s: %s generated, %s of prompts\n",
                         FormatNumber(PerSecond(generated_tokens_, elapsed)),
                         FormatNumber(PerSecond(prompt_tokens_, elapsed)));
  if (kv_bytes_ > 0) {
    out += absl::StrFormat("cache at their end: %s in all, ratio %.2f\n", FormatBytes(kv_bytes_),
                           KvRatio());
  }
  out += "\n";
  using Align = TextTable::Align;
  TextTable table(
      {Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kRight});
  table.Add({"", "mean", "p50", "p90", "p99", "max"});
  AddPercentiles("time to first token", ttft_, &table);
  AddPercentiles("between tokens", inter_token_, &table);
  AddPercentiles("whole request", total_, &table);
  out += table.ToString();
  if (errors_.empty()) return out;
  TextTable errors({Align::kLeft, Align::kRight, Align::kLeft});
  errors.Add({"error", "count", "for example"});
  for (const auto& [code, count] : errors_) {
    errors.Add({code, FormatCount(count), OneLine(example_.at(code), kMessageBytes)});
  }
  return out + "\n" + errors.ToString();
}

Json BenchReport::ToJson(absl::Duration elapsed) const {
  Json errors = Json::object();
  for (const auto& [code, count] : errors_) {
    errors[code] = {{"count", count}, {"example", example_.at(code)}};
  }
  return {{"finished", finished_},
          {"failed", failed_},
          {"elapsed_seconds", absl::ToDoubleSeconds(elapsed)},
          {"requests_per_second", PerSecond(finished_, elapsed)},
          {"prompt_tokens", prompt_tokens_},
          {"generated_tokens", generated_tokens_},
          {"prompt_tokens_per_second", PerSecond(prompt_tokens_, elapsed)},
          {"generated_tokens_per_second", PerSecond(generated_tokens_, elapsed)},
          {"kv_bytes", kv_bytes_},
          {"kv_bytes_16bit", kv_bytes_16bit_},
          {"kv_ratio", KvRatio()},
          {"ttft_seconds", PercentilesJson(ttft_)},
          {"inter_token_seconds", PercentilesJson(inter_token_)},
          {"request_seconds", PercentilesJson(total_)},
          {"errors", errors}};
}

}  // namespace condense
