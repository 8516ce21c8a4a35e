#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "condense/v1/admin.grpc.pb.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "metrics/log.h"
#include "server/convert_compression.h"
#include "server/convert_status.h"
#include "server/field_check.h"
#include "server/service_context.h"
#include "server/services.h"

namespace condense {
namespace {

constexpr double kMaxDrainSeconds = 86400;

// Finishes when the drain is over or the client leaves; the drain itself goes on in either case.
class DrainReactor final : public grpc::ServerUnaryReactor {
 public:
  static DrainReactor* Start(Lifecycle* lifecycle, absl::Duration timeout,
                             v1::DrainResponse* response) {
    auto reactor = std::make_shared<DrainReactor>(response);
    reactor->self_ = reactor;
    lifecycle->Drain(timeout, [reactor](int32_t remaining) { reactor->Report(remaining); });
    return reactor.get();
  }

  explicit DrainReactor(v1::DrainResponse* response) : response_(response) {}

 private:
  void Report(int32_t remaining) {
    MutexLock lock(&mutex_);
    if (std::exchange(finished_, true)) return;
    response_->set_drained(remaining == 0);
    response_->set_remaining(remaining);
    Finish(grpc::Status::OK);
  }

  void OnCancel() override {
    MutexLock lock(&mutex_);
    if (std::exchange(finished_, true)) return;
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the call was cancelled"));
  }

  void OnDone() override { const std::shared_ptr<DrainReactor> last = std::move(self_); }

  v1::DrainResponse* const response_;
  Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<DrainReactor> self_;
};

class AdminService final : public v1::Admin::CallbackService {
 public:
  explicit AdminService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* call,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override {
    const absl::Status checked =
        CheckName("request_id", request->request_id(), context_.limits.max_request_id_bytes);
    if (checked.ok()) {
      response->set_found(context_.engine->Abort(request->request_id()));
      LogInfo("abort of request %s: %s", request->request_id(),
              response->found() ? "found" : "not found");
    }
    return FinishWith(call, checked);
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* call,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override {
    absl::Duration timeout = context_.drain_timeout;
    if (request->has_timeout_seconds()) {
      const absl::Status checked =
          CheckRange("timeout_seconds", request->timeout_seconds(), 0, kMaxDrainSeconds);
      if (!checked.ok()) return FinishWith(call, checked);
      timeout = absl::Seconds(request->timeout_seconds());
    }
    LogInfo("drain asked for by a client, up to %s", absl::FormatDuration(timeout));
    context_.engine->Drain();
    return DrainReactor::Start(context_.lifecycle, timeout, response);
  }

  grpc::ServerUnaryReactor* SetCompression(grpc::CallbackServerContext* call,
                                           const v1::SetCompressionRequest* request,
                                           v1::SetCompressionResponse* response) override {
    const absl::Status status = Change(*request);
    if (status.ok()) FillState(response->mutable_state());
    return FinishWith(call, status);
  }

  grpc::ServerUnaryReactor* GetCompression(grpc::CallbackServerContext* call,
                                           const v1::GetCompressionRequest* /*request*/,
                                           v1::GetCompressionResponse* response) override {
    FillState(response->mutable_state());
    return FinishWith(call, absl::OkStatus());
  }

 private:
  absl::Status Change(const v1::SetCompressionRequest& request) {
    Engine& engine = *context_.engine;
    ASSIGN_OR_RETURN(
        std::optional<Compression> compression,
        ToCompression(request.compression(), engine.config().compaction.cluster_window));
    if (!compression.has_value() && !request.has_paused() && !request.has_mode()) {
      return absl::InvalidArgumentError(
          "nothing is set; must be at least one of compression.preset, compression.policy, "
          "compression.ratio, paused, mode");
    }
    std::optional<GuardrailMode> mode;
    if (request.has_mode()) {
      ASSIGN_OR_RETURN(mode, ToForcedMode(request.mode()));
      // Before anything changes.
      if (!engine.config().guard) return engine.ForceMode(mode);
    }
    if (compression.has_value()) {
      LogInfo("compression of new requests: preset %s, policy %s, ratio %g", compression->preset,
              compression->policy, compression->ratio);
      RETURN_IF_ERROR(engine.SetCompression(*std::move(compression)));
    }
    if (request.has_paused()) {
      LogInfo("compaction is %s", request.paused() ? "paused" : "on");
      engine.PauseCompaction(request.paused());
    }
    if (!request.has_mode()) return absl::OkStatus();
    LogInfo("mode of compaction asked for: %s", request.mode());
    return engine.ForceMode(mode);
  }

  void FillState(v1::CompressionState* state) const {
    const Engine& engine = *context_.engine;
    FillCompressionState(engine.GetCompression(), engine.compaction_paused(), engine.load(), state);
  }

  static grpc::ServerUnaryReactor* FinishWith(grpc::CallbackServerContext* call,
                                              const absl::Status& status) {
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }

  const ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const ServiceContext& context) {
  return std::make_unique<AdminService>(context);
}

}  // namespace condense
