// What the CPU library tells of itself.
#include <torch/csrc/stable/library.h>

#include "cpu/isa.h"
#include "dispatch/library.h"
#include "ops/namespace.h"

namespace scaled_mm::cpu {
namespace {

std::string isa_in_use() { return instruction_set().name; }
std::string force_isa(std::string name) { return forced_isa().exchange(name); }

}  // namespace
}  // namespace scaled_mm::cpu

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  scaled_mm::register_kernels(ops);
  ops.impl("_gpus", TORCH_BOX(&scaled_mm::list_gpus));
  ops.impl("_fingerprint", TORCH_BOX(&scaled_mm::fingerprint));
  ops.impl("_cpu_isas", TORCH_BOX(&scaled_mm::cpu::list_isas));
  ops.impl("_cpu_isa", TORCH_BOX(&scaled_mm::cpu::isa_in_use));
  ops.impl("_force_cpu_isa", TORCH_BOX(&scaled_mm::cpu::force_isa));
}
