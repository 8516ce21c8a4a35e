#include "engine/quality/confidence.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr double kTiny = 1e-300;
constexpr int kMaxTerms = 5000;   // a few times the root of the largest count
constexpr int kBisections = 200;  // until doubles have no number between, at the latest

double AwayFromZero(double x) { return std::fabs(x) < kTiny ? kTiny : x; }

// The continued fraction of I_x(a, b), evaluated from its front (Lentz); converges fast where
// x < (a + 1) / (a + b + 2).
double BetaFraction(double a, double b, double x) {
  double numerator = 1;
  double denominator = 1 / AwayFromZero(1 - (a + b) * x / (a + 1));
  double fraction = denominator;
  for (int m = 1; m <= kMaxTerms; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    double factor = 1;
    for (const double term : {even, odd}) {
      denominator = 1 / AwayFromZero(1 + term * denominator);
      numerator = AwayFromZero(1 + term / numerator);
      factor = denominator * numerator;
      fraction *= factor;
    }
    if (std::fabs(factor - 1) < 1e-15) break;
  }
  return fraction;
}

// x with I_x(a, b) = `probability`.
double InverseIncompleteBeta(double a, double b, double probability) {
  double low = 0;
  double high = 1;
  for (int i = 0; i < kBisections; ++i) {
    const double middle = 0.5 * (low + high);
    if (middle <= low || middle >= high) break;
    (IncompleteBeta(a, b, middle) < probability ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

// P(at most `successes` of `count`) where each succeeds with `level`.
double BinomialAtMost(int64_t successes, int64_t count, double level) {
  if (successes < 0) return 0;
  if (successes >= count) return 1;
  return IncompleteBeta(static_cast<double>(count - successes), static_cast<double>(successes + 1),
                        1 - level);
}

}  // namespace

double IncompleteBeta(double a, double b, double x) {
  CHECK_GT(a, 0.0);
  CHECK_GT(b, 0.0);
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double log_front =
      std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x);
  const double front = std::exp(log_front);
  if (x < (a + 1) / (a + b + 2)) return front * BetaFraction(a, b, x) / a;
  return 1 - front * BetaFraction(b, a, 1 - x) / b;
}

double StudentQuantile(double probability, double degrees) {
  CHECK(probability > 0 && probability < 1);
  CHECK_GE(degrees, 1.0);
  if (probability < 0.5) return -StudentQuantile(1 - probability, degrees);
  const double nu = std::min(degrees, 1e5);
  // P(T > t) = I_y(nu / 2, 1 / 2) / 2 with y = nu / (nu + t^2); solved for 1 - y, which is small
  // where nu is large.
  const double z = InverseIncompleteBeta(0.5, 0.5 * nu, 2 * probability - 1);
  return std::sqrt(nu * z / (1 - z));
}

double ShareLowerBound(double successes, double trials, double confidence) {
  return 1 - ShareUpperBound(trials - successes, trials, confidence);
}

double ShareUpperBound(double successes, double trials, double confidence) {
  CHECK(trials > 0 && successes >= 0 && successes <= trials);
  CHECK(confidence > 0 && confidence < 1);
  if (successes >= trials) return 1;
  return InverseIncompleteBeta(successes + 1, trials - successes, confidence);
}

int64_t QuantileLowerRank(int64_t count, double level, double confidence) {
  CHECK_GE(count, 1);
  // The largest rank with P(fewer than `rank` samples below the quantile) <= 1 - confidence.
  int64_t low = 0;
  int64_t high = count;
  while (low < high) {
    const int64_t rank = (low + high + 1) / 2;
    const bool holds = BinomialAtMost(rank - 1, count, level) <= 1 - confidence;
    if (holds) {
      low = rank;
    } else {
      high = rank - 1;
    }
  }
  return low;
}

int64_t QuantileUpperRank(int64_t count, double level, double confidence) {
  const int64_t mirrored = QuantileLowerRank(count, 1 - level, confidence);
  return mirrored == 0 ? 0 : count + 1 - mirrored;
}

}  // namespace condense
