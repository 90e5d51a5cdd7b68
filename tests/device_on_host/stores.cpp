// Plays the stores of D: every thread of every tile, in all dtypes, for sizes of every remainder.
// The compiler reports each store (-fsanitize=thread, whose functions are these here). Each element
// must be written once, with its value, by a store that lies at a multiple of its width; nothing
// else of the memory may be written.
#include "cuda_runtime.h"

#include <cstring>

#include "cuda/epilogue/finish.cuh"
#include "epilogue/registry.h"

namespace {

using namespace scaled_mm;

// --- what is written -----------------------------------------------------------------------------

constexpr int kMargin = 256;  // bytes around D

struct Written {
  std::string by;  // what is played
  std::vector<uint8_t> memory, times;
  uint8_t* d = nullptr;

  Written(std::string by, int64_t bytes)
      : by(std::move(by)), memory(bytes + 3 * kMargin), times(memory.size()) {
    const auto at = reinterpret_cast<uintptr_t>(memory.data()) + 2 * kMargin - 1;
    d = reinterpret_cast<uint8_t*>(at / kMargin * kMargin);
  }
  void note(void* at, size_t bytes) {
    const auto first = reinterpret_cast<uintptr_t>(at);
    const auto begin = reinterpret_cast<uintptr_t>(memory.data());
    if (first < begin || first >= begin + memory.size()) return;
    if (first % bytes != 0) {  // this machine might not store it either
      std::printf("%s: %zu bytes stored at %td of D\n", by.c_str(), bytes,
                  static_cast<uint8_t*>(at) - d);
      std::exit(1);
    }
    for (size_t i = 0; i < bytes; ++i) times[first - begin + i] += times[first - begin + i] < 255;
  }
};
Written* written = nullptr;

void note(void* at, size_t bytes) {
  if (written) written->note(at, bytes);
}

// --- D -------------------------------------------------------------------------------------------

// The sum of row m, channel n: -3 to 4, so that products of two are exact in every dtype.
int32_t sum_of(int64_t m, int64_t n) {
  const uint64_t mixed = static_cast<uint64_t>(1009 * m + n + 1) * 0x9E3779B97F4A7C15u;
  return static_cast<int32_t>(mixed >> 61) - 3;
}

uint32_t bits_of(float x, DType dtype) {
  switch (dtype) {
    case DType::float32: return std::bit_cast<uint32_t>(x);
    case DType::float16: return half_bits(x);
    case DType::bfloat16: return bfloat16_bits(x);
    case DType::int8: return static_cast<uint8_t>(static_cast<int>(x));
    case DType::float8_e4m3fn: {  // an integer: three bits behind the first, an exponent less 7
      const auto magnitude = static_cast<unsigned>(std::fabs(x));
      const uint32_t sign = std::signbit(x) ? 0x80 : 0;
      if (magnitude == 0) return sign;
      const int exponent = std::bit_width(magnitude) - 1;
      return sign | (exponent + 7) << 3 | ((magnitude << 3 >> exponent) & 7);
    }
  }
  std::abort();
}

// What D holds at a column: the sum, relu of it, or relu of one times the next.
uint32_t expected(int64_t m, int64_t column, epilogue::Id id, DType dtype) {
  if (id == epilogue::Id::RawAccumulator) return static_cast<uint32_t>(sum_of(m, column));
  const auto x = [&](int64_t n) { return static_cast<float>(sum_of(m, n)); };
  switch (epilogue::entry(id).form) {
    case Form::none: return bits_of(x(column), dtype);
    case Form::activated: return bits_of(std::fmax(x(column), 0.0f), dtype);
    case Form::gated: return bits_of(std::fmax(x(2 * column), 0.0f) * x(2 * column + 1), dtype);
  }
  std::abort();
}

// --- the kernels ---------------------------------------------------------------------------------

Int8Problem problem(int64_t m, int64_t n, epilogue::Id id, DType dtype, void* d) {
  static const float one = 1.0f, zero = 0.0f;
  Int8Problem p;
  p.size = {m, n, 16, id, dtype};
  p.d = d;
  p.size.function = p.size.form() == Form::none ? Function::none : Function::relu;
  for (const auto operand : {Operand::scale_a, Operand::scale_b, Operand::out_scale}) {
    p.operands[static_cast<int>(operand)].data = &one;
  }
  p.operands[static_cast<int>(Operand::residual)].data = &zero;
  return p;
}

// The kernels whose threads have four channels of a token.
template <class E>
void store_fours(const Int8Problem& p) {
  cuda::Destination to = cuda::destination<E>(p);
  const auto [m, n, k, id, dtype, function] = p.size;
  for (int64_t token = 0; token < m; ++token) {
    for (int64_t channel = 0; channel < n; channel += 4) {
      int32_t acc[4];
      for (int e = 0; e < 4; ++e) acc[e] = sum_of(token, channel + e);
      const auto get = [&](auto leaf, int) {
        return cuda::load_operand<decltype(leaf)>(p.operands[static_cast<int>(leaf.id)], 0, 0);
      };
      cuda::finish_four<E>(to, acc, token, channel, static_cast<int>(n - channel), get);
    }
  }
}

// --- the check -----------------------------------------------------------------------------------

int cases = 0, faults = 0;

void check(const char* kernel, void (*run)(const Int8Problem&), int64_t m, int64_t n,
           epilogue::Id id, DType dtype) {
  Int8Problem p = problem(m, n, id, dtype, nullptr);
  const int64_t columns = p.size.out_columns(), width = p.size.out_bytes();
  Written now(cat(kernel, ", ", epilogue::entry(id).name, ", M = ", m, ", N = ", n, ", D of dtype ",
                  static_cast<int>(dtype)),
              m * columns * width);
  p.d = now.d;
  written = &now;
  run(p);
  written = nullptr;

  int64_t outside = 0, not_once = 0, wrong = 0;
  const int64_t begin = now.d - now.memory.data(), end = begin + m * columns * width;
  for (int64_t i = 0; i < static_cast<int64_t>(now.times.size()); ++i) {
    const bool inside = i >= begin && i < end;
    outside += !inside && now.times[i] != 0;
    not_once += inside && now.times[i] != 1;
  }
  for (int64_t i = 0; i < m * columns; ++i) {
    const uint32_t value = expected(i / columns, i % columns, id, dtype);
    wrong += std::memcmp(now.d + i * width, &value, width) != 0;
  }
  ++cases;
  if (outside + not_once + wrong == 0) return;
  ++faults;
  std::printf("%s: %td bytes stored outside of D, %td not stored once, %td elements wrong\n",
              now.by.c_str(), outside, not_once, wrong);
}

// Beyond 448 there is no float8_e4m3fn; NaN stays NaN.
void check_beyond_e4m3() {
  const float values[4] = {-500.0f, INFINITY, -INFINITY, NAN};
  uint8_t d[4] = {};
  const cuda::Destination to = {{d, DType::float8_e4m3fn, true}, 4, Function::none, true};
  cuda::store_quantised<4>(to, 0, 4, values, cuda::quantizer_given(1.0f, 0, true));
  ++cases;
  if (d[0] == 0xfe && d[1] == 0x7e && d[2] == 0xfe && d[3] == 0x7f) return;
  ++faults;
  std::printf("-500, inf, -inf, NaN in e4m3: %02x %02x %02x %02x\n", d[0], d[1], d[2], d[3]);
}

// D in every dtype that it may have; N of every remainder by 16, in whole tiles and beside them.
void check_all(const char* kernel, void (*run)(const Int8Problem&), epilogue::Id id, int rows,
               int cols) {
  const epilogue::Entry& entry = epilogue::entry(id);
  std::vector<DType> dtypes = {DType::bfloat16, DType::float16, DType::float32};
  if (id == epilogue::Id::RawAccumulator) dtypes = {DType::float32};  // int32, whatever it says
  if (entry.has_ending) {
    dtypes.insert(dtypes.end(), {DType::int8, DType::float8_e4m3fn});
  }
  for (const DType dtype : dtypes) {
    for (int beyond = 0; beyond < 16; beyond += entry.columns()) {
      for (const int n : {beyond, cols + beyond}) {
        if (n > 0) check(kernel, run, rows + 1 + beyond % 8, n, id, dtype);
      }
    }
  }
}

}  // namespace

