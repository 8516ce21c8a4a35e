#include "server/server.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <future>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "metrics/log.h"
#include "server/service_context.h"
#include "server/services.h"

namespace condense {
namespace {

// Time for answers that are complete to reach the wire.
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(500);

const char* const kServiceNames[] = {"condense.v1.Inference", "condense.v1.Text",
                                     "condense.v1.Info", "condense.v1.Admin"};

const char* StateName(ServingState state) {
  switch (state) {
    case ServingState::kServing:
      return "serving";
    case ServingState::kDraining:
      return "draining";
    case ServingState::kStalled:
      return "stalled: work is waiting and no step ends";
  }
  return "unknown";
}

// gRPC prints its own lines to stderr, a failure to listen among them, which we report ourselves.
// GRPC_VERBOSITY brings them back.
void SilenceGrpcLog() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
}

int ToMilliseconds(absl::Duration duration) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 0, INT_MAX));
}

void SetTransport(const ServerOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(
      static_cast<int>(std::min<int64_t>(options.limits.max_message_bytes, INT_MAX)));
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  // A client that vanished without a word is found out, and its requests end.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                              ToMilliseconds(options.keepalive_interval));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              ToMilliseconds(options.keepalive_timeout));
  // Clients may ping while a long prompt is computed and nothing flows.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              ToMilliseconds(options.min_ping_interval));
  if (options.max_connection_age != absl::InfiniteDuration()) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                                ToMilliseconds(options.max_connection_age));
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                                ToMilliseconds(options.max_connection_age_grace));
  }
  if (options.transport_memory_bytes > 0) {
    grpc::ResourceQuota quota("condense");
    quota.Resize(static_cast<size_t>(options.transport_memory_bytes));
    builder->SetResourceQuota(quota);
  }
}

}  // namespace

struct Server::Impl {
  ServiceContext context;
  std::string address;
  int port = 0;
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Lifecycle> lifecycle;

  Progress LookAtEngine() const {
    const EngineLoad load = context.engine->load();
    const bool idle = context.engine->idle();
    // The load is up to one step old, so it may miss a request that has just come.
    const int32_t live = idle ? 0 : std::max(1, load.running + load.queued);
    return {.steps = load.steps,
            .has_work = !idle,
            .failing = load.failing,
            .calls = std::max(live, context.dispatcher->num_readers())};
  }

  void ShowState(ServingState state) {
    const bool serving = state == ServingState::kServing;
    grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
    health->SetServingStatus(serving);  // all names
    if (context.metrics != nullptr) {
      context.metrics->draining.Set(state == ServingState::kDraining ? 1 : 0);
    }
    if (state == ServingState::kStalled) {
      LogError("%s is %s", address, StateName(state));
    } else {
      LogInfo("%s is %s", address, StateName(state));
    }
  }

  absl::Status Listen(const ServerOptions& options) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    SetTransport(options, &builder);
    builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);
    for (const std::unique_ptr<grpc::Service>& service : services) {
      builder.RegisterService(service.get());
    }
    server = builder.BuildAndStart();
    if (server == nullptr || port == 0) {
      return absl::UnavailableError(absl::StrFormat(
          "--listen is %s; the address is in use, not of this machine, or not HOST:PORT",
          options.listen));
    }
    const size_t colon = options.listen.rfind(':');
    address = absl::StrFormat("%s:%d", options.listen.substr(0, colon), port);
    for (const char* name : kServiceNames) {
      server->GetHealthCheckService()->SetServingStatus(name, true);
    }
    return absl::OkStatus();
  }
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Shutdown(); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, Engine* engine,
                                                      StreamDispatcher* dispatcher,
                                                      Metrics* metrics) {
  SilenceGrpcLog();
  auto impl = std::make_unique<Impl>();
  Impl* const raw = impl.get();
  raw->context.engine = engine;
  raw->context.dispatcher = dispatcher;
  raw->context.metrics = metrics;
  raw->context.limits = options.limits;
  raw->context.drain_timeout = options.drain_timeout;
  raw->services.push_back(MakeInferenceService(raw->context));
  raw->services.push_back(MakeTextService(raw->context));
  raw->services.push_back(MakeInfoService(raw->context));
  raw->services.push_back(MakeAdminService(raw->context));
  std::vector<std::string> names(std::begin(kServiceNames), std::end(kServiceNames));
  for (const char* name : {"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
                           "grpc.reflection.v1alpha.ServerReflection"}) {
    names.push_back(name);
  }
  raw->services.push_back(MakeReflectionService(std::move(names)));
  raw->lifecycle =
      std::make_unique<Lifecycle>([raw] { return raw->LookAtEngine(); }, options.stall_timeout,
                                  [raw](ServingState state) { raw->ShowState(state); });
  raw->context.lifecycle = raw->lifecycle.get();

  const absl::Status listening = raw->Listen(options);
  if (!listening.ok()) return listening;
  raw->lifecycle->Start();
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

int Server::port() const { return impl_->port; }
const std::string& Server::address() const { return impl_->address; }

int32_t Server::Drain(absl::Duration timeout) {
  impl_->context.engine->Drain();
  auto remaining = std::make_shared<std::promise<int32_t>>();
  std::future<int32_t> result = remaining->get_future();
  impl_->lifecycle->Drain(timeout, [remaining](int32_t calls) { remaining->set_value(calls); });
  return result.get();
}

void Server::Shutdown() {
  impl_->server->Shutdown(std::chrono::system_clock::now() +
                          absl::ToChronoMilliseconds(kShutdownGrace));
}

}  // namespace condense
