// A program (problems/program.h) in the form that the kernel which interprets it takes: steps, each
// of which makes a value of those before, and where values are kept between them.
#pragma once

#include "problems/program.h"

namespace scaled_mm::cuda {

class Scope;

// A thread has so many rows and columns of the sums at a time.
inline constexpr int kProgramRows = 4, kProgramColumns = 4;

// Where a step finds an argument, or leaves its result: a thread has slots of 16 bytes.
enum class Kept : uint8_t {
  none,
  last,      // the result of the step before, or what that wrote
  acc,       // the sums
  constant,  // `at` in the constants
  each,      // an element for each of the thread's, a slot for a row
  columns,   // one for each of its columns: the same in every row
  rows,      // one for each of its rows: the same in every column
};

struct Place {
  uint16_t kept : 4;
  uint16_t at : 12;  // a slot
};
constexpr Place place(Kept kept, int at = 0) {
  return {static_cast<uint16_t>(kept), static_cast<uint16_t>(at)};
}

struct alignas(4) ProgramStep {
  Program::Op op;  // of an output that is written, `kWriteStep`
  uint8_t leaf;    // an operand's or an output's position
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
  const int32_t* sums;
  int once, count;
  int columns;  // of B for each of D
  int slots;    // of a thread
  ProgramOutput outputs[kMaxProgramOutputs];
  ProgramLeaf leaves[kMaxProgramOperands];
  ProgramStep steps[kMaxProgramSteps];
  int32_t constants[kMaxProgramNodes];
};
static_assert(sizeof(ProgramParams) <= 4096, "a kernel's parameters");

// `sums`: int32 [m, n], without gaps.
ProgramParams program_params(const Program& program, const int32_t* sums, int64_t m, int64_t n);

// Ends the sums, which are not empty.
void interpret(const ProgramParams& p, const Scope& scope);

}  // namespace scaled_mm::cuda
