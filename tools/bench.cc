// `condense bench`: load on a server, by concurrency or by rate, and what its clients felt.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "tools/answer.h"
#include "tools/bench_report.h"
#include "tools/client.h"
#include "tools/commands.h"
#include "tools/compression_flags.h"
#include "tools/exit_code.h"
#include "tools/format.h"
#include "tools/generation_flags.h"
#include "tools/interrupt.h"
#include "tools/json_io.h"
#include "tools/progress_bar.h"
#include "tools/workload.h"

namespace condense {
namespace {

constexpr absl::Duration kLongestWait = absl::Milliseconds(50);
constexpr int64_t kDefaultRequests = 64;

struct BenchFlags {
  ServerFlags server;
  int32_t concurrency = 8;
  std::optional<double> rate;  // requests per second: open loop
  std::string arrivals = "poisson";
  std::optional<int64_t> requests;
  std::optional<double> duration_seconds;
  std::string prompt_tokens = "128", output_tokens = "64";
  uint64_t seed = 1;
  float temperature = 0.0f;
  double timeout_seconds = 0;
  CompressionFlags compression;
  bool json = false;
};

// One request on its way. gRPC's threads write the record until the call has ended.
struct Flight {
  RequestRecord record;
  std::unique_ptr<GenerateCall> call;
};

// Starts requests as the flags say and collects their records.
// Threads: owned by the main thread; gRPC's threads only count the ends.
class LoadRun {
 public:
  LoadRun(Client* client, const BenchFlags& flags, Workload workload)
      : client_(client), flags_(flags), workload_(std::move(workload)), bar_(!flags.json) {}

  // Until all requests are done, or Ctrl-C: what runs is then cancelled. False if interrupted.
  bool Run() {
    Interrupt interrupt;
    started_ = absl::Now();
    next_arrival_ = started_;
    while (!interrupted_ || !flights_.empty()) {
      if (interrupt.Take()) CancelAll();
      StartDue();
      if (flights_.empty() && AllStarted()) break;
      WaitForNews();
      Collect();
      ShowProgress();
    }
    return !interrupted_;
  }

  const BenchReport& report() const { return report_; }
  absl::Duration elapsed() const { return last_end_ - started_; }

 private:
  bool AllStarted() const {
    if (interrupted_) return true;
    if (flags_.duration_seconds) {
      return absl::Now() - started_ >= absl::Seconds(*flags_.duration_seconds);
    }
    return begun_ >= flags_.requests.value_or(kDefaultRequests);
  }

  bool NextIsDue() const {
    if (AllStarted()) return false;
    if (flags_.rate) return absl::Now() >= next_arrival_;
    return static_cast<int32_t>(flights_.size()) < flags_.concurrency;
  }

  void StartDue() {
    while (NextIsDue()) {
      Start(flags_.rate ? next_arrival_ : absl::Now());
      if (!flags_.rate) continue;
      next_arrival_ += workload_.NextGap(
          *flags_.rate, flags_.arrivals == "fixed" ? Arrivals::kFixed : Arrivals::kPoisson);
    }
  }

  void Start(absl::Time due) {
    const WorkloadItem item = workload_.Next();
    v1::GenerateRequest request;
    request.mutable_token_ids()->mutable_ids()->Assign(item.prompt.begin(), item.prompt.end());
    request.mutable_sampling()->set_temperature(flags_.temperature);
    request.mutable_sampling()->set_seed(flags_.seed + static_cast<uint64_t>(begun_));
    request.mutable_stopping()->set_max_tokens(item.output_tokens);
    request.mutable_stopping()->set_ignore_eos(true);
    if (flags_.compression.given()) {
      *request.mutable_compression() = flags_.compression.ToMessage();
    }

    Flight& flight = flights_.emplace_back();
    flight.record.start = due;
    flight.record.prompt_tokens = static_cast<int64_t>(item.prompt.size());
    ++begun_;
    const absl::Duration timeout = flags_.timeout_seconds > 0
                                       ? absl::Seconds(flags_.timeout_seconds)
                                       : absl::InfiniteDuration();
    RequestRecord* record = &flight.record;
    flight.call = client_->Generate(
        request, timeout,
        [record](const v1::GenerateEvent& event) {
          if (event.has_tokens()) record->AddTokens(event.tokens().tokens_size(), absl::Now());
          if (event.has_finished()) {
            record->kv_bytes = event.finished().receipt().bytes_held();
            record->kv_bytes_16bit = event.finished().receipt().bytes_16bit();
          }
        },
        [this, record] {
          record->end = absl::Now();
          MutexLock lock(&mutex_);
          news_ = true;
          changed_.Signal();
        });
  }

