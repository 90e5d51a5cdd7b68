// torch's parallel_for on plain threads, for ThreadSanitizer: it knows what pthread_create and
// pthread_join put in order, and nothing of the OpenMP inside torch. Loaded before torch, it takes
// the place of torch's own functions. The grain is left aside, so that small work is shared as
// well. With OVERLAP, each thread does the last of the one before once more: a planted race.

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace {
constexpr int64_t kThreads = 4;
#ifdef OVERLAP
constexpr int64_t kOverlap = 1;
#else
constexpr int64_t kOverlap = 0;
#endif
}

extern "C" {

int32_t torch_get_num_threads(uint32_t* threads) {
  *threads = kThreads;
  return 0;
}

int32_t torch_parallel_for(int64_t begin, int64_t end, int64_t,
                           void (*run)(int64_t, int64_t, void*), void* context) {
  const int64_t count = end - begin, parts = std::min(count, kThreads);
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t first = begin + count * i / parts - (i > 0 ? kOverlap : 0);
    threads.emplace_back(run, first, begin + count * (i + 1) / parts, context);
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}
}
