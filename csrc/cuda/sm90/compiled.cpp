// How lines of int8.table cut a product, for epilogues that were compiled for one of them.
#include <string_view>

#include "cuda/sm90/arch.h"

namespace scaled_mm::cuda::sm90::int8 {
namespace {

LinePlan plan_of(const Stream& tile, const Int8Problem::Size& size, const Machine& machine,
                 bool settled) {
  return {.streams = true, .stream = plan_stream(tile, size, machine, settled)};
}

LinePlan plan_of(const Persistent& tile, const Int8Problem::Size& size, const Machine&, bool) {
  return {.swizzle = tile.band_width(size)};
}

}  // namespace

LinePlan plan_line(const char* name, const Int8Problem::Size& size, const Machine& machine,
                   bool settled) {
  const std::string_view wanted = name;
#define KERNEL(name, ...) \
  if (wanted == #name) return plan_of(name, size, machine, settled);
#include "cuda/sm90/int8.table"
#undef KERNEL
  return {};
}

}  // namespace scaled_mm::cuda::sm90::int8
