#include "kernels/cpu/cpu_features.h"

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "kernels/base/check.h"

namespace condense::cpu {
namespace {

bool HasScalar() { return true; }

// clang 14 does not know "f16c" as a name for __builtin_cpu_supports.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
}

bool HasAvx512Vnni() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

__attribute__((target("xsave"))) bool SystemSavesTiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_OSXSAVE) == 0) return false;
  constexpr uint64_t kTileConfigAndData = 3u << 17;
  return (_xgetbv(0) & kTileConfigAndData) == kTileConfigAndData;
}

// Linux keeps the 8 KiB of tile data off until a process asks for them.
bool RequestTileData() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool DetectAmx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!HasAvx512Vnni() || __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxTileAndInt8 = 3u << 24;
  return (edx & kAmxTileAndInt8) == kAmxTileAndInt8 && SystemSavesTiles() && RequestTileData();
}

struct IsaRow {
  CpuIsa isa;
  const char* name;
  bool (*available)();
};

constexpr IsaRow kRows[] = {
    {CpuIsa::kScalar, "scalar", HasScalar},
    {CpuIsa::kAvx2, "avx2", HasAvx2},
    {CpuIsa::kAvx512Vnni, "avx512vnni", HasAvx512Vnni},
};

const IsaRow& RowOf(CpuIsa isa) {
  for (const IsaRow& row : kRows) {
    if (row.isa == isa) return row;
  }
  CheckFailed(__FILE__, __LINE__, "instruction set without a row");
}

}  // namespace

const char* CpuIsaName(CpuIsa isa) { return RowOf(isa).name; }

std::optional<CpuIsa> ParseCpuIsa(std::string_view name) {
  for (const IsaRow& row : kRows) {
    if (row.name == name) return row.isa;
  }
  return std::nullopt;
}

bool CpuHas(CpuIsa isa) { return RowOf(isa).available(); }

CpuIsa DetectCpuIsa() { return AvailableCpuIsas().back(); }

std::vector<CpuIsa> AvailableCpuIsas() {
  std::vector<CpuIsa> isas;
  for (const IsaRow& row : kRows) {
    if (row.available()) isas.push_back(row.isa);
  }
  return isas;
}

bool CpuHasAmx() {
  static const bool has_amx = DetectAmx();
  return has_amx;
}

}  // namespace condense::cpu
