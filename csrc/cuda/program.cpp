// A program's steps: their order, and the slots that their results need.
#include "cuda/program.h"

#include <algorithm>

namespace scaled_mm::cuda {
namespace {

using Op = Program::Op;

bool is_constant(const Program::Node& node) {
  return node.op == Op::integer || node.op == Op::number;
}
bool takes_nodes(const Program::Node& node) {
  return node.op != Op::acc && node.op != Op::operand && !is_constant(node);
}
// In the first two arguments: the last result is best the first.
bool is_commutative(Op op) {
  return op == Op::add || op == Op::mul || op == Op::fma || op == Op::add_int || op == Op::mul_int;
}
// Of a node whose result lies in slots.
Kept kind_of(const Program::Node& node) {
  return !node.varies ? Kept::columns : node.columns == 0 ? Kept::rows : Kept::each;
}
int slots_of(Kept kept) { return kept == Kept::each ? kProgramRows : 1; }

class Steps {
 public:
  explicit Steps(const Program& program) : program_(program), places_(program.nodes.size()) {
    for (bool varies : {false, true}) {
      if (varies) once_ = static_cast<int>(order_.size());
      for (int i = 0; varies && i < size(); ++i) {
        if (!runs(i) || !program.nodes[i].varies) write(i);
      }
      for (int i = 0; i < size(); ++i) {
        if (!runs(i) || program.nodes[i].varies != varies) continue;
        order_.push_back({i, -1});
        if (varies) write(i);
      }
    }
    find_uses();
  }

  void fill(ProgramParams& p) {
    p.once = once_, p.count = static_cast<int>(order_.size());
    for (int i = 0; i < size(); ++i) p.constants[i] = program_.nodes[i].bits;
    int last = -1;
    for (int s = 0; s < p.count; ++s) {
      if (s == once_) last = -1;
      const auto [index, output] = order_[s];
      const Program::Node& node = program_.nodes[index];
      ProgramStep& step = p.steps[s];
      step.op = output < 0 ? node.op : kWriteStep;
      step.leaf = static_cast<uint8_t>(output < 0 ? node.args[0] : output);
      auto args = arguments(s);
      if (output < 0 && is_commutative(node.op) && args[1] == last) std::swap(args[0], args[1]);
      for (size_t i = 0; i < args.size(); ++i) step.from[i] = where(args[i], last);
      for (int arg : args) free(arg, s);
      last = index;
      if (output >= 0 || last_use_[index] < 0) continue;
      step.to = places_[index] = place(kind_of(node), allocate(slots_of(kind_of(node))));
    }
    p.slots = static_cast<int>(taken_.size());
  }

 private:
  struct Ordered {
    int node;
    int output;  // that is written; or -1
  };

  int size() const { return static_cast<int>(program_.nodes.size()); }
  bool runs(int node) const {
    return program_.nodes[node].op != Op::acc && !is_constant(program_.nodes[node]);
  }
  void write(int node) {
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      if (program_.outputs[i].node == node) order_.push_back({node, static_cast<int>(i)});
    }
  }
  std::vector<int> arguments(int step) const {
    const auto [index, output] = order_[step];
    const Program::Node& node = program_.nodes[index];
    if (output >= 0) return {index};
    if (!takes_nodes(node)) return {};
    return {node.args, node.args + count_arguments(node.op)};
  }

  // The last step that finds a node's result in its slots; none, if each follows it at once.
  void find_uses() {
    last_use_.assign(program_.nodes.size(), -1);
    int last = -1;
    for (int s = 0; s < static_cast<int>(order_.size()); ++s) {
      if (s == once_) last = -1;
      for (int arg : arguments(s)) {
        if (arg == last || !runs(arg)) continue;
        const bool kept = s >= once_ && !program_.nodes[arg].varies;  // for the next rows
        last_use_[arg] = kept ? kMaxProgramSteps : std::max(last_use_[arg], s);
      }
      last = order_[s].node;
    }
  }

  Place where(int node, int last) const {
    if (node == last) return place(Kept::last);
    if (program_.nodes[node].op == Op::acc) return place(Kept::acc);
    if (is_constant(program_.nodes[node])) return place(Kept::constant, node);
    return places_[node];
  }

  int allocate(int count) {
    int first = 0;
    for (int at = 0; at < first + count; ++at) {
      if (at == static_cast<int>(taken_.size())) taken_.push_back(false);
      if (taken_[at]) first = at + 1;
    }
    std::fill_n(taken_.begin() + first, count, true);
    return first;
  }
  void free(int node, int step) {
    if (!runs(node) || last_use_[node] != step) return;
    std::fill_n(taken_.begin() + places_[node].at, slots_of(kind_of(program_.nodes[node])), false);
  }

  const Program& program_;
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
  p.sums = sums, p.m = m, p.n = n, p.columns = program.columns;
  std::transform(program.leaves.begin(), program.leaves.end(), p.leaves, leaf_of);
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    p.outputs[i] = {program.outputs[i].d, program.outputs[i].dtype.value_or(DType::float32)};
  }
  Steps(program).fill(p);
  return p;
}

}  // namespace scaled_mm::cuda
