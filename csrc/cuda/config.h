// The tuning tables as data, and the choice among their rows. Plain C++ without CUDA: the CPU
// library holds the same tables, so that `scaled-mm explain` works where there is no GPU.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace scaled_mm::cuda {

// stream: sm90/stream.cuh. persistent: a CUTLASS kernel whose blocks go from tile to tile.
enum class Kernel { stream, persistent };
enum class Schedule { pingpong, cooperative };

// How a row's kernel cuts a product, and what was measured of it.
struct Config {
  Kernel kernel;
  int tile_m;  // of D: tokens
  int tile_n;  // of D: channels
  int tile_k;  // bytes of K in a stage
  // persistent kernels:
  int cluster_m = 1;  // blocks that share loads
  int cluster_n = 1;
  Schedule schedule = Schedule::pingpong;
  int swizzle = 1;  // width of the bands in which tiles are visited, at most
  // measured:
  float fixed_us = 0;  // of a call, whatever its size
  float rate = 1;      // how fast it is where tensor cores or L2 bind, relative to predict's rates
};

struct Row {
  const char* name;
  Config config;
};

struct Arch {
  const char* name;
  bool (*serves)(int capability);
  std::span<const Row> rows;
};

// The tables of this library: of all archs in the CPU library, of those built in the CUDA library.
std::span<const Arch> archs();
std::string arch_names();
const Arch* find_arch(int capability);  // null when none serves it

struct Size {
  int64_t m;
  int64_t n;
  int64_t k;
  int out_bytes;  // of an element of D
  bool operator==(const Size&) const = default;
};

struct Machine {
  int capability = 0;         // 10 * major + minor
  int sms = 0;                // multiprocessors
  double bytes_per_us = 0.0;  // of device memory, peak
  bool operator==(const Machine&) const = default;
};

inline constexpr int kMaxSplit = 3;

// How a streaming kernel cuts a product.
struct StreamPlan {
  int token_tiles;  // tiles of D along M
  int split;        // slices of K, one block each: a cluster; at most kMaxSplit
  int64_t blocks;
  bool paired;  // two blocks live on a multiprocessor at a time
};
StreamPlan plan_stream(const Config& config, const Size& size, const Machine& machine);

// The widest swizzle, up to the row's, for which CUTLASS's padding of the grid costs at most 2 %.
int choose_swizzle(const Config& config, int64_t m, int64_t n);

// What a row is expected to take with the operands in device memory, in microseconds.
struct Prediction {
  double memory;  // reading and writing device memory
  double busy;    // whatever else binds: tensor cores or L2, before the row's rate
  double waves;   // what nothing hides: blocks that start when others have ended, epilogues
  double us;      // all together
};
Prediction predict(const Config& config, const Size& size, const Machine& machine);

// The row to run, as an index: SCALED_MM_CUDA_ROW when set, else the least prediction; a streaming
// one in any case where K is 0 and a persistent kernel would wait for loads that do not come.
// Throws std::invalid_argument when the variable names no row.
int pick(const Arch& arch, const Size& size, const Machine& machine);

}  // namespace scaled_mm::cuda
