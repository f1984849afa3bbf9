// CUDA C on a CPU, for `paper_card.c`: a block's threads are coroutines, which change at barriers and shuffles.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
using std::max;
using std::min;
struct uint3_ { unsigned x, y, z; };
static uint3_ threadIdx, blockIdx, blockDim, gridDim;
#define VECTORS(T, N) struct N##2 { T x, y; }; struct N##3 { T x, y, z; }; struct alignas(4 * sizeof(T)) N##4 { T x, y, z, w; }; \
  static inline N##2 make_##N##2(T x, T y) { return {x, y}; } \
  static inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(float, float) VECTORS(int, int) VECTORS(unsigned, uint)
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
#define __expf expf
#define __powf powf
#define __logf logf
static inline unsigned __activemask() { return 0xffffffffu; }
template <class T> static T __ldg(const T *p) { return *p; }

#define __host__
#define __align__(n) alignas(n)
typedef _Float16 half;
typedef _Float16 __half;
struct __half2 { half x, y; };
typedef __half2 half2;
static inline half2 make_half2(half x, half y) { return {x, y}; }
static inline float __half2float(half x) { return x; }
static inline half __float2half(float x) { return x; }
static inline half __float2half_rn(float x) { return x; }
static inline bool __hgt(half a, half b) { return a > b; }
static inline bool __hlt(half a, half b) { return a < b; }
// Tensor cores by WMMA: each thread of a warp has the whole fragment and does the whole work, so that nothing is shared.
namespace nvcuda::wmma {
struct matrix_a; struct matrix_b; struct accumulator; struct row_major; struct col_major;
enum layout_t { mem_row_major, mem_col_major };
template <class Use, int M, int N, int K, class T, class Layout = row_major> struct fragment {
  static constexpr int rows = std::is_same_v<Use, matrix_b> ? K : M, columns = std::is_same_v<Use, matrix_a> ? K : N;
  float x[rows * columns];
};
template <class U, int M, int N, int K, class T, class L> static void fill_fragment(fragment<U, M, N, K, T, L> &f, float value) {
  for (float &x : f.x) x = value;
}
template <class U, int M, int N, int K, class T, class L, class S>
static void load_matrix_sync(fragment<U, M, N, K, T, L> &f, const S *from, int stride) {
  for (int i = 0; i < f.rows; i++)
    for (int j = 0; j < f.columns; j++) f.x[i * f.columns + j] = from[std::is_same_v<L, col_major> ? j * stride + i : i * stride + j];
}
template <int M, int N, int K, class T, class S, class LA, class LB>
static void mma_sync(fragment<accumulator, M, N, K, T> &d, const fragment<matrix_a, M, N, K, S, LA> &a,
                     const fragment<matrix_b, M, N, K, S, LB> &b, const fragment<accumulator, M, N, K, T> &c) {
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      float sum = c.x[i * N + j];
      for (int k = 0; k < K; k++) sum += a.x[i * K + k] * b.x[k * N + j];
      d.x[i * N + j] = T(sum);
    }
}
template <int M, int N, int K, class T, class S>
static void store_matrix_sync(S *to, const fragment<accumulator, M, N, K, T> &f, int stride, layout_t layout) {
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) to[layout == mem_row_major ? i * stride + j : j * stride + i] = f.x[i * N + j];
}
}

enum { RUN, BLOCK, WARP, DONE, STACK = 256 << 10 };
struct fiber { ucontext_t context; int state; uint3_ at; std::unique_ptr<char[]> stack; };
static std::vector<fiber> fibers;
static ucontext_t scheduler;
static size_t current;
static uint64_t slots[1024];
static void (*body)(void **);
static void **arguments;

static void wait_at(int state) {
  size_t own = current;
  fibers[own].state = state;
  swapcontext(&fibers[own].context, &scheduler);
  threadIdx = fibers[own].at;
}
static inline void __syncthreads() { wait_at(BLOCK); }
template <class T> static T shuffled(T value, size_t lane, unsigned width) {
  memcpy(&slots[current], &value, sizeof value);
  wait_at(WARP);
  size_t first = current / width * width, from = first + lane;
  T result = value;
  if (lane < width && from < fibers.size()) memcpy(&result, &slots[from], sizeof result);
  wait_at(WARP);
  return result;
}
template <class T> static T __shfl_down_sync(unsigned, T v, unsigned by, unsigned w) { return shuffled(v, current % w + by, w); }
template <class T> static T __shfl_up_sync(unsigned, T v, unsigned by, unsigned w) { return shuffled(v, current % w - by, w); }
template <class T> static T __shfl_sync(unsigned, T v, unsigned lane, unsigned w) { return shuffled(v, lane, w); }
template <class T> static T __shfl_xor_sync(unsigned, T v, unsigned by, unsigned w = 32) { return shuffled(v, (current % w) ^ by, w); }

static void start() {
  body(arguments);
  fibers[current].state = DONE;
}
static bool advance() {
  bool ran = false;
  for (current = 0; current < fibers.size(); current++)
    if (fibers[current].state == RUN) {
      ran = true;
      threadIdx = fibers[current].at;
      swapcontext(&scheduler, &fibers[current].context);
    }
  for (size_t t = 0; t < fibers.size(); t++)
    if (fibers[t].state == WARP) ran = true, fibers[t].state = RUN;
  return ran;
}
static void run_block() {
  unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  fibers.resize(threads);
  for (unsigned t = 0; t < threads; t++) {
    fiber &f = fibers[t];
    f.state = RUN;
    f.at = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
    if (!f.stack) f.stack.reset(new char[STACK]);  // not set to zero
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = &scheduler;
    makecontext(&f.context, start, 0);
  }
  for (bool waits = true; waits;) {
    while (advance()) {}
    waits = false;
    for (fiber &f : fibers)
      if (f.state == BLOCK) f.state = RUN, waits = true;
  }
}
static void launch(void (*kernel)(void **), void **params, const unsigned *size, bool together) {
  body = kernel, arguments = params;
  gridDim = {size[0], size[1], size[2]}, blockDim = {size[3], size[4], size[5]};
  for (blockIdx.z = 0; blockIdx.z < size[2]; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < size[1]; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < size[0]; blockIdx.x++) {
        if (together) { run_block(); continue; }
        for (threadIdx.z = 0; threadIdx.z < size[5]; threadIdx.z++)
          for (threadIdx.y = 0; threadIdx.y < size[4]; threadIdx.y++)
            for (threadIdx.x = 0; threadIdx.x < size[3]; threadIdx.x++) kernel(params);
      }
}
template <class... A, size_t... I> static void apply(void (*f)(A...), void **p, std::index_sequence<I...>) { f(*(A *)p[I]...); }
template <class... A> static void apply(void (*f)(A...), void **p) { apply(f, p, std::index_sequence_for<A...>{}); }
template <class... A> constexpr int parameters(void (*)(A...)) { return sizeof...(A); }
