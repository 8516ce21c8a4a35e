#ifndef CONDENSE_TESTS_SUPPORT_WATCHED_ENGINE_H_
#define CONDENSE_TESTS_SUPPORT_WATCHED_ENGINE_H_

// An engine that compacts, on a tiny model, whose steps a test watches and holds up.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/base/mutex.h"
#include "tests/support/engine_harness.h"

namespace condense {

// Two layers x two KV heads of 32: a block of 32 tokens of one of these four units takes 4 KiB in
// 16 bits, a slab of 64 KiB holds 16 of them. One thread for the model, one for compaction; freed
// blocks are poisoned.
EngineConfig CompactingConfig();
inline constexpr int64_t kTinySlabBytes = 64 << 10;
inline constexpr int kTinyUnits = 4;

// Greedy, with logprobs, over a random prompt.
Request CompactedRequest(std::string id, int prompt_tokens, int max_tokens,
                         std::string_view preset);

class WatchedEngine {
 public:
  // Called on the engine's thread after every step that published something; the next step waits
  // for its return.
  using Watch = std::function<void(const EngineLoad&)>;

  explicit WatchedEngine(EngineConfig config, std::unique_ptr<Backend> backend = nullptr,
                         Metrics* metrics = nullptr);
  ~WatchedEngine() { Destroy(); }

  Engine* get() { return engine_.get(); }
  Engine* operator->() { return engine_.get(); }
  void SetWatch(Watch watch);
  void Destroy();

  Answer Run(Request request) { return RunRequest(engine_.get(), std::move(request)); }
  // Lets the request generate until `enough`, then aborts it. `last`: the load of its last step.
  // Fails the test if it ends before.
  Answer RunUntil(Request request, const std::function<bool(const EngineLoad&)>& enough,
                  EngineLoad* last);
  // Waits until nothing of the cache is held by anyone; fails the test if that takes too long.
  EngineLoad Settled();
  // Waits for a load that `holds` says yes to.
  EngineLoad Await(const std::function<bool(const EngineLoad&)>& holds);

 private:
  void OnPublished();

  Mutex mutex_;
  Engine* watched_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Watch watch_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Engine> engine_;
};

}  // namespace condense

#endif  // CONDENSE_TESTS_SUPPORT_WATCHED_ENGINE_H_
