// A program (problems/program.h) in the form that the kernel which interprets it takes: steps, each
// of which makes a value of those before, and where values are kept between them.
#pragma once

#include "problems/program.h"

namespace scaled_mm::cuda {

class Scope;

// A thread has so many rows and columns of the sums at a time.
inline constexpr int kProgramRows = 4, kProgramColumns = 4;

// Where a value is kept between steps: a row of a thread's elements is a slot of 16 bytes.
struct Place {
  uint16_t rows : 4;  // one for every row, one that they share, or none: it goes no further
  uint16_t at : 12;   // the first one's slot
};

// What a step does: an operation, of which `operand` is x as it is; or two of them, which round
// each as it would alone.
enum class StepOp : uint8_t {
#define OP(number, name, result, arguments) name = number,
#include "epilogue/program.def"
#undef OP
  mul_of_int,   // to_float(x) * y
  mul_add,      // x * y, then + z
  clamp,        // max(x, y), then min(., z)
  sub_product,  // x - y * z, of int32
};

// last = op(x, y, z), of values that lie at these places. Without a place or an operand, x is last.
struct alignas(4) ProgramStep {
  static constexpr uint8_t kNone = 255, kFirstConstant = kMaxProgramOperands + 1;
  StepOp op = StepOp::operand;
  uint8_t load = kNone;    // the operand that x is, or kFirstConstant + a constant's node
  uint8_t column = kNone;  // the operand that y is, one element for a row
  uint8_t output = kNone;  // where the result is written
  Place to{}, x{}, y{}, z{};
};

struct ProgramLeaf {
  EpilogueOperand operand;  // of int32, as float32: the bits are taken as they are
  int8_t columns;           // as Program::Leaf's
};

struct ProgramOutput {
  void* d;
  DType dtype;  // int32 as float32
};

constexpr int kMaxProgramSteps = kMaxProgramNodes + kMaxProgramOutputs;

// Of `steps`, the first `once` make what is the same for every row.
struct ProgramParams {
  int64_t m, n;
  int once, count;
  int columns;  // of B for each of D
  int slots;    // of a thread: an odd number, which keeps neighbours in different banks
  ProgramOutput outputs[kMaxProgramOutputs];
  ProgramLeaf leaves[kMaxProgramOperands + 1];  // the last one is of the sums
  ProgramStep steps[kMaxProgramSteps];
  int32_t constants[kMaxProgramNodes];
};
static_assert(sizeof(ProgramParams) <= 4096, "a kernel's parameters");

// `sums`: int32 [m, n], without gaps.
ProgramParams program_params(const Program& program, const int32_t* sums, int64_t m, int64_t n);

// Ends the sums, which are not empty.
void interpret(const ProgramParams& p, const Scope& scope);

}  // namespace scaled_mm::cuda
