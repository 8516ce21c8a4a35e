#ifndef CONDENSE_TOOLS_EVAL_EVAL_REPORT_H_
#define CONDENSE_TOOLS_EVAL_EVAL_REPORT_H_

// An evaluation's result as text for a terminal and as JSON.

#include <string>

#include "nlohmann/json.hpp"
#include "tools/eval/eval_result.h"

namespace condense {

// One line per cell, the full cache first. Ends with a newline.
std::string EvalTable(const EvalResult& result);

// The settings, "reference" and "cells": one object each, with the fields of docs/quality.md.
// Numbers that were not measured are null.
nlohmann::ordered_json EvalJson(const EvalResult& result);

}  // namespace condense

#endif  // CONDENSE_TOOLS_EVAL_EVAL_REPORT_H_
