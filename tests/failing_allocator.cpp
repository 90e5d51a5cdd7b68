// An allocator for torch.cuda.memory.CUDAPluggableAllocator that fails where it is told to;
// failing_memory.py compiles it, against the CUDA runtime that torch has loaded.

#include <c10/util/Exception.h>

#include <atomic>
#include <cstddef>

extern "C" {

int cudaMalloc(void** memory, size_t bytes);
int cudaFree(void* memory);

static std::atomic<long> made{0}, fails_at{0}, live{0};

// The next allocation is the first; that of this number fails, and 0: none.
void arm(long number) {
  made = 0;
  fails_at = number;
}
long count_made() { return made; }
long count_live() { return live; }

void* allocate(size_t bytes, int, void*) {
  if (bytes == 0) return nullptr;
  if (++made == fails_at) TORCH_CHECK_WITH(OutOfMemoryError, false, "planted: out of memory");
  void* memory = nullptr;
  TORCH_CHECK(cudaMalloc(&memory, bytes) == 0, "cudaMalloc of ", bytes, " bytes");
  ++live;
  return memory;
}

void release(void* memory, size_t, int, void*) {
  if (!memory) return;
  cudaFree(memory);  // waits for the device, so no kernel still uses it
  --live;
}
}
