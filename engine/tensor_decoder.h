#ifndef CONDENSE_ENGINE_TENSOR_DECODER_H_
#define CONDENSE_ENGINE_TENSOR_DECODER_H_

// GGUF tensor blocks -> the packed weight layouts of kernels/packed_weights.h, or plain floats.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/gguf.h"
#include "kernels/packed_weights.h"

namespace condense {

// How a matrix of this file type is kept in memory.
//   Q4_0, Q4_1, Q4_K        kPacked4   same codes; scale and min rounded to f16
//   Q5_0, Q8_0              kPacked8   exact
//   Q5_1, Q5_K, Q6_K        kPacked8   requantized: scale = max|w| / 127 per 32 columns
//   F32, F16, BF16          unchanged
WeightFormat DecodedFormat(TensorType type);

// Decodes rows [first_row, first_row + num_rows) of a matrix into the stream of a [num_rows,
// dims[0]] matrix. REQUIRES: tensor.dims is [cols, rows]; the stream is zero and holds
// WeightBytes(DecodedFormat, num_rows, cols). Errors: DATA_LOSS naming tensor and row where a
// weight or a scale is not finite or leaves the range of f16. Threads: callers may decode disjoint
// row groups of one tensor at the same time.
absl::Status DecodeMatrixRows(const GgufTensor& tensor, int64_t first_row, int64_t num_rows,
                              std::byte* stream);

// Decodes a one-dimensional F32, F16 or BF16 tensor of dims[0] floats.
// Errors: as above.
absl::Status DecodeVector(const GgufTensor& tensor, float* values);

}  // namespace condense

#endif  // CONDENSE_ENGINE_TENSOR_DECODER_H_
