#ifndef CONDENSE_KERNELS_HADAMARD_H_
#define CONDENSE_KERNELS_HADAMARD_H_

// The orthonormal transform that spreads outliers of a vector over all of its elements before it is
// quantized.

namespace condense {

// Elements that are mixed with each other: the largest power of two that divides head_dim.
constexpr int HadamardWidth(int head_dim) { return head_dim & -head_dim; }

// x = H x / sqrt(width) for each run of `width` elements of x[0, n), in place; H is Sylvester's
// matrix. Symmetric and orthonormal, hence its own inverse; scalar products are kept. The result is
// the same bit for bit on every machine.
void Hadamard(float* x, int n);

}  // namespace condense

#endif  // CONDENSE_KERNELS_HADAMARD_H_
