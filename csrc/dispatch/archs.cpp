// The architectures of a library, and the names that force their kernels.
#include "archs.h"

#include "dispatch/choose.h"

namespace scaled_mm {

#define ARCH(name, ...)                                     \
  namespace cuda::name::k_scales {                          \
  extern const std::span<const Kernel<KScalesProblem>> all; \
  }
SCALED_MM_ARCHS
#undef ARCH

template <>
std::span<const Kernel<KScalesProblem>> kernels_of<KScalesProblem>(const Arch& arch) {
#define ARCH(name, ...) \
  if (&arch == &cuda::name::arch) return cuda::name::k_scales::all;
  SCALED_MM_ARCHS
#undef ARCH
  return {};
}

namespace {

constexpr const Arch* kArchs[] = {
#define ARCH(name, ...) &cuda::name::arch,
    SCALED_MM_ARCHS
#undef ARCH
};

// Of each, the compute capabilities, from the first to the last, that run what was compiled.
constexpr struct {
  int first, last;
} kRuns[][3] = {
#define ARCH(name, ...) {__VA_ARGS__},
    SCALED_MM_ARCHS
#undef ARCH
};

template <class P>
void add_names(const Arch& arch, std::string_view wanted, bool& found, std::string& names) {
  for (const Kernel<P>& kernel : kernels_of<P>(arch)) {
    const std::string full = cat(arch.name, "/", kernel.name);
    found |= wanted == kernel.name || wanted == full;
    names += (names.empty() ? "" : ", ") + full;
  }
}

}  // namespace

std::span<const Arch* const> archs() { return kArchs; }

std::string arch_names() {
  std::string names;
  for (const Arch* arch : kArchs) names += (names.empty() ? "" : ", ") + std::string(arch->name);
  return names;
}

const Arch* find_arch(int capability) {
  const Arch* found = nullptr;
  for (size_t i = 0; i < std::size(kArchs); ++i) {
    for (const auto& [first, last] : kRuns[i]) {
      if (first <= capability && capability <= last) found = kArchs[i];
    }
  }
  return found;
}

Setting& forced_kernels() {
  static Setting setting("SCALED_MM_KERNEL");
  return setting;
}
// Read while the library is loaded.
[[maybe_unused]] static const Setting& at_load = forced_kernels();

void check_forced_kernels() {
  const std::string* const forced = forced_kernels().get();
  thread_local const std::string* checked = nullptr;
  if (!forced || forced == checked) return;
  std::string_view rest = *forced;
  while (!rest.empty()) {
    const std::string_view wanted = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), wanted.size() + 1));
    bool found = false;
    std::string names;
    for (const Arch* arch : kArchs) {
      add_names<Int8Problem>(*arch, wanted, found, names);
      add_names<LowbitProblem>(*arch, wanted, found, names);
      add_names<GroupedInt8Problem>(*arch, wanted, found, names);
      add_names<GroupedLowbitProblem>(*arch, wanted, found, names);
      add_names<KScalesProblem>(*arch, wanted, found, names);
    }
    if (!found) refuse(forced_kernels().variable(), "be one of " + names, std::string(wanted));
  }
  checked = forced;
}

}  // namespace scaled_mm
