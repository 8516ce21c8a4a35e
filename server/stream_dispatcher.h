#ifndef CONDENSE_SERVER_STREAM_DISPATCHER_H_
#define CONDENSE_SERVER_STREAM_DISPATCHER_H_

// One thread that wakes the calls which have new events, so that the engine signals once per step
// and not once per stream.

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/mutex.h"

namespace condense {

// A call that reads a TokenStream.
class StreamReader {
 public:
  virtual ~StreamReader() = default;
  // True if Pump would find something to do. Thread-safe; must not block.
  virtual bool Ready() const = 0;
  // Delivers what there is. Thread-safe; must not block.
  virtual void Pump() = 0;
};

// Owns: the thread, and a share of every reader between Add and Remove. Threads: thread-safe.
class StreamDispatcher {
 public:
  StreamDispatcher();
  ~StreamDispatcher();

  // Pumps all ready readers soon. What EngineConfig::on_published calls: never blocks.
  void Notify();

  void Add(std::shared_ptr<StreamReader> reader);
  // A Pump that runs at the moment ends by itself: the dispatcher keeps its share that long.
  void Remove(const StreamReader* reader);
  // Calls between Add and Remove.
  int32_t num_readers() const;

 private:
  void Run();
  // Waits for a signal, then takes a share of each ready reader. False: stop.
  bool CollectReady(std::vector<std::shared_ptr<StreamReader>>* ready);

  mutable Mutex mutex_;  // a leaf
  CondVar wake_;
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<const StreamReader*, std::shared_ptr<StreamReader>> readers_
      ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses everything above
};

}  // namespace condense

#endif  // CONDENSE_SERVER_STREAM_DISPATCHER_H_