  void WaitForNews() {
    absl::Duration wait = kLongestWait;
    if (flags_.rate && !AllStarted()) wait = std::min(wait, next_arrival_ - absl::Now());
    MutexLock lock(&mutex_);
    if (!news_ && wait > absl::ZeroDuration()) {
      changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(wait));
    }
    news_ = false;
  }

  void Collect() {
    for (auto flight = flights_.begin(); flight != flights_.end();) {
      if (!flight->call->WaitFor(absl::ZeroDuration())) {
        ++flight;
        continue;
      }
      flight->record.status = flight->call->status();
      last_end_ = std::max(last_end_, flight->record.end);
      report_.Add(flight->record);
      flight = flights_.erase(flight);
    }
  }

  void CancelAll() {
    interrupted_ = true;
    for (const Flight& flight : flights_) flight.call->Cancel();
  }

  void ShowProgress() {
    const double seconds = absl::ToDoubleSeconds(absl::Now() - started_);
    const int64_t ended = report_.finished() + report_.failed();
    const double share = flags_.duration_seconds
                             ? seconds / *flags_.duration_seconds
                             : static_cast<double>(ended) /
                                   static_cast<double>(flags_.requests.value_or(kDefaultRequests));
    bar_.Show(share, absl::StrFormat("%d done, %d failed, %d running, %s tokens/s",
                                     report_.finished(), report_.failed(), flights_.size(),
                                     FormatNumber(static_cast<double>(report_.generated_tokens()) /
                                                  std::max(seconds, 1e-3))));
  }

  Client* const client_;
  const BenchFlags& flags_;
  Workload workload_;
  ProgressBar bar_;
  BenchReport report_;
  std::list<Flight> flights_;  // a list: calls hold pointers to their records
  int64_t begun_ = 0;
  bool interrupted_ = false;
  absl::Time started_, next_arrival_, last_end_ = absl::InfinitePast();

