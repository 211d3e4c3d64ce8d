// Device primitives: all that a kernel's text uses beyond plain C++.
//
// With AUTOSHARD_EMULATION defined this section is empty: a header that is read before the text
// supplies the same names with the same signatures and meaning. The list is closed; whatever can
// be written in plain C++ stands in support.cuh instead.
//
// Macros
//   KERNEL(block)           head of an entry point for blocks of `block` threads; name and parameters follow
//   EXPORT_KERNEL(name)     after each entry point's body, at file scope; nothing on the device
//   DEVICE                  head of a function that is inlined
//   CONSTANT                head of a table in device memory at file scope, that nobody writes
//   SHARED(type, name, n)   `name`: n elements of shared memory of the block, aligned to 16 bytes, with
//                           undefined contents; only as the first statements of an entry point, which every
//                           thread executes
//   UNROLL                  before a `for`: unroll it wholly
//
// Built in: threadIdx.x, blockIdx.x (one-dimensional, unsigned); __syncthreads(), reached by all
// threads of the block in the same place; struct uint4 { unsigned x, y, z, w; } and
// uint2 { unsigned x, y; }, aligned to their size; the C library's
// expf logf sinf cosf tanhf sqrtf fabsf powf truncf and, for double, exp log sin cos tanh sqrt
// fabs pow trunc.
//
// Functions
//   float bf16_to_f32(unsigned short b)               exact
//   unsigned short f32_to_bf16(float x)               nearest, ties to even; NaN gives a NaN
//   unsigned f32_bits(float x)                        bit pattern
//   float bits_f32(unsigned b)                        inverse
//   double words_f64(unsigned low, unsigned high)     double of the bit pattern high:low
//   unsigned f64_low(double x), f64_high(double x)    halves of the bit pattern
//   uint4 load16(const void* p)                       16 bytes; p is a multiple of 16
//   void store16(void* p, uint4 v)                    the same
//   uint2 load8(const void* p)                        8 bytes; p is a multiple of 8
//   void store8(void* p, uint2 v)                     the same
//   float shfl_xor_f32(float x, int mask)             x of the thread whose lane is mine ^ mask
//   double shfl_xor_f64(double x, int mask)           the same
//   unsigned ballot(int p)                            bit i: p of lane i is not 0
//   int popcount(unsigned x)                          number of bits set
//   float max_f32(float a, float b)                   the larger; NaN if either is
// All 32 threads of a warp take part in shfl_xor and ballot, in the same place. Neither
// orders memory.
// The bodies below have been assembled for their targets, but have not run on a device yet.
#ifndef AUTOSHARD_EMULATION
#define KERNEL(block) extern "C" __global__ void __launch_bounds__(block, 1)
#define EXPORT_KERNEL(name)
#define DEVICE static __device__ __forceinline__
#define CONSTANT static __device__ const
#define SHARED(type, name, n) __shared__ __align__(16) type name[n]
#define UNROLL _Pragma("unroll")
DEVICE unsigned f32_bits(float x) { return __float_as_uint(x); }
DEVICE float bits_f32(unsigned b) { return __uint_as_float(b); }
DEVICE float bf16_to_f32(unsigned short b) { return __uint_as_float((unsigned)b << 16); }
DEVICE unsigned short f32_to_bf16(float x) {
  unsigned short b;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(x));
  return b;
}
DEVICE double words_f64(unsigned low, unsigned high) { return __hiloint2double((int)high, (int)low); }
DEVICE unsigned f64_low(double x) { return (unsigned)__double2loint(x); }
DEVICE unsigned f64_high(double x) { return (unsigned)__double2hiint(x); }
DEVICE uint4 load16(const void* p) { return *(const uint4*)p; }
DEVICE void store16(void* p, uint4 v) { *(uint4*)p = v; }
DEVICE uint2 load8(const void* p) { return *(const uint2*)p; }
DEVICE void store8(void* p, uint2 v) { *(uint2*)p = v; }
DEVICE float shfl_xor_f32(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE double shfl_xor_f64(double x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE unsigned ballot(int p) { return __ballot_sync(0xffffffffu, p); }
DEVICE int popcount(unsigned x) { return __popc(x); }
DEVICE float max_f32(float a, float b) {
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
}
#endif
