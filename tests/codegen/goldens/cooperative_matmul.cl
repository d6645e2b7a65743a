// weft_fn_main_0: grid (2, 2, 1), block (8, 8, 1), 2048 bytes shared, A, B, C
typedef char int8_t; typedef short int16_t; typedef int int32_t; typedef long int64_t;
typedef uchar uint8_t; typedef ushort uint16_t; typedef uint uint32_t; typedef ulong uint64_t;

__kernel __attribute__((reqd_work_group_size(8, 8, 1))) void weft_fn_main_0(__global const float *restrict A, __global const float *restrict B, __global float *restrict C) {
  __local float A_shared[256] __attribute__((aligned(128)));
  __local float B_shared[256] __attribute__((aligned(128)));
  const int32_t i0o = (int32_t)get_group_id(1);
  const int32_t i1o = (int32_t)get_group_id(0);
  const int32_t i0io = (int32_t)get_local_id(1);
  const int32_t i1io = (int32_t)get_local_id(0);
  float C_local[16];
  #pragma unroll
  for (int32_t i_init = 0; i_init < 4; ++i_init) {
    #pragma unroll
    for (int32_t j_init = 0; j_init < 4; ++j_init) {
      C_local[(i_init * 4) + j_init] = 0.0f;
    }
  }
  for (int32_t ko = 0; ko < 8; ++ko) {
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    {
      const int32_t v1 = ((((i0o * 2048) + (i0io * 256)) + ((i1io >> 1) * 64)) + (ko * 8)) + ((i1io & 1) * 4);
      const float4 v2 = vload4(0, A + v1);
      const int32_t v3 = (i0io * 32) + (i1io * 4);
      vstore4((float4)(v2.s0, v2.s1, v2.s2, v2.s3), 0, A_shared + v3);
    }
    {
      const int32_t v4 = (((ko * 512) + (i0io * 64)) + (i1o * 32)) + (i1io * 4);
      const float4 v5 = vload4(0, B + v4);
      const int32_t v6 = (i0io * 32) + (i1io * 4);
      vstore4((float4)(v5.s0, v5.s1, v5.s2, v5.s3), 0, B_shared + v6);
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    for (int32_t ki = 0; ki < 8; ++ki) {
      const int32_t A_shared_base = (i0io * 32) + ki;
      const int32_t B_shared_base_1 = (ki * 32) + (i1io * 4);
      #pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const float A_shared_value = A_shared[A_shared_base + (i * 8)];
        #pragma unroll
        for (int32_t j = 0; j < 4; ++j) {
          C_local[(i * 4) + j] = C_local[(i * 4) + j] + (A_shared_value * B_shared[B_shared_base_1 + j]);
        }
      }
    }
  }
  const int32_t C_base = (((i0o * 2048) + (i0io * 256)) + (i1o * 32)) + (i1io * 4);
  #pragma unroll
  for (int32_t i0ii = 0; i0ii < 4; ++i0ii) {
    {
      const int32_t v7 = i0ii * 4;
      const float v8 = C_local[v7];
      const float v9 = C_local[v7 + 1];
      const float v10 = C_local[v7 + 2];
      const float v11 = C_local[v7 + 3];
      const int32_t v12 = C_base + (i0ii * 64);
      vstore4((float4)(v8, v9, v10, v11), 0, C + v12);
    }
  }
}
