// A product whose epilogue is a program of the caller's (scaled_mm/epilogue): nodes that each give
// a value for every element of D, from the values of nodes before.
#pragma once

#include "problems/int8.h"

namespace scaled_mm {

// Limits of a program.
inline constexpr int kMaxProgramNodes = 128, kMaxProgramOperands = 32, kMaxProgramOutputs = 8;
inline constexpr int64_t kProgramVersion = 1;

struct Program {
  enum class Op : uint8_t {
#define OP(number, name, result, arguments) name = number,
#include "epilogue/program.def"
#undef OP
  };
  struct Node {
    Op op;
    char type;     // a letter of program.def
    int columns;   // of B for each element: 1, 2 behind gate and value, 0 if all are the same
    bool varies;   // from row to row
    int args[3];   // nodes; of an operand its position
    int32_t bits;  // of a constant
  };
  struct Leaf {
    epilogue::Axis axis;
    bool is_float;
    int columns;  // as a node's
    EpilogueOperand operand;
  };
  struct Output {
    int node;
    std::optional<DType> dtype;  // none: int32
    void* d;
    int bytes() const { return dtype ? size_of(*dtype) : 4; }
  };

  std::vector<Leaf> leaves;
  std::vector<Node> nodes;
  std::vector<Output> outputs;
  int columns = 1;  // of B for each of D
};

// That are nodes.
int count_arguments(Program::Op op);

// The product is of int32 sums, which `program` ends; the problem leads to it.
struct ProgramProblem {
  Int8Problem product;
  Program program;
};

// Refuses with an error or returns a problem that a kernel can run as it stands. `program` is as
// scaled_mm/epilogue/program.py writes it:
//
//   version, operands, (axis, is_float, columns) of each, nodes, (op, arg, arg, arg) of each,
//   outputs, (node, dtype) of each
//
// with an axis 0 Row, 1 Col, 2 Full; -1 for an argument that an op has not; a constant's bits as
// its first one; and dtypes by their places in kProgramDtypes.
Checked<ProgramProblem> check_epilogue_mm(const Tensor& a, const Tensor& b,
                                          const std::vector<Tensor>& operands,
                                          const std::vector<int64_t>& program, const Shape& b_shape,
                                          bool b_settled);

// What a program of such integers says, but for its operands and outputs themselves.
Program read_program(const std::vector<int64_t>& ints);

// Whether a program is as little to compute as a product's scales and zero points, so that a kernel
// can have it beside as many sums: one output, of floats, of all columns; no matrix; few operands.
bool is_light(const Program& program);

// What a kernel that ends a product of `size` by the program is chosen by.
Int8Problem::Size size_ended_by(const Program& program, Int8Problem::Size size);

inline constexpr ScalarType kProgramDtypes[] = {ScalarType::Float, ScalarType::BFloat16,
                                                ScalarType::Half,  ScalarType::Int,
                                                ScalarType::Char,  ScalarType::Float8_e4m3fn};

}  // namespace scaled_mm
