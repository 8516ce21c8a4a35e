#include <grpcpp/grpcpp.h>

#include "condense/v1/info.grpc.pb.h"
#include "server/convert_compression.h"
#include "server/convert_response.h"
#include "server/service_context.h"
#include "server/services.h"

namespace condense {
namespace {

// Grows with every field that is added to condense.v1.
constexpr int32_t kSchemaRevision = 4;

v1::GetServerInfoResponse::State ToProto(ServingState state) {
  switch (state) {
    case ServingState::kServing:
      return v1::GetServerInfoResponse::STATE_SERVING;
    case ServingState::kDraining:
      return v1::GetServerInfoResponse::STATE_DRAINING;
    case ServingState::kStalled:
      return v1::GetServerInfoResponse::STATE_STALLED;
  }
  return v1::GetServerInfoResponse::STATE_UNSPECIFIED;
}

grpc::ServerUnaryReactor* FinishOk(grpc::CallbackServerContext* call) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

class InfoService final : public v1::Info::CallbackService {
 public:
  explicit InfoService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* call,
                                          const v1::GetServerInfoRequest* /*request*/,
                                          v1::GetServerInfoResponse* response) override {
    const ModelInfo& model = context_.engine->model_info();
    const EngineConfig& config = context_.engine->config();
    response->set_version(CONDENSE_VERSION);
    response->set_backend(model.backend.name);
    response->set_device(model.backend.device);
    response->set_schema_revision(kSchemaRevision);
    response->set_uptime_seconds(absl::ToDoubleSeconds(context_.lifecycle->uptime()));
    response->set_state(ToProto(context_.lifecycle->state()));
    const Compression compression = context_.engine->GetCompression();
    const EngineLoad load = context_.engine->load();
    response->set_compression_mode(load.compaction_mode);
    response->set_compression_mode_reason(load.compaction_reason);
    response->set_compression_preset(compression.preset);
    response->set_compression_policy(compression.policy);
    response->set_compression_ratio(compression.ratio);
    FillGuardReadings(context_.engine->guard_reports(), config.guard_limits,
                      response->mutable_guard_readings());
    auto& limits = *response->mutable_limits();
    VisitLimits(context_.limits, [&](const char* name, int64_t value) { limits[name] = value; });
    limits["max_prompt_tokens"] = model.max_context - 1;
    limits["max_request_tokens"] = model.max_request_tokens;
    limits["max_queued_requests"] = config.max_queued_requests;
    limits["max_queued_tokens"] = config.max_queued_tokens;
    response->set_kv_memory_bytes(model.kv_memory_bytes);
    response->set_max_sequences(config.max_sequences);
    response->set_step_tokens(config.step_tokens);
    return FinishOk(call);
  }

  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* call,
                                         const v1::GetModelInfoRequest* /*request*/,
                                         v1::GetModelInfoResponse* response) override {
    FillModelInfo(context_.model(), response);
    return FinishOk(call);
  }

  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* call,
                                    const v1::GetLoadRequest* /*request*/,
                                    v1::GetLoadResponse* response) override {
    FillLoad(context_.engine->load(), absl::Now(), response);
    return FinishOk(call);
  }

 private:
  const ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInfoService(const ServiceContext& context) {
  return std::make_unique<InfoService>(context);
}

}  // namespace condense
