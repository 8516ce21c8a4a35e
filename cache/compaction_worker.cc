#include "cache/compaction_worker.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <optional>
#include <utility>

namespace condense {
namespace {

// Beside a thread of the pool on the same core it gets 0.39 of it; 2,000 prompt tokens a second of
// SmolLM2-135M take 0.33. At 19 the cache of 8 sequences of 2,048 was at 1.6x after 100 tokens
// each, at 0 at 4.4x. Measured in docs/design.md.
constexpr int kYieldingNice = 2;

}  // namespace

CompactionWorker::CompactionWorker(Backend* backend, CompactionModel model,
                                   CompactionMailbox* mailbox, bool yields)
    : mailbox_(mailbox),
      runner_(backend, std::move(model)),
      thread_([this, yields] { Loop(yields); }) {}

CompactionWorker::~CompactionWorker() {
  mailbox_->Close();
  thread_.join();
}

void CompactionWorker::Loop(bool yields) {
  pthread_setname_np(pthread_self(), "compaction");
  // On Linux a priority is a thread's. A machine that refuses costs speed, nothing else.
  if (yields) {
    const auto self = static_cast<id_t>(gettid());
    setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + kYieldingNice);
  }
  while (const std::optional<CompactionJob> job = mailbox_->Take()) {
    mailbox_->Return(runner_.Run(*job));
  }
}

}  // namespace condense