// What -fsanitize=thread calls before each access.
#define STORE(name, bytes) \
  void __tsan_##name(void* at) { note(at, bytes); }
#define NO_STORE(name) \
  void __tsan_##name(void*) {}
extern "C" {
STORE(write1, 1)
STORE(write2, 2)
STORE(write4, 4)
STORE(write8, 8)
STORE(write16, 16)
STORE(unaligned_write2, 2)
STORE(unaligned_write4, 4)
STORE(unaligned_write8, 8)
STORE(unaligned_write16, 16)
NO_STORE(read1)
NO_STORE(read2)
NO_STORE(read4)
NO_STORE(read8)
NO_STORE(read16)
NO_STORE(unaligned_read2)
NO_STORE(unaligned_read4)
NO_STORE(unaligned_read8)
NO_STORE(unaligned_read16)
NO_STORE(func_entry)
void __tsan_func_exit() {}
void __tsan_init() {}
void __tsan_write_range(void* at, size_t bytes) { note(at, bytes); }
void __tsan_read_range(void*, size_t) {}
void __tsan_vptr_update(void**, void*) {}
}

int main() {
  using namespace epilogue;
#define EPILOGUE(name) check_all("four channels", store_fours<name>, Id::name, 1, 64);
#include "epilogue/registry.def"
#undef EPILOGUE
  check_beyond_e4m3();
  std::printf("%d cases, %d faults\n", cases, faults);
  return faults != 0;
}
