# Proves that the C++ sources are formatted as .clang-format says. Run as
#   cmake -DROOT=<repository> -P tests/format.cmake

cmake_minimum_required(VERSION 3.25)

# Other versions format differently, so only this one counts.
find_program(CLANG_FORMAT clang-format-14)
if(NOT CLANG_FORMAT)
  message("SKIPPED: clang-format-14 is not installed (scripts/setup installs it)")
  return()
endif()

set(patterns *.h *.cc *.cuh *.cu)
execute_process(COMMAND git -C ${ROOT} ls-files --cached --others --exclude-standard -- ${patterns}
  OUTPUT_VARIABLE listed RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
if(failed)  # an export without the history
  list(TRANSFORM patterns PREPEND ${ROOT}/)
  file(GLOB_RECURSE listed RELATIVE ${ROOT} ${patterns})
  list(FILTER listed EXCLUDE REGEX "^build/")
endif()
string(REPLACE "\n" ";" listed "${listed}")
set(files)
foreach(file ${listed})
  if(EXISTS ${ROOT}/${file})  # one that was removed is still listed until the commit
    list(APPEND files ${file})
  endif()
endforeach()
list(LENGTH files count)
if(count EQUAL 0)
  message(FATAL_ERROR "no sources under ${ROOT}")
endif()

execute_process(COMMAND ${CLANG_FORMAT} --dry-run -Werror ${files} WORKING_DIRECTORY ${ROOT}
  RESULT_VARIABLE failed ERROR_VARIABLE complaints)
if(failed)
  string(REGEX MATCHALL "[^\n]*: error: [^\n]*" complaints "${complaints}")
  list(TRANSFORM complaints REPLACE ": error: .*" "")
  list(JOIN complaints "\n" complaints)
  message(NOTICE "${complaints}")
  message(FATAL_ERROR "these places are not formatted; clang-format-14 -i FILE mends it")
endif()
message(STATUS "${count} files are formatted")
