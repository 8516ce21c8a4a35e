#include "tools/condense.h"

int main(int argc, char** argv) { return condense::RunCondense(argc, argv); }
