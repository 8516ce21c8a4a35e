#ifndef CONDENSE_KERNELS_BASE_THREAD_CPU_TIME_H_
#define CONDENSE_KERNELS_BASE_THREAD_CPU_TIME_H_

#include <time.h>

#include <chrono>

namespace condense {

// Of the calling thread, since it began.
inline std::chrono::nanoseconds ThreadCpuTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace condense

#endif  // CONDENSE_KERNELS_BASE_THREAD_CPU_TIME_H_
