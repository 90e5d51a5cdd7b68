// Programs on CUDA by what was compiled for them: which kernel, whether there is a library for it,
// and its launch. What compiles is Python's (scaled_mm/compiled): a function that is called when a
// program meets a kernel for the first time.
#include "cuda/compiled.h"

#include <torch/csrc/stable/library.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "cuda/int8.h"
#include "dispatch/choose.h"
#include "ops/namespace.h"
#include "problems/program.h"

namespace scaled_mm::cuda {
namespace {

constexpr int64_t kErrorBytes = 4096;

// The launch for a program and a kernel, as an address; 0: there is none, the program is
// interpreted; -1: an error, whose text is filled.
using Compiler = int64_t (*)(const int64_t* program, int64_t count, const char* arch,
                             const char* kernel, int32_t is_light, int32_t device, char* error,
                             int64_t error_size);
std::atomic<Compiler> compiler = nullptr;
std::atomic<bool> is_required = false;

void set_compiler(int64_t address, bool required) {
  compiler = reinterpret_cast<Compiler>(address);
  is_required = required;
}

// Of every kernel, the programs that it met.
class Known {
 public:
  using Key = std::pair<const Kernel<Int8Problem>*, std::vector<int64_t>>;

  std::optional<CompiledLaunch> find(const Key& key) const {
    const std::shared_lock lock(mutex_);
    const auto found = all_.find(key);
    return found == all_.end() ? std::nullopt : std::optional(found->second);
  }
  void keep(Key key, CompiledLaunch launch) {
    const std::unique_lock lock(mutex_);
    all_.insert_or_assign(std::move(key), launch);
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<Key, CompiledLaunch> all_;
};

Known& known() {
  static Known all;
  return all;
}

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

// The launch; null: none.
CompiledLaunch find_launch(const Kernel<Int8Problem>& kernel, const std::vector<int64_t>& program,
                           bool is_light, const Scope& scope) {
  const Compiler compile = compiler;
  if (!compile) return nullptr;
  const Known::Key key(&kernel, program);
  const auto found = known().find(key);
  if (found && (*found || !is_required)) return *found;
  if (is_captured(scope.stream)) {
    if (!is_required) return nullptr;
    throw std::runtime_error(
        "SCALED_MM_JIT=require: an epilogue was not compiled before its call was captured; call it "
        "once before");
  }
  std::array<char, kErrorBytes> error{};
  const int64_t address =
      compile(program.data(), static_cast<int64_t>(program.size()), scope.device.arch->name,
              kernel.name, is_light, scope.device.index, error.data(), kErrorBytes);
  if (address == -1) throw std::runtime_error(error.data());
  const auto launch = reinterpret_cast<CompiledLaunch>(address);
  known().keep(key, launch);
  return launch;
}

void launch_on(CompiledLaunch launch, CompiledCall& call) {
  std::array<char, kErrorBytes> error{};
  call.error = error.data();
  call.error_size = kErrorBytes;
  if (launch(call) != 0) throw std::runtime_error(error.data());
}

// `product` has the size that the kernel was chosen for; `operands` the place of each.
void run(CompiledLaunch launch, const Kernel<Int8Problem>& kernel, Int8Problem product,
         const Program& program, const Scope& scope) {
  align_factors(product, scope);
  const Device& device = scope.device;
  const LinePlan plan =
      device.arch->plan_line(kernel.name, product.size, device, product.b.settled);
  std::vector<EpilogueOperand> operands;
  for (const Program::Leaf& leaf : program.leaves) operands.push_back(leaf.operand);
  std::vector<void*> outputs;
  for (const Program::Output& output : program.outputs) outputs.push_back(output.d);
  CompiledCall call{.m = product.size.m,
                    .n = product.size.n,
                    .k = product.size.k,
                    .a = product.a.data,
                    .lda = product.a.row_stride,
                    .b = product.b.plain.data,
                    .ldb = product.b.plain.col_stride,
                    .operands = operands.data(),
                    .outputs = outputs.data(),
                    .ldd = product.size.out_columns(),
                    .out_columns = product.size.out_columns(),
                    .out_dtype = static_cast<int32_t>(product.size.out_dtype),
                    .plan = plan,
                    .device = device.index,
                    .sms = device.sms,
                    .shared_memory = device.shared_memory,
                    .launches_early = device.launches_early,
                    .stream = scope.stream,
                    .encode_tensor_map = reinterpret_cast<void*>(tensor_map_encoder()),
                    .error = nullptr,
                    .error_size = 0};
  if (plan.streams) return launch_on(launch, call);
  product.d = outputs[0];
  with_aligned_output(product, scope, [&](void* d, int64_t ldd) {
    outputs[0] = d;
    call.ldd = ldd;
    launch_on(launch, call);
  });
}

}  // namespace

bool run_compiled(const ProgramProblem& problem, const std::vector<int64_t>& program,
                  const Scope& scope) {
  if (!compiler || !scope.device.arch->plan_line) return false;
  Int8Problem product = problem.product;
  must_fit("a", "rows", product.size.m);
  must_fit("b", "columns", product.size.n);
  product.size = size_ended_by(problem.program, product.size);
  const Kernel<Int8Problem>* const kernel = choose<Int8Problem>(product.size, scope.device);
  if (!kernel) return false;
  const CompiledLaunch launch = find_launch(*kernel, program, is_light(problem.program), scope);
  if (launch) run(launch, *kernel, product, problem.program, scope);
  return launch != nullptr;
}

namespace {

// The outputs by a launch that is tried, on a kernel of the arch.
std::vector<Tensor> try_compiled(const Tensor& a, const Tensor& b, std::vector<Tensor> operands,
                                 std::vector<int64_t> program, std::string kernel_name,
                                 int64_t address) {
  Checked<ProgramProblem> checked = check_epilogue_mm(a, b, operands, program, std::nullopt, false);
  Int8Problem& product = checked.problem.product;
  product.size = size_ended_by(checked.problem.program, product.size);
  const Scope scope(checked.outputs[0]);
  for (const Kernel<Int8Problem>& kernel : scope.device.arch->int8) {
    if (kernel_name != kernel.name || !scope.device.arch->plan_line) continue;
    run(reinterpret_cast<CompiledLaunch>(address), kernel, product, checked.problem.program, scope);
    return checked.outputs;
  }
  refuse("kernel", "be one that programs are compiled for", kernel_name);
}

}  // namespace
}  // namespace scaled_mm::cuda

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("_set_compiler", TORCH_BOX(&scaled_mm::cuda::set_compiler));
  ops.impl("_try_compiled", TORCH_BOX(&scaled_mm::cuda::try_compiled));
}
