// `condense speed`: what the engine itself does per second, without gRPC.

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "tools/commands.h"
#include "tools/compression_flags.h"
#include "tools/exit_code.h"
#include "tools/json_io.h"
#include "tools/local_model.h"
#include "tools/samples.h"
#include "tools/workload.h"

namespace condense {
namespace {

constexpr uint64_t kSeed = 1;

struct SpeedFlags {
  LocalEngineFlags engine;
  CompressionFlags compression;
  std::vector<std::string> cells;
  int32_t settle = 0;
  int32_t generate = 32;
  int32_t repeat = 5;
};

// "prefill N": one prompt of N tokens. "decode BxP": B sequences after prompts of P tokens, each of
// which generates `settle` tokens before `generate` ones are measured.
struct Cell {
  std::string name;
  int32_t sequences = 1;
  int32_t prompt_tokens = 0;
  int32_t settle = 0;
  int32_t generate = 1;
};

absl::StatusOr<Cell> ParseCell(const std::string& name, int32_t settle, int32_t generate) {
  Cell cell{.name = name};
  absl::string_view rest = name;
  bool valid = false;
  if (absl::ConsumePrefix(&rest, "prefill ")) {
    valid = absl::SimpleAtoi(rest, &cell.prompt_tokens);
  } else if (absl::ConsumePrefix(&rest, "decode ")) {
    const size_t cross = rest.find('x');
    valid = cross != absl::string_view::npos &&
            absl::SimpleAtoi(rest.substr(0, cross), &cell.sequences) &&
            absl::SimpleAtoi(rest.substr(cross + 1), &cell.prompt_tokens);
    cell.settle = settle;
    cell.generate = generate;
  }
  if (valid && cell.sequences >= 1 && cell.prompt_tokens >= 1) return cell;
  return absl::InvalidArgumentError(absl::StrFormat(
      "--cell is \"prefill N\" or \"decode BxP\", for example \"decode 8x128\"; got \"%s\"", name));
}

struct Speed {
  double prefill_tps = 0;
  double decode_tps = 0;
  double cache_ratio = 0;  // bytes in 16 bits by bytes held, of all sequences at their end
};

// Watches the streams of one run step by step.
// Threads: thread-safe. The engine thread calls OnPublished, so that times are those of the steps.
class StepWatch {
 public:
  void Begin(const Cell& cell) {
    MutexLock lock(&mutex_);
    run_ = Run{.expected = cell.sequences, .settle = cell.settle, .started = absl::Now()};
  }

  void Add(std::shared_ptr<TokenStream> stream) {
    MutexLock lock(&mutex_);
    run_.lanes.push_back({.stream = std::move(stream)});
    Look();  // the engine may have been faster
  }

  void OnPublished() {
    MutexLock lock(&mutex_);
    Look();
  }

  // Waits for the end of all sequences. Adds the milliseconds of the measured steps.
  absl::StatusOr<Speed> Finish(const Cell& cell, Samples* step_ms) {
    MutexLock lock(&mutex_);
    while (run_.ended < run_.expected) ended_.Wait(&mutex_);
    RETURN_IF_ERROR(run_.status);
    const auto seconds = [](absl::Time from, absl::Time to) {
      return absl::ToDoubleSeconds(to - from);
    };
    const double prompt_tokens = static_cast<double>(cell.prompt_tokens) * cell.sequences;
    Speed speed{.prefill_tps = prompt_tokens / seconds(run_.started, run_.all_decoding)};
    if (run_.decoded > 0) {
      speed.decode_tps =
          static_cast<double>(run_.decoded) / seconds(run_.all_decoding, run_.decode_end);
    }
    speed.cache_ratio =
        static_cast<double>(run_.bytes_16bit) / static_cast<double>(run_.bytes_held);
    step_ms->Add(run_.step_ms);
    run_ = Run();
    return speed;
  }

 private:
  struct Lane {
    std::shared_ptr<TokenStream> stream;
    int64_t tokens = 0;
  };
  struct Run {
    int32_t expected = 0;
    int32_t settle = 0;
    int32_t settled = 0, ended = 0;
    std::vector<Lane> lanes;
    absl::Time started;
    // Decoding counts while every sequence takes part: from the step with the last one's first
    // token, or the last one that settles it, to the step with the first one's end.
    absl::Time all_decoding = absl::InfiniteFuture();
    absl::Time decode_end;
    int64_t decoded = 0;
    int64_t bytes_16bit = 0, bytes_held = 0;
    Samples step_ms;
    absl::Status status;
  };

  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Time now = absl::Now();
    const bool decoding = run_.settled == run_.expected && run_.ended == 0;
    int64_t tokens = 0;
    for (Lane& lane : run_.lanes) tokens += Drain(&lane);
    if (decoding && tokens > 0) {
      run_.decoded += tokens;
      run_.step_ms.Add(absl::ToDoubleMilliseconds(now - run_.decode_end));
      run_.decode_end = now;
    }
    if (run_.settled == run_.expected && run_.all_decoding == absl::InfiniteFuture()) {
      run_.all_decoding = now;
      run_.decode_end = now;
    }
    if (run_.ended >= run_.expected) ended_.SignalAll();
  }

