#include "cache/compaction_worker.h"

#include <pthread.h>

#include <optional>
#include <utility>

namespace condense {

CompactionWorker::CompactionWorker(Backend* backend, CompactionModel model,
                                   CompactionMailbox* mailbox, CompactionPace* pace)
    : mailbox_(mailbox),
      pace_(pace),
      runner_(backend, std::move(model), pace),
      thread_([this] { Loop(); }) {}

CompactionWorker::~CompactionWorker() {
  mailbox_->Close();
  if (pace_ != nullptr) pace_->Lift();
  thread_.join();
}

void CompactionWorker::Loop() {
  pthread_setname_np(pthread_self(), "compaction");
  while (const std::optional<CompactionJob> job = mailbox_->Take()) {
    mailbox_->Return(runner_.Run(*job));
  }
}

}  // namespace condense
