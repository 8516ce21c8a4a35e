#ifndef CONDENSE_ENGINE_ATTENTION_SAVING_H_
#define CONDENSE_ENGINE_ATTENTION_SAVING_H_

// How much shorter decode steps are because caches are compacted.

#include <cstdint>

#include "absl/time/time.h"

namespace condense {

// Learns, by a line through the steps of the past, how attention's time per token falls with the
// share of bytes that compaction saves: nobody can measure the step that would have been.
// Threads: thread-compatible.
class AttentionSaving {
 public:
  // A step in which every sequence decoded: attention over `tokens` logical tokens took `time`;
  // they hold (1 - saved_share) of their bytes in 16 bits.
  void Observe(absl::Duration time, int64_t tokens, double saved_share);
  // A step of another kind.
  void Skip() { saved_ = absl::ZeroDuration(); }

  // What the next step is expected to save, if it is like the last one: carefully, 3/4 of it.
  absl::Duration saved() const { return saved_; }

 private:
  void Learn(double share, double seconds_per_token);

  // Sums over steps, older ones fading: of 1, share, seconds per token, and their products.
  double weight_ = 0.0, x_ = 0.0, y_ = 0.0, xx_ = 0.0, xy_ = 0.0;
  double slope_ = 0.0;  // seconds per token that a whole share would save
  absl::Duration saved_;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_ATTENTION_SAVING_H_
