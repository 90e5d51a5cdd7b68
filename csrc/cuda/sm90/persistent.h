// A row of the table that is a persistent CUTLASS kernel. setup.py compiles this once for every
// such row, with SCALED_MM_ROW defined as the row's name.
#define CUTLASS_ENABLE_GDC_FOR_SM90 1  // programmatic dependent launch: the kernel waits for it

#include "cuda/cutlass3/gemm.h"
#include "cuda/launch.h"
#include "cuda/sm90/arch.h"

namespace scaled_mm::cuda {

template <>
void Launch<sm90::RowId::SCALED_MM_ROW>::run(const Product& p, const Device& device,
                                             cudaStream_t stream) {
  constexpr auto row = sm90::RowId::SCALED_MM_ROW;
  switch (p.instance) {
#define INSTANCE(name, epilogue_name) \
  case Instance::name: return cutlass3::run<row, epilogue::epilogue_name>(p, device, stream);
#include "cuda/instances.def"
#undef INSTANCE
  }
}

}  // namespace scaled_mm::cuda
