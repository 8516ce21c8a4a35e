#ifndef CONDENSE_TOOLS_EVAL_EVAL_COLUMNS_H_
#define CONDENSE_TOOLS_EVAL_EVAL_COLUMNS_H_

// The table of an evaluation as text, whatever it is shown on.

#include <string>
#include <vector>

#include "tools/eval/eval_result.h"

namespace condense {

struct EvalColumns {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // the full cache, then the cells in their order
};
// Columns of what was not measured are left out. The first is text, the others are numbers.
EvalColumns MakeEvalColumns(const EvalResult& result);

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_EVAL_COLUMNS_H_