  int64_t Drain(Lane* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    int64_t tokens = 0;
    while (const auto event = lane->stream->TryNext()) {
      tokens += static_cast<int64_t>(event->tokens.size());
      if (event->kind != TokenEvent::Kind::kFinished) continue;
      ++run_.ended;
      run_.bytes_16bit += event->receipt.bytes_16bit;
      run_.bytes_held += event->receipt.bytes_held;
      if (!event->status.ok()) run_.status = event->status;
    }
    const bool had_settled = lane->tokens > run_.settle;
    lane->tokens += tokens;
    if (lane->tokens > run_.settle && !had_settled) ++run_.settled;
    return tokens;
  }

  Mutex mutex_;
  CondVar ended_;
  Run run_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<Speed> RunOnce(Engine* engine, StepWatch* watch, Workload* workload,
                              const Cell& cell, Samples* step_ms) {
  watch->Begin(cell);
  for (int32_t i = 0; i < cell.sequences; ++i) {
    Request request;
    request.id = absl::StrFormat("speed-%d", i);
    request.prompt = workload->Next().prompt;
    request.sampling.temperature = 0.0f;
    request.stop.max_tokens = cell.settle + cell.generate;
    request.stop.ignore_eos = true;
    ASSIGN_OR_RETURN(auto stream, engine->Submit(std::move(request)));
    watch->Add(std::move(stream));
  }
  return watch->Finish(cell, step_ms);
}

absl::Status RunCell(Engine* engine, StepWatch* watch, const Cell& cell, int32_t repeat) {
  const LengthRange prompt{cell.prompt_tokens, cell.prompt_tokens};
  Workload workload(engine->tokenizer().Encode(kPlainText, {}), prompt, {1, 1}, kSeed);
  Samples warm_up;
  RETURN_IF_ERROR(RunOnce(engine, watch, &workload, cell, &warm_up).status());
  Samples prefill, decode, cache_ratio, step_ms;
  for (int32_t i = 0; i < repeat; ++i) {
    ASSIGN_OR_RETURN(const Speed speed, RunOnce(engine, watch, &workload, cell, &step_ms));
    if (cell.generate > 1 && speed.decode_tps == 0) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: the first sequence ended before the last one began to decode; --settle is %d and "
          "--generate %d: give more",
          cell.name, cell.settle, cell.generate));
    }
    cache_ratio.Add(speed.cache_ratio);
    prefill.Add(speed.prefill_tps);
    decode.Add(speed.decode_tps);
  }
  nlohmann::ordered_json out = {{"cell", cell.name}, {"prefill_tps", prefill.Median()}};
  if (cell.generate > 1) {
    out["decode_tps"] = decode.Median();
    out["step_ms_p50"] = step_ms.Median();
    out["step_ms_p99"] = step_ms.Percentile(0.99);
    out["cache_ratio"] = cache_ratio.Median();
  }
  out["runs"] = repeat;
  out["device"] = engine->model_info().backend.device;
  std::printf("%s\n", ToJsonText(out, false).c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status RunSpeed(const SpeedFlags& flags) {
  std::vector<Cell> cells;
  for (const std::string& name : flags.cells) {
    ASSIGN_OR_RETURN(cells.emplace_back(), ParseCell(name, flags.settle, flags.generate));
  }
  LocalEngineFlags local = flags.engine;
  ASSIGN_OR_RETURN(local.compression, flags.compression.Make());
  StepWatch watch;
  ASSIGN_OR_RETURN(const auto engine, local.MakeEngine([&watch] { watch.OnPublished(); }));
  for (const Cell& cell : cells) RETURN_IF_ERROR(RunCell(engine.get(), &watch, cell, flags.repeat));
  return absl::OkStatus();
}

}  // namespace

void AddSpeed(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<SpeedFlags>();
  flags->cells = {"prefill 512", "decode 1x128", "decode 8x128"};
  CLI::App* command = app->add_subcommand("speed", "Tokens per second of the engine, without gRPC");
  flags->engine.AddTo(command);
  flags->compression.AddTo(command, "off");
  command
      ->add_option("--cell", flags->cells,
                   "\"prefill N\" (a prompt of N tokens) or \"decode BxP\" (B sequences after "
                   "prompts of P tokens); repeatable")
      ->allow_extra_args(false)
      ->capture_default_str();
  command
      ->add_option("--settle", flags->settle,
                   "Tokens that each sequence generates before those that are measured: time for "
                   "the cache to be compacted")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--generate", flags->generate, "Measured tokens per sequence of a decode cell")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--repeat", flags->repeat, "Runs of each cell; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->footer(
      "Prints one JSON line per cell. Decoding is measured while all sequences take part in it.\n\n"
      "Example:\n"
      "  condense speed MODEL --threads 2 --cell \"decode 8x128\"");
  command->callback([flags, exit_code] {
    const absl::Status status = RunSpeed(*flags);
    *exit_code = status.ok() ? static_cast<int>(kExitOk) : Fail(status);
  });
}

}  // namespace condense
