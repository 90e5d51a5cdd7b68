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

// last = op(last, y, z), of values that lie at from[0], unless that is last, and from[1], from[2].
struct alignas(4) ProgramStep {
  Program::Op op;  // of an output that is written, `kWriteStep`
  uint8_t which;   // an operand, a constant or an output
  Place to;
  Place from[3];
};
inline constexpr auto kWriteStep = static_cast<Program::Op>(255);

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
