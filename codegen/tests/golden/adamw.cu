// NAME: 515 blocks of 256, 0 bytes shared
// workspace: 0 bytes; split: []

KERNEL(256) NAME(void* b0, void* b1, void* b2, void* b3, void* b4, void* b5, void* b6, void* b7, void* b8, void* b9, void* b10, void* b11, void* b12, void* b13, void* b14, void* b15, void* b16, void* b17, void* b18, void* b19, void* b20, void* b21) {
  {
    unsigned first, blocks;
    void* p0;
    void* p1;
    void* p2;
    void* p3;
    void* p4;
    void* p5;
    void* p6;
    void* p7;
    unsigned length;
    if (blockIdx.x < 512) {
      first = 0, blocks = 512;
      p0 = b0;
      p1 = b1;
      p2 = b2;
      p3 = b3;
      p4 = b4;
      p5 = b13;
      p6 = b14;
      p7 = b15;
      length = (unsigned)1048576;
    }
    else {
      if (blockIdx.x < 514) {
        first = 512, blocks = 2;
        p0 = b0;
        p1 = b5;
        p2 = b6;
        p3 = b7;
        p4 = b8;
        p5 = b16;
        p6 = b17;
        p7 = b18;
        length = (unsigned)4096;
      }
      else {
        first = 514, blocks = 1;
        p0 = b0;
        p1 = b9;
        p2 = b10;
        p3 = b11;
        p4 = b12;
        p5 = b19;
        p6 = b20;
        p7 = b21;
        length = (unsigned)64;
      }
    }
    const unsigned length_ = length;
    const unsigned chunks = (length_ + 7) / 8;
    const unsigned items = chunks;
    if (items > 0) {
      const int u0 = read_i32(p0, (unsigned)0);
      const double u1 = (double)(u0);
      const double u2 = 0.9;
      const double u3 = pow(u2, u1);
      const double u4 = u3 * -1.0 + 1.0;
      const double u5 = 1.0 / u4;
      const double u6 = 0.95;
      const double u7 = pow(u6, u1);
      const double u8 = u7 * -1.0 + 1.0;
      const double u9 = 1.0 / u8;
      const float u10 = (float)(u5);
      const float u11 = (float)(u9);
      for (unsigned item = (unsigned)(blockIdx.x - first) * 256 + threadIdx.x; item < items; item += (unsigned)blocks * 256) {
        const unsigned lane = item * 8;
        unsigned x12[8];
        load_words(x12, (const float*)p1 + ((unsigned)lane), 8);
        unsigned x13[4];
        load_words(x13, (const unsigned short*)p2 + ((unsigned)lane), 4);
        unsigned x15[8];
        load_words(x15, (const float*)p3 + ((unsigned)lane), 8);
        unsigned x16[8];
        load_words(x16, (const float*)p4 + ((unsigned)lane), 8);
        unsigned y0[8];
        unsigned y1[8];
        unsigned y2[8];
        UNROLL for (int j = 0; j < 8; ++j) {
          const float r12 = lane_f32(x12, j);
          const float r13 = lane_bf16(x13, j);
          const float r14 = r13;
          const float r15 = lane_f32(x15, j);
          const float r16 = lane_f32(x16, j);
          const float r17 = r15 * 0.9f + 0.0f;
          const float r18 = r14 * 0.1f + 0.0f;
          const float r19 = r17 + r18;
          const float r20 = r14 * r14;
          const float r21 = r16 * 0.95f + 0.0f;
          const float r22 = r20 * 0.05f + 0.0f;
          const float r23 = r21 + r22;
          const float r24 = r19 * u10;
          const float r25 = r23 * u11;
          const float r26 = sqrtf(r25);
          const float r27 = r26 * 1.0f + 1e-8f;
          const float r28 = r24 / r27;
          const float r29 = r12 * 0.1f + 0.0f;
          const float r30 = r28 + r29;
          const float r31 = r30 * -0.0003f + 0.0f;
          const float r32 = r12 + r31;
          put_f32(y0, j, r32);
          put_f32(y1, j, r19);
          put_f32(y2, j, r23);
        }
        store_words((float*)p5 + ((unsigned)lane), y0, 8);
        store_words((float*)p6 + ((unsigned)lane), y1, 8);
        store_words((float*)p7 + ((unsigned)lane), y2, 8);
      }
    }
  }
}
EXPORT_KERNEL(NAME)
