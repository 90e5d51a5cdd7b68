// A program's steps: their order, and the slots that their results need.
#include "cuda/program.h"

#include <algorithm>
#include <array>
#include <utility>

namespace scaled_mm::cuda {
namespace {

using Op = Program::Op;

bool is_leaf(Op op) { return op <= Op::number; }
// In x and y.
bool is_commutative(StepOp op) {
  using enum StepOp;
  return op == add || op == mul || op == fma || op == add_int || op == mul_int || op == mul_add;
}

// Two operations that are one step: `second` has the result of `first` as its argument `at`. The
// step's x, y and z are, by `args`, the arguments 0 and 1 of `first`, the other one of `second`
// (2), and none (3).
struct Fusion {
  Op first, second;
  int at;
  StepOp op;
  int args[3];
};
constexpr Fusion kFusions[] = {
    {Op::to_float, Op::mul, 0, StepOp::mul_of_int, {0, 2, 3}},
    {Op::to_float, Op::mul, 1, StepOp::mul_of_int, {0, 2, 3}},
    {Op::mul, Op::add, 0, StepOp::mul_add, {0, 1, 2}},
    {Op::mul, Op::add, 1, StepOp::mul_add, {0, 1, 2}},
    {Op::max, Op::min, 0, StepOp::clamp, {0, 1, 2}},
    {Op::mul_int, Op::sub_int, 1, StepOp::sub_product, {2, 0, 1}},
};

class Steps {
 public:
  explicit Steps(const Program& program)
      : program_(program),
        uses_(program.nodes.size()),
        added_(program.nodes.size()),
        last_use_(program.nodes.size(), -1) {
    fuse();
    const auto each = [&](bool varies, auto use) {
      for (int i = 0; i < static_cast<int>(program.nodes.size()); ++i) {
        if (program.nodes[i].varies == varies) use(i);
      }
    };
    each(false, [&](int node) { add(node); });
    once_ = static_cast<int>(order_.size());
    each(false, [&](int node) { write(node); });
    each(true, [&](int node) {  // leaves right before what takes them
      if (!is_leaf(program.nodes[node].op)) add(node);
    });
    for (const Program::Output& output : program.outputs) add(output.node);
  }

  void fill(ProgramParams& p) {
    p.once = once_, p.count = static_cast<int>(order_.size());
    for (size_t i = 0; i < added_.size(); ++i) p.constants[i] = program_.nodes[i].bits;
    std::vector<Place> places(added_.size());
    for (int s = 0; s < p.count; ++s) {
      const auto& [made, node, args] = order_[s];
      const auto place = [&](int arg) { return arg < 0 ? Place{} : places[arg]; };
      ProgramStep& step = p.steps[s] = made;
      step.x = place(args[0]), step.y = place(args[1]), step.z = place(args[2]);
      for (int arg : args) {
        if (arg >= 0 && last_use_[arg] == s) fill_slots(places[arg], false);
      }
      if (last_use_[node] >= 0 && places[node].rows == 0) {
        step.to = places[node] = allocate(program_.nodes[node].varies ? kProgramRows : 1);
      }
    }
    p.slots = static_cast<int>(taken_.size()) | 1;
  }

 private:
  using Args = std::array<int, 3>;  // nodes; -1 for none
  struct Operation {
    StepOp op;
    Args args;
    bool fused = false;  // into another node's
  };
  struct Ordered {
    ProgramStep step;  // without its places
    int node;          // that it gives
    Args args;         // that lie in slots
  };

  // Whether a node has one use, so that it can be a part of a step.
  bool is_alone(int node) const { return program_.nodes[node].varies && uses_[node] == 1; }
  // Whether a step has an operand as x, and one as y, which then needs no step of its own.
  bool is_loaded(int node) const {
    return node >= 0 && is_leaf(program_.nodes[node].op) && is_alone(node);
  }
  bool is_column(int node) const {
    if (node < 0) return false;
    const Program::Node& of = program_.nodes[node];
    return of.op == Op::operand && of.varies && of.columns == 0;
  }
  uint8_t operand(int node) const {
    const Program::Node& of = program_.nodes[node];
    return static_cast<uint8_t>(of.op == Op::operand ? of.args[0]
                                : of.op == Op::acc   ? kMaxProgramOperands
                                                     : ProgramStep::kFirstConstant + node);
  }

