#include "problems/program.h"

#include <climits>
#include <string_view>

#include "rules.h"

namespace scaled_mm {
namespace {

// What an operation gives and takes.
struct Signature {
  const char* name;
  char result;
  std::string_view arguments;
};
constexpr Signature kSignatures[] = {
#define OP(number, name, result, arguments) {#name, #result[0], arguments},
#include "epilogue/program.def"
#undef OP
};

// The ints of a program, read one after the other.
class Reader {
 public:
  explicit Reader(const std::vector<int64_t>& ints) : ints_(ints) {}

  // The next, which must lie within [least, most].
  int64_t next(const std::string& what, int64_t least, int64_t most) {
    if (at_ == ints_.size()) refuse("program", "have " + what, cat("its end at ", at_));
    const int64_t value = ints_[at_++];
    if (value < least || value > most) {
      refuse("program", cat("have ", what, " from ", least, " to ", most),
             cat(value, " at ", at_ - 1));
    }
    return value;
  }
  int small(const std::string& what, int64_t least, int64_t most) {
    return static_cast<int>(next(what, least, most));
  }
  void end() const {
    if (at_ != ints_.size()) {
      refuse("program", cat("end behind its outputs, at ", at_), cat(ints_.size(), " numbers"));
    }
  }

 private:
  const std::vector<int64_t>& ints_;
  size_t at_ = 0;
};

[[noreturn]] void refuse_node(int node, const std::string& rule, const std::string& got) {
  refuse("program", cat("have a node ", node, " ", rule), got);
}

Program::Node read_node(Reader& from, const Program& program, int index) {
  using Op = Program::Op;
  Program::Node node{};
  const int number = from.small("an operation", 0, std::size(kSignatures) - 1);
  node.op = static_cast<Op>(number);
  const Signature& signature = kSignatures[number];
  node.type = signature.result;
  if (node.op == Op::integer || node.op == Op::number) {
    node.bits = static_cast<int32_t>(from.next("a constant", INT_MIN, INT_MAX));
  } else if (node.op == Op::operand) {
    const int leaf = from.small("an operand", 0, static_cast<int64_t>(program.leaves.size()) - 1);
    node.args[0] = leaf;
    node.type = program.leaves[leaf].is_float ? 'f' : 'i';
    node.columns = program.leaves[leaf].columns;
  } else if (node.op == Op::acc) {
    from.next("no argument", -1, -1);
    node.columns = 1;
  }
  const bool is_leaf = number <= static_cast<int>(Op::number);
  for (int i = 0; i < 3; ++i) {
    if (is_leaf && i == 0) continue;  // read above
    if (i >= static_cast<int>(signature.arguments.size())) {
      from.next("no argument", -1, -1);
      continue;
    }
    node.args[i] = from.small("an argument", 0, index - 1);
    const Program::Node& arg = program.nodes[node.args[i]];
    if (arg.type != signature.arguments[i]) {
      refuse_node(index, cat("whose argument ", i, " is of type ", signature.arguments[i]),
                  std::string(1, arg.type));
    }
    if (arg.columns && node.columns && arg.columns != node.columns) {
      refuse_node(index, "whose arguments have as many columns", "others");
    }
    node.columns = std::max(node.columns, arg.columns);
  }
  if (node.op == Op::gate || node.op == Op::value) {
    if (node.columns == 2) refuse_node(index, "of pairs of B's columns", "pairs of pairs");
    node.columns = 2;
  }
  return node;
}

bool suits(char type, ScalarType dtype) {
  switch (type) {
    case 'i': return dtype == ScalarType::Int;
    case 'q': return dtype == ScalarType::Char;
    case 'e': return dtype == ScalarType::Float8_e4m3fn;
    case 'f': return dtype_of(dtype).has_value();
    default: return false;
  }
}

Program read_program(const std::vector<int64_t>& ints, std::vector<ScalarType>& dtypes) {
  Reader from(ints);
  Program program;
  from.next("a version", kProgramVersion, kProgramVersion);
  for (int i = from.small("operands", 0, kMaxProgramOperands); i > 0; --i) {
    const auto axis = static_cast<epilogue::Axis>(from.small("an axis", 0, 2));
    const bool is_float = from.next("a kind of number", 0, 1) != 0;
    const int columns = from.small("columns of an operand", 0, 2);
    if ((axis == epilogue::Axis::Col) != (columns == 0)) {
      refuse("program", "have columns for operands along N", cat(columns));
    }
    program.leaves.push_back({axis, is_float, columns, {}});
  }
  const int nodes = from.small("nodes", 1, kMaxProgramNodes);
  for (int i = 0; i < nodes; ++i) program.nodes.push_back(read_node(from, program, i));
  int columns = 0;
  for (int i = from.small("outputs", 1, kMaxProgramOutputs); i > 0; --i) {
    const int node = from.small("an output's node", 0, nodes - 1);
    const int place = from.small("an output's dtype", 0, std::size(kProgramDtypes) - 1);
    const ScalarType dtype = kProgramDtypes[place];
    if (!suits(program.nodes[node].type, dtype)) {
      refuse_node(node, "of a type that " + name(dtype) + " holds",
                  std::string(1, program.nodes[node].type));
    }
    const int own = program.nodes[node].columns;
    if (own && columns && own != columns) {
      refuse_node(node, "with as many columns as the other outputs", cat("N / ", own));
    }
    columns = std::max(columns, own);
    dtypes.push_back(dtype);
    program.outputs.push_back({node, out_dtype_of(dtype), nullptr});
  }
  from.end();
  program.columns = std::max(columns, 1);
  return program;
}

void check_leaf(Program::Leaf& leaf, int position, const Tensor& t, const Tensor& a, int64_t n,
                std::vector<Tensor>& copies) {
  const std::string argument = cat("operands[", position, "]");
  const char* const name = argument.c_str();
  if (leaf.is_float) {
    must_be_float(name, t);
  } else {
    must_be(name, t, ScalarType::Int);
  }
  must_share_device(name, t, "a", a);
  switch (leaf.axis) {
    case epilogue::Axis::Row: {
      const int64_t count = n / leaf.columns;
      if (t.numel() == 1 || is_per_column(t, count)) break;
      refuse(name, cat("have 1 or N=", count, " elements, in shape ", per_column_text(count)),
             shape(t));
    }
    case epilogue::Axis::Col:
      if (t.numel() == 1 || is_per_row(t, a)) break;
      refuse(name, cat("have 1 or M=", count_rows(a), " elements, in shape ", per_row_text(a)),
             shape(t));
    case epilogue::Axis::Full: {
      const std::vector<int64_t> wanted = sizes_with_last(a, n / leaf.columns);
      if (t.sizes().equals(wanted)) break;
      refuse(name, "have shape " + shape_text(wanted), shape(t));
    }
  }
  leaf.operand = operand_along(leaf.axis, t, copies);
}

// Whether a node's values differ from row to row, those before it being known.
bool varies(const Program::Node& node, const Program& program) {
  if (node.op == Program::Op::acc) return true;
  if (node.op == Program::Op::operand) {
    const Program::Leaf& leaf = program.leaves[node.args[0]];
    return leaf.axis == epilogue::Axis::Full || leaf.operand.row_stride != 0;
  }
  bool found = false;
  for (int i = 0; i < count_arguments(node.op); ++i) {
    found |= program.nodes[node.args[i]].varies;
  }
  return found;
}

}  // namespace

int count_arguments(Program::Op op) {
  return static_cast<int>(kSignatures[static_cast<int>(op)].arguments.size());
}

Program read_program(const std::vector<int64_t>& ints) {
  std::vector<ScalarType> dtypes;
  return read_program(ints, dtypes);
}

bool is_light(const Program& program) {
  constexpr size_t kMostNodes = 24, kMostOperands = 6;
  if (program.outputs.size() != 1 || program.columns != 1) return false;
  if (program.nodes[program.outputs[0].node].type != 'f') return false;
  if (program.nodes.size() > kMostNodes || program.leaves.size() > kMostOperands) return false;
  for (const Program::Leaf& leaf : program.leaves) {
    if (leaf.axis == epilogue::Axis::Full) return false;
  }
  for (const Program::Node& node : program.nodes) {
    switch (node.op) {
      case Program::Op::div:
      case Program::Op::sqrt:
      case Program::Op::silu:
      case Program::Op::gelu:
      case Program::Op::gelu_tanh:
      case Program::Op::exp:
      case Program::Op::erf:
      case Program::Op::sigmoid:
      case Program::Op::tanh:
      case Program::Op::gate:
      case Program::Op::value:
      case Program::Op::to_int8:
      case Program::Op::to_int8_azp:
      case Program::Op::to_e4m3: return false;
      default: break;
    }
  }
  return true;
}

Int8Problem::Size size_ended_by(const Program& program, Int8Problem::Size size) {
  using enum epilogue::Id;
  size.epilogue = is_light(program)      ? ScaledEpilogueAzp
                  : program.columns == 2 ? ScaledEpilogueGated
                                         : ScaledEpilogueActivated;
  size.out_dtype = program.outputs[0].dtype.value_or(DType::float32);
  return size;
}

Checked<ProgramProblem> check_epilogue_mm(const Tensor& a, const Tensor& b,
                                          const std::vector<Tensor>& operands,
                                          const std::vector<int64_t>& program, const Shape& b_shape,
                                          bool b_settled) {
  Checked<ProgramProblem> checked;
  std::vector<ScalarType> dtypes;
  Program read = read_program(program, dtypes);
  const Checked<Int8Problem> product = check_sums(a, b, b_shape, b_settled);
  const int64_t n = product.problem.size.n;
  if (n % read.columns) refuse("b", "have an even number of columns for pairs", cat("N=", n));
  if (operands.size() != read.leaves.size()) {
    refuse("operands", cat("have ", read.leaves.size(), " tensors"), cat(operands.size()));
  }
  checked.inputs = product.inputs;
  for (size_t i = 0; i < operands.size(); ++i) {
    check_leaf(read.leaves[i], static_cast<int>(i), operands[i], a, n, checked.inputs);
  }
  for (Program::Node& node : read.nodes) node.varies = varies(node, read);
  const std::vector<int64_t> sizes = sizes_with_last(a, n / read.columns);
  for (size_t i = 0; i < dtypes.size(); ++i) {
    const Tensor& d = checked.outputs.emplace_back(new_empty(a, sizes, dtypes[i]));
    read.outputs[i].d = d.mutable_data_ptr();
  }
  checked.problem = {product.problem, std::move(read)};
  return checked;
}

}  // namespace scaled_mm
