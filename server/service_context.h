#ifndef CONDENSE_SERVER_SERVICE_CONTEXT_H_
#define CONDENSE_SERVER_SERVICE_CONTEXT_H_

// What the services share.

#include "absl/time/time.h"
#include "engine/engine.h"
#include "metrics/metrics.h"
#include "server/convert_request.h"
#include "server/lifecycle.h"
#include "server/limits.h"
#include "server/stream_dispatcher.h"

namespace condense {

// Everything outlives the services. `metrics` may be null.
struct ServiceContext {
  Engine* engine = nullptr;
  StreamDispatcher* dispatcher = nullptr;
  Lifecycle* lifecycle = nullptr;
  Metrics* metrics = nullptr;
  Limits limits;
  absl::Duration drain_timeout;

  ServedModel model() const {
    return {engine->model_info(), engine->tokenizer(), engine->chat_template(), limits,
            engine->config().compaction.cluster_window};
  }
};

}  // namespace condense

#endif  // CONDENSE_SERVER_SERVICE_CONTEXT_H_
