// NAME: 8 blocks of 256, 0 bytes shared
// workspace: 0 bytes; split: [v]

KERNEL(256) NAME(void* b0, void* b1, void* b2, unsigned s0, unsigned n0) {
  {
    const unsigned first = 0, blocks = 8;
    void* const p0 = b0;
    void* const p1 = b1;
    void* const p2 = b2;
    const unsigned rows = (unsigned)64;
    const unsigned t = threadIdx.x % 32;
    for (unsigned base = (unsigned)(blockIdx.x - first) * 8; base < rows; base += (unsigned)blocks * 8) {
      const unsigned row = base + (threadIdx.x / 32);
      const int live = row < rows;
      const unsigned d0 = (live ? row : base);
      const unsigned length_ = live ? (unsigned)n0 : 0;
      unsigned x0[4];
      float acc1 = bits_f32(0xff800000u);
      UNROLL for (int c = 0; c < 1; ++c) {
        const unsigned lane = ((unsigned)c * 32 + t) * 4;
        const int n = lane >= length_ ? 0 : length_ - lane < 4 ? (int)(length_ - lane) : 4;
        if (n == 4) load_words(x0 + c * 4, (const float*)p0 + ((unsigned)d0 * 100 + (unsigned)lane), 4);
        else load_4(x0 + c * 4, (const float*)p0 + ((unsigned)d0 * 100 + (unsigned)lane), 1, 4, n);
        UNROLL for (int j = 0; j < 4; ++j) {
          const float r0 = lane_f32(x0 + c * 4, j);
          if (j < n) acc1 = max_f32(acc1, r0);
        }
      }
      UNROLL for (int o = 16; o > 0; o >>= 1) acc1 = max_f32(acc1, shfl_xor_f32(acc1, o));
      const float u1 = acc1;
      float acc4 = 0.0f;
      UNROLL for (int c = 0; c < 1; ++c) {
        const unsigned lane = ((unsigned)c * 32 + t) * 4;
        const int n = lane >= length_ ? 0 : length_ - lane < 4 ? (int)(length_ - lane) : 4;
        UNROLL for (int j = 0; j < 4; ++j) {
          const float r0 = lane_f32(x0 + c * 4, j);
          const float r2 = r0 - u1;
          const float r3 = expf(r2);
          if (j < n) acc4 = sum_f32(acc4, r3);
        }
      }
      UNROLL for (int o = 16; o > 0; o >>= 1) acc4 = sum_f32(acc4, shfl_xor_f32(acc4, o));
      const float u4 = acc4;
      const float u6 = logf(u4);
      const float u7 = u6 + u1;
      UNROLL for (int c = 0; c < 1; ++c) {
        const unsigned lane = ((unsigned)c * 32 + t) * 4;
        const int n = lane >= length_ ? 0 : length_ - lane < 4 ? (int)(length_ - lane) : 4;
        unsigned y0[4];
        UNROLL for (int j = 0; j < 4; ++j) {
          const float r0 = lane_f32(x0 + c * 4, j);
          const float r2 = r0 - u1;
          const float r3 = expf(r2);
          const float r5 = r3 / u4;
          put_f32(y0, j, r5);
        }
        if (n == 4) store_words((float*)p1 + ((unsigned)d0 * 100 + (unsigned)lane), y0, 4);
        else store_4((float*)p1 + ((unsigned)d0 * 100 + (unsigned)lane), y0, 1, 4, n);
      }
      if (t == 0 && live) {
        write_f32(p2, (unsigned)d0, u7);
      }
    }
  }
}
EXPORT_KERNEL(NAME)