  void fuse() {
    for (const Program::Output& output : program_.outputs) ++uses_[output.node];
    for (const Program::Node& node : program_.nodes) {
      Args args{-1, -1, -1};
      for (int i = 0; i < count_arguments(node.op); ++i) ++uses_[args[i] = node.args[i]];
      operations_.push_back({static_cast<StepOp>(node.op), args});
    }
    for (size_t i = 0; i < operations_.size(); ++i) {
      for (const Fusion& both : kFusions) {
        const Args& args = operations_[i].args;
        if (program_.nodes[i].op != both.second || !is_alone(args[both.at])) continue;
        Operation& first = operations_[args[both.at]];
        if (first.op != static_cast<StepOp>(both.first)) continue;
        const int from[] = {first.args[0], first.args[1], args[1 - both.at], -1};
        first.fused = true;
        operations_[i] = {both.op, {from[both.args[0]], from[both.args[1]], from[both.args[2]]}};
        break;
      }
    }
  }

  void add(int node) {
    auto [op, args, fused] = operations_[node];
    if (added_[node] || fused) return;
    added_[node] = true;
    ProgramStep step;
    if (is_leaf(program_.nodes[node].op)) {
      step.load = operand(node);
    } else {
      step.op = op;
      if (op == StepOp::sub_product && is_column(args[2])) std::swap(args[1], args[2]);
      const bool other_way = is_column(args[0]) || (is_loaded(args[1]) && !is_loaded(args[0]));
      if (is_commutative(op) && other_way && !is_column(args[1])) std::swap(args[0], args[1]);
      if (is_column(args[1])) step.column = operand(std::exchange(args[1], -1));
      if (is_loaded(args[0])) step.load = operand(std::exchange(args[0], -1));
      for (int arg : args) {
        if (arg >= 0) add(arg);
      }
      const bool is_y = step.load == step.kNone && args[1] >= 0 && args[1] == last();
      if (is_commutative(op) && is_y) std::swap(args[0], args[1]);
    }
    push(step, node, args);
    if (program_.nodes[node].varies) write(node);
  }
  // The step that makes a value writes it; of what is the same for every row, a step for the rows.
  void write(int node) {
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      if (program_.outputs[i].node != node) continue;
      if (last() != node || order_.back().step.output != ProgramStep::kNone) {
        push({}, node, {node, -1, -1});
      }
      order_.back().step.output = static_cast<uint8_t>(i);
    }
  }
  // The node whose value is at hand in the next step.
  int last() const {
    const int count = static_cast<int>(order_.size());
    return count == 0 || count == once_ ? -1 : order_.back().node;
  }
  void push(const ProgramStep& step, int node, Args args) {
    const int s = static_cast<int>(order_.size());
    if (args[0] == last()) args[0] = -1;
    for (int arg : args) {
      if (arg < 0) continue;
      const bool stays = s >= once_ && !program_.nodes[arg].varies;  // for the next rows
      last_use_[arg] = stays ? kMaxProgramSteps : s;
    }
    order_.push_back({step, node, args});
  }

  Place allocate(int rows) {
    int first = 0;
    for (int at = 0; at < first + rows; ++at) {
      if (at == static_cast<int>(taken_.size())) taken_.push_back(false);
      if (taken_[at]) first = at + 1;
    }
    const Place made{static_cast<uint16_t>(rows), static_cast<uint16_t>(first)};
    fill_slots(made, true);
    return made;
  }
  void fill_slots(Place place, bool taken) {
    std::fill_n(taken_.begin() + place.at, place.rows, taken);
  }

  const Program& program_;
  std::vector<int> uses_;  // of each node, as those that follow
  std::vector<Operation> operations_;
  std::vector<bool> added_;
  std::vector<int> last_use_;  // the last step that finds it in its slots; or -1
  std::vector<Ordered> order_;
  int once_ = kMaxProgramSteps;
  std::vector<bool> taken_;  // of the slots
};

ProgramLeaf leaf_of(const Program::Leaf& leaf) {
  ProgramLeaf made{leaf.operand, static_cast<int8_t>(leaf.columns)};
  if (!leaf.is_float) made.operand.dtype = DType::float32;
  return made;
}

}  // namespace

ProgramParams program_params(const Program& program, const int32_t* sums, int64_t m, int64_t n) {
  ProgramParams p{};
  p.m = m, p.n = n, p.columns = program.columns;
  std::transform(program.leaves.begin(), program.leaves.end(), p.leaves, leaf_of);
  p.leaves[kMaxProgramOperands] = {{sums, DType::float32, n, 1}, 1};
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    p.outputs[i] = {program.outputs[i].d, program.outputs[i].dtype.value_or(DType::float32)};
  }
  Steps(program).fill(p);
  return p;
}

}  // namespace scaled_mm::cuda
