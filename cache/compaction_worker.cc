#include "cache/compaction_worker.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <optional>
#include <utility>

namespace condense {
namespace {

constexpr int kLowestPriority = 19;

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
  if (yields) setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLowestPriority);
  while (const std::optional<CompactionJob> job = mailbox_->Take()) {
    mailbox_->Return(runner_.Run(*job));
  }
}

}  // namespace condense
