#include "kernels/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace condense {

void CheckFailed(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: Check failed: %s\n", file, line, what.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace condense
