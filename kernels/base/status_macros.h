#ifndef CONDENSE_KERNELS_BASE_STATUS_MACROS_H_
#define CONDENSE_KERNELS_BASE_STATUS_MACROS_H_

// Early return on a bad absl::Status. Debian's absl (20220623) has no such macros.

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RETURN_IF_ERROR(expression)                \
  do {                                             \
    absl::Status status_macro_ = (expression);     \
    if (!status_macro_.ok()) return status_macro_; \
  } while (false)

#define STATUS_MACRO_CONCAT_(a, b) a##b
#define STATUS_MACRO_NAME_(a, b) STATUS_MACRO_CONCAT_(a, b)
#define ASSIGN_OR_RETURN(lhs, expression) \
  ASSIGN_OR_RETURN_IMPL_(STATUS_MACRO_NAME_(statusor_, __LINE__), lhs, expression)
#define ASSIGN_OR_RETURN_IMPL_(name, lhs, expression) \
  auto name = (expression);                           \
  if (!name.ok()) return name.status();               \
  lhs = std::move(name).value()

#endif  // CONDENSE_KERNELS_BASE_STATUS_MACROS_H_
