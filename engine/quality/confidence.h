#ifndef CONDENSE_ENGINE_QUALITY_CONFIDENCE_H_
#define CONDENSE_ENGINE_QUALITY_CONFIDENCE_H_

// The quantiles behind one-sided confidence bounds. docs/guardrails.md, "Confidence".

#include <cstdint>

namespace condense {

// Regularized incomplete beta function I_x(a, b). REQUIRES: a, b > 0; x in [0, 1].
double IncompleteBeta(double a, double b, double x);

// t with P(T <= t) = `probability` for Student's distribution with `degrees` of freedom, which need
// not be whole; more than 1e5 count as 1e5. REQUIRES: probability in (0, 1), degrees >= 1.
double StudentQuantile(double probability, double degrees);

// Clopper-Pearson bounds of a share of which `successes` of `trials` were seen; both may be
// fractions. The true share is below the upper bound with at least `confidence`, whatever it is.
// REQUIRES: trials > 0, successes in [0, trials], confidence in (0, 1).
double ShareLowerBound(double successes, double trials, double confidence);
double ShareUpperBound(double successes, double trials, double confidence);

// Ranks in `count` sorted samples, from 1, whose samples bound the `level` quantile from below or
// from above with at least `confidence`, whatever the distribution; 0 if no rank does. REQUIRES:
// count >= 1; level and confidence in (0, 1).
int64_t QuantileLowerRank(int64_t count, double level, double confidence);
int64_t QuantileUpperRank(int64_t count, double level, double confidence);

}  // namespace condense

#endif  // CONDENSE_ENGINE_QUALITY_CONFIDENCE_H_
