// NAME: 128 blocks of 256, 64 bytes shared
// NAME_1: 128 blocks of 256, 2048 bytes shared
// workspace: 2097152 bytes; split: [b]

KERNEL(256) NAME(void* b0, void* b1, void* b2, void* b3, void* b4, void* workspace, unsigned s0, unsigned n0) {
  SHARED(float, floats, 16);
  {
    const unsigned first = 0, blocks = 128;
    void* const p0 = b0;
    void* const p1 = b1;
    void* const p2 = b2;
    void* const p3 = b3;
    void* const p4 = b4;
    void* const w1 = (unsigned char*)workspace + 0ull;
    const unsigned t = threadIdx.x;
    const unsigned keeps = (unsigned)1;
    const unsigned rows = (unsigned)n0 * 512;
    const unsigned unit = blockIdx.x - first;
    const unsigned part = unit % 128;
    const unsigned tile = unit / 128 % 1;
    const unsigned keep = unit / 128;
    if (keep < keeps) {
      const unsigned partial = keep * 128 + part;
      float a1[16];
      UNROLL for (int i = 0; i < 16; ++i) a1[i] = 0.0f;
      const unsigned share = (rows + 127) / 128;
      const unsigned stop = (part + 1) * share < rows ? (part + 1) * share : rows;
      for (unsigned base = part * share; base < stop; base += 1) {
        const unsigned d0 = (base);
        const unsigned length_ = (unsigned)4096;
        unsigned x0[8];
        unsigned x1[8];
        unsigned x2[8];
        float acc7 = 0.0f;
        float acc12 = 0.0f;
        UNROLL for (int c = 0; c < 2; ++c) {
          const unsigned lane = ((unsigned)c * 256 + t) * 8;
          load_words(x0 + c * 4, (const unsigned short*)p0 + ((unsigned)d0 * 4096 + (unsigned)lane), 4);
          load_words(x1 + c * 4, (const unsigned short*)p1 + ((unsigned)lane), 4);
          load_words(x2 + c * 4, (const unsigned short*)p2 + ((unsigned)d0 * 4096 + (unsigned)lane), 4);
          UNROLL for (int j = 0; j < 8; ++j) {
            const float r0 = lane_bf16(x0 + c * 4, j);
            const float r1 = lane_bf16(x1 + c * 4, j);
            const float r2 = lane_bf16(x2 + c * 4, j);
            const float r3 = r0;
            const float r4 = r1;
            const float r5 = r2;
            const float r6 = r3 * r3;
            const float r10 = r5 * r4;
            const float r11 = r10 * r3;
            acc7 = sum_f32(acc7, r6);
            acc12 = sum_f32(acc12, r11);
          }
        }
        UNROLL for (int o = 16; o > 0; o >>= 1) acc7 = sum_f32(acc7, shfl_xor_f32(acc7, o));
        UNROLL for (int o = 16; o > 0; o >>= 1) acc12 = sum_f32(acc12, shfl_xor_f32(acc12, o));
        if ((threadIdx.x & 31) == 0) {
          floats[0 + threadIdx.x / 32] = acc7;
          floats[8 + threadIdx.x / 32] = acc12;
        }
        __syncthreads();
        acc7 = floats[0];
        UNROLL for (int w = 1; w < 8; ++w) acc7 = sum_f32(acc7, floats[0 + w]);
        acc12 = floats[8];
        UNROLL for (int w = 1; w < 8; ++w) acc12 = sum_f32(acc12, floats[8 + w]);
        __syncthreads();
        const float u7 = acc7;
        const float u12 = acc12;
        const float u8 = u7 * 0.00024414063f + 1e-5f;
        const float u9 = 1.0f / sqrtf(u8);
        const float u13 = u12 * 0.00024414063f + 0.0f;
        const float u14 = u9 * u9;
        const float u15 = u13 * u14;
        UNROLL for (int c = 0; c < 2; ++c) {
          const unsigned lane = ((unsigned)c * 256 + t) * 8;
          unsigned y0[4];
          UNROLL for (int j = 0; j < 8; ++j) {
            const float r0 = lane_bf16(x0 + c * 4, j);
            const float r1 = lane_bf16(x1 + c * 4, j);
            const float r2 = lane_bf16(x2 + c * 4, j);
            const float r3 = r0;
            const float r4 = r1;
            const float r5 = r2;
            const float r10 = r5 * r4;
            const float r16 = r3 * u15;
            const float r17 = r10 - r16;
            const float r18 = r17 * u9;
            const float r19 = round_bf16(r18);
            const float r20 = r3 * u9;
            const float r21 = r5 * r20;
            put_exact_bf16(y0, j, r19);
            a1[c * 8 + j] = sum_f32(a1[c * 8 + j], r21);
          }
          store_words((unsigned short*)p3 + ((unsigned)d0 * 4096 + (unsigned)lane), y0, 4);
        }
      }
      UNROLL for (int c = 0; c < 2; ++c) {
        UNROLL for (int j = 0; j < 8; ++j) {
          const unsigned lane = ((unsigned)c * 256 + t) * 8 + j;
          if (lane < (unsigned)4096) write_f32(w1, partial * 4096 + lane, a1[c * 8 + j]);
        }
      }
    }
  }
}
EXPORT_KERNEL(NAME)

KERNEL(256) NAME_1(void* b0, void* b1, void* b2, void* b3, void* b4, void* workspace, unsigned s0, unsigned n0) {
  SHARED(double, doubles, 256);
  {
    const unsigned first = 0, blocks = 128;
    void* const p4 = b4;
    void* const w = (unsigned char*)workspace + 0ull;
    const unsigned keeps = (unsigned)1;
    double sum = 0.0;
    const unsigned keep = (blockIdx.x - first) / 128;
    const unsigned lane = (unsigned)((blockIdx.x - first) % 128) * 32 + threadIdx.x % 32;
    const int live = keep < keeps && lane < (unsigned)4096;
    if (live) {
      for (unsigned i = threadIdx.x / 32; i < 128; i += 8) sum = sum_f64(sum, (double)read_f32(w, (keep * 128 + i) * 4096 + lane));
    }
    doubles[threadIdx.x] = sum;
    __syncthreads();
    if (live && threadIdx.x < 32) {
      for (int g = 1; g < 8; ++g) sum = sum_f64(sum, doubles[g * 32 + threadIdx.x]);
      write_f32(p4, (unsigned)lane, (float)(sum));
    }
  }
}
EXPORT_KERNEL(NAME_1)
