#ifndef CONDENSE_KERNELS_CPU_THREAD_POOL_H_
#define CONDENSE_KERNELS_CPU_THREAD_POOL_H_

// Fork-join over a fixed set of threads for the slices of one backend op: no allocation, no lock,
// spin then park.

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace condense::cpu {

// Threads: one owner at a time calls Run; the calling thread is worker 0. Workers belong to the
// pool and end with it. A worker that is late (parked, or its core taken by someone else) holds
// nobody up: whoever is awake takes the tasks, and Run waits only for tasks that were begun.
class ThreadPool {
 public:
  // REQUIRES: num_threads >= 1; num_threads - 1 threads are started.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls function(task, worker) once for every task in [0, num_tasks), begun in ascending order,
  // and returns when all have finished; their writes are then visible to the caller. worker is in
  // [0, num_threads()), and no two running tasks share one. REQUIRES: not called from a task.
  template <typename Function>
  void Run(int num_tasks, const Function& function) {
    static_assert(std::is_invocable_v<const Function&, int, int>, "function(int task, int worker)");
    RunTasks(num_tasks, &Call<Function>, &function);
  }

 private:
  using TaskFunction = void (*)(const void* context, int task, int worker);
  struct Job {
    TaskFunction function = nullptr;
    const void* context = nullptr;
    int num_tasks = 0;
  };

  template <typename Function>
  static void Call(const void* context, int task, int worker) {
    (*static_cast<const Function*>(context))(task, worker);
  }

  void RunTasks(int num_tasks, TaskFunction function, const void* context);
  // Takes and runs tasks until none is left to take.
  void TakeTasks(int worker);
  void WorkerLoop(int worker);
  // Returns when there is a task to take or the pool ends.
  void WaitForTasks();
  void WaitForCompletion();
  bool HasTasks() const;

  // Written by the owner while no task is unfinished; read by workers after they have taken a task.
  Job job_;
  // High 32 bits: number of the run. Low 32 bits: tasks not yet taken. One word, so that a worker
  // which slept through the end of a run cannot take a task of the next one by mistake.
  alignas(64) std::atomic<uint64_t> tickets_{0};
  alignas(64) std::atomic<uint32_t> unfinished_{0};
  alignas(64) std::atomic<bool> owner_parked_{false};
  std::atomic<uint32_t> parked_workers_{0};
  std::atomic<uint32_t> wake_{0};  // changes whenever parked workers must look again
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_THREAD_POOL_H_
