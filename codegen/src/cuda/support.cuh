// Plain C++ on top of the primitives.

// Before a `for`: unroll it in part; a hint.
#ifdef AUTOSHARD_EMULATION
#define UNROLL_SOME
#else
#define UNROLL_SOME _Pragma("unroll 4")
#endif

DEVICE float round_bf16(float x) { return bf16_to_f32(f32_to_bf16(x)); }
DEVICE double max_f64(double a, double b) { return a > b || a != a ? a : b; }
DEVICE float sum_f32(float a, float b) { return a + b; }
DEVICE double sum_f64(double a, double b) { return a + b; }

// Towards zero; what does not fit becomes the nearest end, NaN 0.
DEVICE int f64_to_i32(double x) {
  if (x >= 2147483647.0) return 2147483647;
  if (x > -2147483648.0) return (int)x;
  return x == x ? -2147483647 - 1 : 0;
}
DEVICE int f32_to_i32(float x) { return f64_to_i32((double)x); }

// SplitMix64 in counter form: an odd multiple of 2^-24 in (-1, 1).
DEVICE float random_unit(unsigned long long key, unsigned long long counter) {
  unsigned long long z = key + (counter + 1ull) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z = z ^ (z >> 31);
  return (float)(2 * (int)(z >> 40) + 1 - (1 << 24)) * 5.9604644775390625e-8f;
}

// A thread's lanes of an operand or result as words: 2-byte elements share one, 8-byte elements
// have two. `words` is a multiple of 2.
DEVICE void load_words(unsigned* w, const void* p, int words) {
  if (words == 2) {
    uint2 v = load8(p);
    w[0] = v.x;
    w[1] = v.y;
    return;
  }
  UNROLL for (int k = 0; k < words; k += 4) {
    uint4 v = load16((const unsigned*)p + k);
    w[k] = v.x;
    w[k + 1] = v.y;
    w[k + 2] = v.z;
    w[k + 3] = v.w;
  }
}
DEVICE void zero_words(unsigned* w, int words) {
  UNROLL for (int k = 0; k < words; ++k) w[k] = 0u;
}
DEVICE void store_words(void* p, const unsigned* w, int words) {
  if (words == 2) {
    uint2 v;
    v.x = w[0];
    v.y = w[1];
    store8(p, v);
    return;
  }
  UNROLL for (int k = 0; k < words; k += 4) {
    uint4 v;
    v.x = w[k];
    v.y = w[k + 1];
    v.z = w[k + 2];
    v.w = w[k + 3];
    store16((unsigned*)p + k, v);
  }
}

// The same one by one, `step` elements apart: the first `n` of `lanes`; the others read as zero.
DEVICE unsigned get16(const unsigned* w, int j) { return j & 1 ? w[j >> 1] >> 16 : w[j >> 1] & 0xffffu; }
DEVICE void put16(unsigned* w, int j, unsigned v) {
  w[j >> 1] = j & 1 ? (w[j >> 1] & 0xffffu) | v << 16 : v;
}
DEVICE void load_2(unsigned* w, const void* p, unsigned long long step, int lanes, int n) {
  UNROLL for (int j = 0; j < lanes; ++j) put16(w, j, j < n ? ((const unsigned short*)p)[j * step] : 0u);
}
DEVICE void load_4(unsigned* w, const void* p, unsigned long long step, int lanes, int n) {
  UNROLL for (int j = 0; j < lanes; ++j) w[j] = j < n ? ((const unsigned*)p)[j * step] : 0u;
}
DEVICE void load_8(unsigned* w, const void* p, unsigned long long step, int lanes, int n) {
  UNROLL for (int j = 0; j < lanes; ++j) {
    double x = j < n ? ((const double*)p)[j * step] : 0.0;
    w[2 * j] = f64_low(x);
    w[2 * j + 1] = f64_high(x);
  }
}
DEVICE void store_2(void* p, const unsigned* w, unsigned long long step, int lanes, int n) {
  UNROLL for (int j = 0; j < lanes; ++j) {
    if (j < n) ((unsigned short*)p)[j * step] = (unsigned short)get16(w, j);
  }
}
DEVICE void store_4(void* p, const unsigned* w, unsigned long long step, int lanes, int n) {
  UNROLL for (int j = 0; j < lanes; ++j) {
    if (j < n) ((unsigned*)p)[j * step] = w[j];
  }
}
DEVICE void store_8(void* p, const unsigned* w, unsigned long long step, int lanes, int n) {
  UNROLL for (int j = 0; j < lanes; ++j) {
    if (j < n) ((double*)p)[j * step] = words_f64(w[2 * j], w[2 * j + 1]);
  }
}

// A lane of the words, and back. A bf16 register is exact in its upper half.
DEVICE float lane_bf16(const unsigned* w, int j) {
  return bits_f32(j & 1 ? w[j >> 1] & 0xffff0000u : w[j >> 1] << 16);
}
DEVICE float lane_f32(const unsigned* w, int j) { return bits_f32(w[j]); }
DEVICE int lane_i32(const unsigned* w, int j) { return (int)w[j]; }
DEVICE double lane_f64(const unsigned* w, int j) { return words_f64(w[2 * j], w[2 * j + 1]); }
DEVICE void put_bf16(unsigned* w, int j, float x) { put16(w, j, f32_to_bf16(x)); }
DEVICE void put_exact_bf16(unsigned* w, int j, float x) { put16(w, j, f32_bits(x) >> 16); }
DEVICE void put_f32(unsigned* w, int j, float x) { w[j] = f32_bits(x); }
DEVICE void put_i32(unsigned* w, int j, int x) { w[j] = (unsigned)x; }
DEVICE void put_f64(unsigned* w, int j, double x) {
  w[2 * j] = f64_low(x);
  w[2 * j + 1] = f64_high(x);
}

// One element.
DEVICE float read_bf16(const void* p, unsigned long long at) { return bf16_to_f32(((const unsigned short*)p)[at]); }
DEVICE float read_f32(const void* p, unsigned long long at) { return ((const float*)p)[at]; }
DEVICE int read_i32(const void* p, unsigned long long at) { return ((const int*)p)[at]; }
DEVICE double read_f64(const void* p, unsigned long long at) { return ((const double*)p)[at]; }
DEVICE void write_bf16(void* p, unsigned long long at, float x) { ((unsigned short*)p)[at] = f32_to_bf16(x); }
DEVICE void write_f32(void* p, unsigned long long at, float x) { ((float*)p)[at] = x; }
DEVICE void write_i32(void* p, unsigned long long at, int x) { ((int*)p)[at] = x; }
DEVICE void write_f64(void* p, unsigned long long at, double x) { ((double*)p)[at] = x; }
