#ifndef CONDENSE_KERNELS_BASE_CHECK_H_
#define CONDENSE_KERNELS_BASE_CHECK_H_

// CHECK and DCHECK for broken promises inside the program. User input never reaches one: it gets an
// absl::Status.

#include <sstream>
#include <string>

namespace condense {

// Prints "file:line: Check failed: what" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const std::string& what);

namespace check_internal {
template <typename A, typename B>
std::string Describe(const char* text, const A& a, const B& b) {
  std::ostringstream out;
  out << text << " (" << a << " vs. " << b << ")";
  return out.str();
}
}  // namespace check_internal
}  // namespace condense

#define CHECK(condition)                       \
  (__builtin_expect(!!(condition), 1) ? void() \
                                      : ::condense::CheckFailed(__FILE__, __LINE__, #condition))
#define CHECK_OP_(a, b, op)                                                             \
  do {                                                                                  \
    const auto& check_a_ = (a);                                                         \
    const auto& check_b_ = (b);                                                         \
    if (!(__builtin_expect(!!(check_a_ op check_b_), 1)))                               \
      ::condense::CheckFailed(                                                          \
          __FILE__, __LINE__,                                                           \
          ::condense::check_internal::Describe(#a " " #op " " #b, check_a_, check_b_)); \
  } while (false)
#define CHECK_EQ(a, b) CHECK_OP_(a, b, ==)
#define CHECK_NE(a, b) CHECK_OP_(a, b, !=)
#define CHECK_LT(a, b) CHECK_OP_(a, b, <)
#define CHECK_LE(a, b) CHECK_OP_(a, b, <=)
#define CHECK_GT(a, b) CHECK_OP_(a, b, >)
#define CHECK_GE(a, b) CHECK_OP_(a, b, >=)

// DCHECKs stand in loops; they are compiled out of optimized builds (NDEBUG).
#ifdef NDEBUG
#define DCHECK(condition) static_cast<void>(0)
#define DCHECK_EQ(a, b) static_cast<void>(0)
#define DCHECK_LT(a, b) static_cast<void>(0)
#define DCHECK_LE(a, b) static_cast<void>(0)
#define DCHECK_GE(a, b) static_cast<void>(0)
#else
#define DCHECK(condition) CHECK(condition)
#define DCHECK_EQ(a, b) CHECK_EQ(a, b)
#define DCHECK_LT(a, b) CHECK_LT(a, b)
#define DCHECK_LE(a, b) CHECK_LE(a, b)
#define DCHECK_GE(a, b) CHECK_GE(a, b)
#endif

#endif  // CONDENSE_KERNELS_BASE_CHECK_H_
