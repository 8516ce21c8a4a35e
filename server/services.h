#ifndef CONDENSE_SERVER_SERVICES_H_
#define CONDENSE_SERVER_SERVICES_H_

// The gRPC services, behind factories so that only their own sources read gRPC's headers.

#include <memory>
#include <string>
#include <vector>

namespace grpc {
class Service;
}  // namespace grpc

namespace condense {

struct ServiceContext;

// `context` outlives the service. Threads: a service is thread-safe.
std::unique_ptr<grpc::Service> MakeInferenceService(const ServiceContext& context);
std::unique_ptr<grpc::Service> MakeTextService(const ServiceContext& context);
std::unique_ptr<grpc::Service> MakeInfoService(const ServiceContext& context);
std::unique_ptr<grpc::Service> MakeAdminService(const ServiceContext& context);
// grpc.reflection.v1, which gRPC 1.51 does not have; `service_names` are what it lists.
std::unique_ptr<grpc::Service> MakeReflectionService(std::vector<std::string> service_names);

}  // namespace condense

#endif  // CONDENSE_SERVER_SERVICES_H_
