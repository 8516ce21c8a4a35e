#include "cache/query_findings.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"

namespace condense {

void AddAsOneEntry(const QueryFindings& rest, QueryFindings* part) {
  CHECK(rest.head_dim == part->head_dim && rest.num_rows() == part->num_rows());
  const int32_t n = part->num_entries, head_dim = part->head_dim;
  FloatArray masses;
  masses.reserve(int64_t{part->num_rows()} * (n + 1));
  for (int32_t row = 0; row < part->num_rows(); ++row) {
    const double of_part = part->log_sum_exp[row], of_rest = rest.log_sum_exp[row];
    const double top = std::max(of_part, of_rest);
    const double sum = std::exp(of_part - top) + std::exp(of_rest - top);
    const auto part_share = static_cast<float>(std::exp(of_part - top) / sum);
    const auto rest_share = static_cast<float>(std::exp(of_rest - top) / sum);
    part->log_sum_exp[row] = static_cast<float>(top + std::log(sum));
    float* const out = part->out.data() + int64_t{row} * head_dim;
    const float* const other = rest.out_of(row);
    for (int32_t d = 0; d < head_dim; ++d) out[d] = part_share * out[d] + rest_share * other[d];
    const float* const mass = part->mass_of(row);
    for (int32_t e = 0; e < n; ++e) masses.push_back(part_share * mass[e]);
    masses.push_back(rest_share);
  }
  part->num_entries = n + 1;
  part->mass = std::move(masses);
}

}  // namespace condense
