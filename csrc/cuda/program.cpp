// A program's steps: their order, and the slots that their results need.
#include "cuda/program.h"

#include <algorithm>

namespace scaled_mm::cuda {
namespace {

using Op = Program::Op;

bool is_leaf(Op op) { return op <= Op::number; }
// In the first two arguments: the last result is best the first.
bool is_commutative(Op op) {
  return op == Op::add || op == Op::mul || op == Op::fma || op == Op::add_int || op == Op::mul_int;
}

class Steps {
 public:
  explicit Steps(const Program& program)
      : program_(program), added_(program.nodes.size()), places_(program.nodes.size()) {
    const auto each = [&](bool varies, auto use) {
      for (int i = 0; i < static_cast<int>(program.nodes.size()); ++i) {
        if (program.nodes[i].varies == varies) use(i);
      }
    };
    each(false, [&](int node) { add(node); });
    once_ = static_cast<int>(order_.size());
    each(false, [&](int node) { write(node); });
    each(true, [&](int i) {  // leaves right before what takes them
      const Program::Node& node = program.nodes[i];
      if (is_leaf(node.op)) return;
      for (int arg = 0; arg < count_arguments(node.op); ++arg) add(node.args[arg]);
      add(i);
    });
    for (const Program::Output& output : program.outputs) add(output.node);
    find_uses();
  }

  void fill(ProgramParams& p) {
    p.once = once_, p.count = static_cast<int>(order_.size());
    for (size_t i = 0; i < places_.size(); ++i) p.constants[i] = program_.nodes[i].bits;
    for (int s = 0; s < p.count; ++s) {
      const auto [index, output] = order_[s];
      const Program::Node& node = program_.nodes[index];
      ProgramStep& step = p.steps[s];
      step.op = output < 0 ? node.op : kWriteStep;
      step.which = static_cast<uint8_t>(output >= 0              ? output
                                        : node.op == Op::acc     ? kMaxProgramOperands
                                        : node.op == Op::operand ? node.args[0]
                                                                 : index);
      const std::vector<int> args = arguments(s);
      for (size_t i = 0; i < args.size(); ++i) {
        if (i > 0 || args[i] != last(s)) step.from[i] = places_[args[i]];
      }
      for (int arg : args) {
        if (last_use_[arg] == s) fill_slots(places_[arg], false);
      }
      if (output < 0 && last_use_[index] >= 0) {
        step.to = places_[index] = allocate(node.varies ? kProgramRows : 1);
      }
    }
    p.slots = static_cast<int>(taken_.size()) | 1;
  }

 private:
  struct Ordered {
    int node;
    int output;  // that is written; or -1
  };

  void add(int node) {
    if (added_[node]) return;
    added_[node] = true;
    order_.push_back({node, -1});
    if (program_.nodes[node].varies) write(node);
  }
  void write(int node) {
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      if (program_.outputs[i].node == node) order_.push_back({node, static_cast<int>(i)});
    }
  }
  // The node whose value is at hand in a step.
  int last(int step) const { return step == 0 || step == once_ ? -1 : order_[step - 1].node; }
  std::vector<int> arguments(int step) const {
    const auto [index, output] = order_[step];
    const Program::Node& node = program_.nodes[index];
    if (output >= 0) return {index};
    std::vector<int> args(node.args, node.args + count_arguments(node.op));
    if (is_commutative(node.op) && args[1] == last(step)) std::swap(args[0], args[1]);
    return args;
  }

  // The last step that finds a node's result in its slots; none, if it is always at hand.
  void find_uses() {
    last_use_.assign(program_.nodes.size(), -1);
    for (int s = 0; s < static_cast<int>(order_.size()); ++s) {
      const std::vector<int> args = arguments(s);
      for (size_t i = 0; i < args.size(); ++i) {
        if (i == 0 && args[i] == last(s)) continue;
        const bool stays = s >= once_ && !program_.nodes[args[i]].varies;  // for the next rows
        last_use_[args[i]] = stays ? kMaxProgramSteps : std::max(last_use_[args[i]], s);
      }
    }
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
  std::vector<bool> added_;  // nodes
  std::vector<Ordered> order_;
  int once_ = 0;
  std::vector<int> last_use_;  // of each node
  std::vector<Place> places_;
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
