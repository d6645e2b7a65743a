// weft_fn_main_0: grid (2, 2, 1), block (8, 8, 1), 2048 bytes shared, A, B, C
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

typedef struct __align__(16) { float lane[4]; } float_x4;

extern "C" __global__ __launch_bounds__(64, 1) void weft_fn_main_0(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C) {
  __shared__ __align__(128) float A_shared[256];
  __shared__ __align__(128) float B_shared[256];
  const int32_t i0o = (int32_t)blockIdx.y;
  const int32_t i1o = (int32_t)blockIdx.x;
  const int32_t i0io = (int32_t)threadIdx.y;
  const int32_t i1io = (int32_t)threadIdx.x;
  float C_local[16];
  #pragma unroll
  for (int32_t i_init = 0; i_init < 4; ++i_init) {
    #pragma unroll
    for (int32_t j_init = 0; j_init < 4; ++j_init) {
      C_local[(i_init * 4) + j_init] = 0.0f;
    }
  }
  for (int32_t ko = 0; ko < 8; ++ko) {
    __syncthreads();
    {
      const int32_t v1 = ((((i0o * 2048) + (i0io * 256)) + ((i1io >> 1) * 64)) + (ko * 8)) + ((i1io & 1) * 4);
      const float_x4 v2 = *(const float_x4 *)(A + v1);
      const float v3 = v2.lane[0];
      const float v4 = v2.lane[1];
      const float v5 = v2.lane[2];
      const float v6 = v2.lane[3];
      const int32_t v7 = (i0io * 32) + (i1io * 4);
      const float_x4 packed = {{v3, v4, v5, v6}};
      *(float_x4 *)(A_shared + v7) = packed;
    }
    {
      const int32_t v8 = (((ko * 512) + (i0io * 64)) + (i1o * 32)) + (i1io * 4);
      const float_x4 v9 = *(const float_x4 *)(B + v8);
      const float v10 = v9.lane[0];
      const float v11 = v9.lane[1];
      const float v12 = v9.lane[2];
      const float v13 = v9.lane[3];
      const int32_t v14 = (i0io * 32) + (i1io * 4);
      const float_x4 packed_1 = {{v10, v11, v12, v13}};
      *(float_x4 *)(B_shared + v14) = packed_1;
    }
    __syncthreads();
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
      const int32_t v15 = i0ii * 4;
      const float v16 = C_local[v15];
      const float v17 = C_local[v15 + 1];
      const float v18 = C_local[v15 + 2];
      const float v19 = C_local[v15 + 3];
      const int32_t v20 = C_base + (i0ii * 64);
      const float_x4 packed_2 = {{v16, v17, v18, v19}};
      *(float_x4 *)(C + v20) = packed_2;
    }
  }
}
