#ifndef CONDENSE_KERNELS_CPU_CPU_FEATURES_H_
#define CONDENSE_KERNELS_CPU_CPU_FEATURES_H_

// Which instruction sets the CPU kernels are written for, and which of them this machine can run.

#include <optional>
#include <string_view>
#include <vector>

namespace condense::cpu {

// Ordered: a machine that runs one also runs those before it.
enum class CpuIsa {
  kScalar,      // "scalar": what every x86-64 has
  kAvx2,        // "avx2": AVX2, FMA, F16C
  kAvx512Vnni,  // "avx512vnni": AVX-512 F, BW, VL, DQ, VNNI, and everything of kAvx2
};

const char* CpuIsaName(CpuIsa isa);
// nullopt for a name that is not in the list above. Does not ask whether the machine has it.
std::optional<CpuIsa> ParseCpuIsa(std::string_view name);

bool CpuHas(CpuIsa isa);
// The last of AvailableCpuIsas().
CpuIsa DetectCpuIsa();
// Those that this machine can run, ascending; kScalar is always first.
std::vector<CpuIsa> AvailableCpuIsas();

// Whether kernels for kAvx512Vnni may also use 8-bit AMX tiles: the machine and its kernel have
// them and gave this process leave to use them. Not an instruction set of its own, because it
// changes no result.
bool CpuHasAmx();

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_CPU_FEATURES_H_
