#include "cache/budget.h"

#include <algorithm>

namespace condense {
namespace {

constexpr double kCosineStep = 0.0005;

}  // namespace

double Budget::CurveEntries(const BudgetItem& item, double cosine) const {
  return item.num_entries * curves_->Left(item.unit, UnitCosine(item, cosine));
}

double Budget::Entries(const BudgetItem& item, double cosine) const {
  return std::min<double>(item.num_entries, text_factor_ * CurveEntries(item, cosine));
}

bool Budget::Merges(const BudgetItem& item, double cosine) const {
  return cost_.merged_bytes * Entries(item, cosine) < cost_.plain_bytes * item.num_entries;
}

double Budget::Bytes(const BudgetItem& item, double cosine) const {
  return std::min(cost_.merged_bytes * Entries(item, cosine), cost_.plain_bytes * item.num_entries);
}

double Budget::FindCosine(std::span<const BudgetItem> items, double target_bytes,
                          double lowest) const {
  double reaches = lowest, misses = 1.0;
  while (misses - reaches > kCosineStep) {
    const double middle = (reaches + misses) / 2;
    double bytes = 0.0;
    for (const BudgetItem& item : items) bytes += Bytes(item, middle);
    (bytes <= target_bytes ? reaches : misses) = middle;
  }
  return reaches;
}

}  // namespace condense
