#ifndef CONDENSE_TOOLS_EVAL_EVAL_HTML_H_
#define CONDENSE_TOOLS_EVAL_EVAL_HTML_H_

// An evaluation's result as a web page.

#include <string>

#include "tools/eval/eval_result.h"

namespace condense {

// A page that needs no other file: curves of quality against the bytes ratio, and the table.
std::string EvalHtml(const EvalResult& result);

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_EVAL_HTML_H_
