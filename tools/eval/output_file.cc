#include "tools/eval/output_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_format.h"

namespace condense {

absl::Status CheckWritable(const std::string& flag, const std::string& path) {
  std::error_code error;
  const bool was_there = std::filesystem::exists(path, error);
  std::FILE* file = std::fopen(path.c_str(), "ab");
  if (file == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: cannot write \"%s\": %s", flag, path, std::strerror(errno)));
  }
  std::fclose(file);
  if (!was_there) std::filesystem::remove(path, error);
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, std::string_view text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  bool written = file != nullptr;
  if (file != nullptr) {
    written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    written = std::fclose(file) == 0 && written;
  }
  if (written) return absl::OkStatus();
  return absl::InternalError(
      absl::StrFormat("cannot write \"%s\": %s", path, std::strerror(errno)));
}

}  // namespace condense
