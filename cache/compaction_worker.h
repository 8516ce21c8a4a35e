#ifndef CONDENSE_CACHE_COMPACTION_WORKER_H_
#define CONDENSE_CACHE_COMPACTION_WORKER_H_

// The thread that carries out compaction jobs.

#include <thread>

#include "cache/compaction_mailbox.h"
#include "cache/compaction_model.h"
#include "cache/compaction_pace.h"
#include "cache/compaction_runner.h"
#include "kernels/backend.h"

namespace condense {

// Owns the thread: takes jobs from the mailbox until it is closed.
// Threads: created and destroyed by the thread that owns the engine. The destructor closes the
// mailbox, lifts the pace, lets the job in hand come to its end and joins; results remain to be
// collected.
class CompactionWorker {
 public:
  // `pace`: how much of the time it may take; null on machines that have a core for it.
  CompactionWorker(Backend* backend, CompactionModel model, CompactionMailbox* mailbox,
                   CompactionPace* pace);
  ~CompactionWorker();
  CompactionWorker(const CompactionWorker&) = delete;
  CompactionWorker& operator=(const CompactionWorker&) = delete;

 private:
  void Loop();

  CompactionMailbox* const mailbox_;
  CompactionPace* const pace_;
  CompactionRunner runner_;  // the thread's
  std::thread thread_;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_COMPACTION_WORKER_H_
