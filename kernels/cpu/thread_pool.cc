#include "kernels/cpu/thread_pool.h"

#include <immintrin.h>
#include <pthread.h>

#include <chrono>
#include <cstdio>

#include "kernels/base/check.h"

namespace condense::cpu {
namespace {

// Longer than the serial parts between two ops of a step, far shorter than a scheduler's time
// slice.
constexpr std::chrono::microseconds kSpinTime(40);
constexpr int kPausesPerClockRead = 16;

// Spins until done() or the time is up; returns the last done().
template <typename Done>
bool SpinUntil(const Done& done) {
  if (done()) return true;
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      _mm_pause();
      if (done()) return true;
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

constexpr uint32_t Untaken(uint64_t tickets) { return static_cast<uint32_t>(tickets); }

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  CHECK_GE(num_threads, 1);
  workers_.reserve(num_threads - 1);
  for (int worker = 1; worker < num_threads; ++worker) {
    workers_.emplace_back([this, worker] { WorkerLoop(worker); });
    char name[16];
    std::snprintf(name, sizeof(name), "cpu-%d", worker);
    pthread_setname_np(workers_.back().native_handle(), name);
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunTasks(int num_tasks, TaskFunction function, const void* context) {
  if (num_tasks <= 0) return;
  if (num_tasks == 1 || workers_.empty()) {
    for (int task = 0; task < num_tasks; ++task) function(context, task, 0);
    return;
  }
  DCHECK_EQ(unfinished_.load(), 0u);
  job_ = {function, context, num_tasks};
  unfinished_.store(num_tasks, std::memory_order_relaxed);
  const uint64_t run = (tickets_.load(std::memory_order_relaxed) >> 32) + 1;
  // Sequentially consistent with parked_workers_: either this sees the worker parked or the worker
  // sees the tasks.
  tickets_.store(run << 32 | static_cast<uint32_t>(num_tasks));
  if (parked_workers_.load() > 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  TakeTasks(0);
  WaitForCompletion();
}

void ThreadPool::TakeTasks(int worker) {
  uint64_t tickets = tickets_.load(std::memory_order_acquire);
  while (Untaken(tickets) > 0) {
    if (!tickets_.compare_exchange_weak(tickets, tickets - 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
      continue;
    }
    job_.function(job_.context, job_.num_tasks - static_cast<int>(Untaken(tickets)), worker);
    // Sequentially consistent with owner_parked_, as above.
    if (unfinished_.fetch_sub(1) == 1 && owner_parked_.load()) unfinished_.notify_one();
    tickets = tickets_.load(std::memory_order_acquire);
  }
}

void ThreadPool::WorkerLoop(int worker) {
  while (true) {
    WaitForTasks();
    if (stop_.load()) return;
    TakeTasks(worker);
  }
}

bool ThreadPool::HasTasks() const {
  return Untaken(tickets_.load()) > 0 || stop_.load(std::memory_order_relaxed);
}

void ThreadPool::WaitForTasks() {
  if (SpinUntil([this] { return HasTasks(); })) return;
  parked_workers_.fetch_add(1);
  while (true) {
    const uint32_t wake = wake_.load();
    if (HasTasks()) break;
    wake_.wait(wake);
  }
  parked_workers_.fetch_sub(1);
}

void ThreadPool::WaitForCompletion() {
  const auto done = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
  if (SpinUntil(done)) return;
  owner_parked_.store(true);
  for (uint32_t left = unfinished_.load(); left != 0; left = unfinished_.load()) {
    unfinished_.wait(left);
  }
  owner_parked_.store(false);
}

}  // namespace condense::cpu