  Mutex mutex_;
  CondVar changed_;
  bool news_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<Workload> MakeWorkload(Client* client, const BenchFlags& flags) {
  ASSIGN_OR_RETURN(const LengthRange prompt,
                   ParseLengthRange("--prompt_tokens", flags.prompt_tokens));
  ASSIGN_OR_RETURN(const LengthRange output,
                   ParseLengthRange("--output_tokens", flags.output_tokens));
  v1::TokenizeRequest text;
  text.set_text(kPlainText);
  ASSIGN_OR_RETURN(const v1::TokenizeResponse tokens, client->Tokenize(text));
  if (tokens.token_ids().empty()) {
    return absl::InternalError("the server made no tokens of a page of English text");
  }
  return Workload({tokens.token_ids().begin(), tokens.token_ids().end()}, prompt, output,
                  flags.seed);
}

nlohmann::ordered_json LoadToJson(const BenchFlags& flags) {
  nlohmann::ordered_json load = {{"prompt_tokens", flags.prompt_tokens},
                                 {"output_tokens", flags.output_tokens},
                                 {"seed", flags.seed}};
  if (flags.compression.preset) load["preset"] = *flags.compression.preset;
  if (flags.compression.policy) load["policy"] = *flags.compression.policy;
  if (flags.compression.ratio) load["ratio"] = *flags.compression.ratio;
  if (flags.rate) {
    load["rate"] = *flags.rate;
    load["arrivals"] = flags.arrivals;
  } else {
    load["concurrency"] = flags.concurrency;
  }
  return load;
}

void PrintReport(const LoadRun& run, const BenchFlags& flags, const std::string& model) {
  const absl::Duration elapsed = std::max(run.elapsed(), absl::ZeroDuration());
  if (flags.json) {
    nlohmann::ordered_json out = {{"model", model}, {"load", LoadToJson(flags)}};
    out.update(run.report().ToJson(elapsed));
    std::printf("%s\n", ToJsonText(out, true).c_str());
    return;
  }
  const std::string load = flags.rate ? absl::StrFormat("%s requests/s, %s arrivals",
                                                        FormatNumber(*flags.rate), flags.arrivals)
                                      : absl::StrFormat("%d at a time", flags.concurrency);
  std::printf("%s: %s, prompts of %s tokens, outputs of %s\n%s", WithoutControls(model).c_str(),
              load.c_str(), flags.prompt_tokens.c_str(), flags.output_tokens.c_str(),
              run.report().ToTable(elapsed).c_str());
}

absl::StatusOr<int> TryBench(const BenchFlags& flags) {
  ASSIGN_OR_RETURN(const auto client, flags.server.Connect());
  ASSIGN_OR_RETURN(const v1::GetModelInfoResponse model, client->ModelInfo());
  ASSIGN_OR_RETURN(Workload workload, MakeWorkload(client.get(), flags));
  LoadRun run(client.get(), flags, std::move(workload));
  const bool complete = run.Run();
  PrintReport(run, flags, model.name());
  if (!complete) return static_cast<int>(kExitInterrupted);
  return static_cast<int>(run.report().failed() == 0 ? kExitOk : kExitFailed);
}

int RunBench(const BenchFlags& flags) {
  const auto result = TryBench(flags);
  if (result.ok()) return *result;
  if (flags.json) {
    std::printf("%s\n", ToJsonText({{"error", ErrorToJson(result.status())}}, true).c_str());
  }
  return Fail(result.status());
}

void AddLoadFlags(CLI::App* command, BenchFlags* flags) {
  auto* concurrency =
      command->add_option("--concurrency", flags->concurrency, "Closed loop: requests at a time")
          ->check(CLI::Range(1, 100000))
          ->capture_default_str();
  command->add_option("--rate", flags->rate, "Open loop: requests per second")
      ->check(CLI::Range(1e-6, 1e6))
      ->excludes(concurrency);
  command->add_option("--arrivals", flags->arrivals, "Rhythm of --rate: poisson or fixed")
      ->check(CLI::IsMember({"poisson", "fixed"}))
      ->capture_default_str();
  auto* requests = command
                       ->add_option("--requests", flags->requests,
                                    absl::StrFormat("Requests to send [%d]", kDefaultRequests))
                       ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command
      ->add_option("--duration", flags->duration_seconds,
                   "Seconds in which requests are started; running ones are waited for")
      ->check(CLI::Range(0.001, 1e7))
      ->excludes(requests);
  command->add_option("--prompt_tokens", flags->prompt_tokens, "Prompt length: N or LOW-HIGH")
      ->capture_default_str();
  command->add_option("--output_tokens", flags->output_tokens, "Output length: N or LOW-HIGH")
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "Fixes prompts, lengths and arrivals")
      ->capture_default_str();
  command->add_option("--temperature", flags->temperature, "Sampling temperature; 0 is greedy")
      ->capture_default_str();
  command->add_option("--timeout", flags->timeout_seconds, "Seconds for each request; 0: no limit")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
}

}  // namespace

void AddBench(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app->add_subcommand("bench", "Put load on a server and measure it");
  AddLoadFlags(command, flags.get());
  flags->compression.AddTo(command, "the server's");
  flags->server.AddTo(command);
  command->add_flag("--json", flags->json, "Print JSON")->group("Output");
  command->footer(
      "Prompts are random tokens; outputs have the length asked for, past any end of text.\n"
      "Latencies of an open loop count from when a request was due.\n\n"
      "Examples:\n"
      "  condense bench --concurrency 16 --requests 200 --prompt_tokens 64-512\n"
      "  condense bench --rate 5 --duration 60 --json\n\n"
      "Exits 1 if a request failed. Ctrl-C ends the run, reports what was measured, exits 130.");
  command->callback([flags, exit_code] { *exit_code = RunBench(*flags); });
}

}  // namespace condense
