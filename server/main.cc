// `condensed`: flags -> metrics, engine, server -> wait for a signal -> drain -> tear down in
// reverse.

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/str_format.h"
#include "engine/engine.h"
#include "metrics/exposer.h"
#include "metrics/log.h"
#include "metrics/metrics.h"
#include "server/flags.h"
#include "server/server.h"
#include "server/stream_dispatcher.h"

namespace condense {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

// SIGTERM and SIGINT, taken by a thread of their own. The first one asks for a drain, or ends the
// process where there is nothing to drain yet; the second one ends the process at once.
// Threads: main thread; to be made before any other thread, which inherit the blocked signals.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    std::thread([this] { Run(); }).detach();
  }

  // Blocks until the first signal.
  void Wait() {
    MutexLock lock(&mutex_);
    waited_for_ = true;
    while (!stop_) came_.Wait(&mutex_);
  }

 private:
  void Run() {
    while (true) {
      int signal = 0;
      sigwait(&set_, &signal);
      MutexLock lock(&mutex_);
      if (stop_ || !waited_for_) _exit(128 + signal);
      stop_ = true;
      came_.Signal();
    }
  }

  sigset_t set_;
  Mutex mutex_;
  CondVar came_;
  bool waited_for_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

int Fail(const absl::Status& status, int exit_status) {
  absl::FPrintF(stderr, "condensed: %s\n", std::string(status.message()));
  return exit_status;
}

int Serve(CommandLine line, Signals* signals) {
  StreamDispatcher dispatcher;
  line.engine.on_published = [&dispatcher] { dispatcher.Notify(); };
  if (line.engine.model_name.empty()) {
    line.engine.model_name = std::filesystem::path(line.engine.model_path).stem().string();
  }
  Metrics metrics(line.engine.model_name);

  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Make(line.engine, &metrics);
  if (!engine.ok()) {
    return Fail(engine.status(),
                absl::IsInvalidArgument(engine.status()) ? kExitUsage : kExitFailure);
  }
  std::unique_ptr<Exposer> exposer;
  if (!line.metrics_listen.empty()) {
    absl::StatusOr<std::unique_ptr<Exposer>> made = Exposer::Make(line.metrics_listen, metrics);
    if (!made.ok()) return Fail(made.status(), kExitFailure);
    exposer = *std::move(made);
  }
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(line.server, engine->get(), &dispatcher, &metrics);
  if (!server.ok()) return Fail(server.status(), kExitFailure);

  if (exposer != nullptr) {
    const std::string host = line.metrics_listen.substr(0, line.metrics_listen.rfind(':'));
    absl::PrintF("condensed: metrics on http://%s:%d/metrics\n", host, exposer->port());
  }
  absl::PrintF("condensed: serving %s on %s\n", (*engine)->model_info().name, (*server)->address());
  std::fflush(stdout);

  signals->Wait();
  LogInfo("draining, up to %s; a second signal ends the process at once",
          absl::FormatDuration(line.server.drain_timeout));
  const int32_t remaining = (*server)->Drain(line.server.drain_timeout);
  if (remaining > 0) LogWarning("%d requests are cut off by the end of the drain", remaining);
  (*server)->Shutdown();
  return 0;
}

int Main(int argc, char** argv) {
  absl::StatusOr<CommandLine> line = ParseCommandLine(argc, argv);
  if (!line.ok()) return Fail(line.status(), kExitUsage);
  const absl::Status level = SetLogLevel(line->log_level);
  if (!level.ok()) return Fail(level, kExitUsage);
  // Lives as long as the process: its thread is never joined.
  auto* const signals = new Signals();
  return Serve(*std::move(line), signals);
}

}  // namespace
}  // namespace condense

int main(int argc, char** argv) { return condense::Main(argc, argv); }
