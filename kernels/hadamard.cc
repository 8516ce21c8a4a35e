#include "kernels/hadamard.h"

#include <cmath>

namespace condense {

void Hadamard(float* x, int n) {
  const int width = HadamardWidth(n);
  for (int half = 1; half < width; half *= 2) {
    for (int first = 0; first < n; first += 2 * half) {
      float* a = x + first;
      float* b = a + half;
      for (int i = 0; i < half; ++i) {
        const float sum = a[i] + b[i];
        b[i] = a[i] - b[i];
        a[i] = sum;
      }
    }
  }
  const float factor = 1.0f / std::sqrt(static_cast<float>(width));
  for (int i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace condense
