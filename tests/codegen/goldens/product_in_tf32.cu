// weft_fn_main_0: grid (4, 1, 1), block (32, 1, 1), 0 bytes shared, B, B_global
// weft_fn_main_1: grid (2, 2, 1), block (32, 1, 1), 4592 bytes shared, A, C, B_global
// workspace B_global: 2048 x float32
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

typedef struct __align__(16) { float lane[4]; } float_x4;
template <int32_t count, typename T> static __device__ __forceinline__ void weft_mma_zero(T *sum) {
  #pragma unroll
  for (int32_t i = 0; i < count; ++i) sum[i] = (T)0;
}
static __device__ __forceinline__ void weft_copy_async_16(void *to, const void *from, bool there) {
  const uint32_t place = (uint32_t)__cvta_generic_to_shared(to);
  const int32_t given = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               : : "r"(place), "l"(from), "r"(given) : "memory");
}
static __device__ __forceinline__ void weft_mma_load_rows_rounded(float *tile, const void *from, int32_t row_bytes) {
  const int32_t lane = (int32_t)(threadIdx.x & 31u);
  uint32_t words[4];
  uint32_t place = (uint32_t)__cvta_generic_to_shared(from) + (lane & 15) * row_bytes + ((lane >> 4) << 4);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(place) : "memory");
  #pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(words[i]) : "f"(__uint_as_float(words[i])));
    tile[i] = __uint_as_float(words[i]);
  }
}
static __device__ __forceinline__ void weft_mma_load_halves_rounded(float *tile, const void *from, int32_t row_bytes) {
  const int32_t lane = (int32_t)(threadIdx.x & 31u);
  uint32_t words[4];
  uint32_t place = (uint32_t)__cvta_generic_to_shared(from) + ((lane & 7) + ((lane >> 4) << 3)) * row_bytes + (((lane >> 3) & 1) << 4);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(place) : "memory");
  #pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(words[i]) : "f"(__uint_as_float(words[i])));
    tile[i] = __uint_as_float(words[i]);
  }
}
static __device__ __forceinline__ void weft_mma_dot_tf32(float *sum, const float *a, const float *b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[4]), "+f"(sum[5]), "+f"(sum[6]), "+f"(sum[7])
               : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[2])), "r"(__float_as_uint(b[3])));
}
template <int32_t eights, typename T> static __device__ __forceinline__ void weft_mma_store(T *to, const T *sum, int32_t stride) {
  const int32_t lane = (int32_t)(threadIdx.x & 31u);
  T *place = to + (lane >> 2) * stride + ((lane & 3) << 1);
  #pragma unroll
  for (int32_t i = 0; i < eights; ++i) {
    place[i * 8] = sum[i * 4];
    place[i * 8 + 1] = sum[i * 4 + 1];
    place[i * 8 + 8 * stride] = sum[i * 4 + 2];
    place[i * 8 + 8 * stride + 1] = sum[i * 4 + 3];
  }
}

extern "C" __global__ __launch_bounds__(32, 1) void weft_fn_main_0(const float *__restrict__ B, float *__restrict__ B_global) {
  const int32_t i0ooi1ooi0oii1oio = (int32_t)blockIdx.x;
  const int32_t i0ooi1ooi0oii1oii = (int32_t)threadIdx.x;
  float B_local[16];
  const int32_t B_base = ((((i0ooi1ooi0oii1oio >> 1) * 1024) + ((i0ooi1ooi0oii1oii >> 2) * 128)) + ((i0ooi1ooi0oii1oio & 1) * 16)) + ((i0ooi1ooi0oii1oii & 3) * 4);
  #pragma unroll
  for (int32_t i0 = 0; i0 < 4; ++i0) {
    {
      const int32_t v1 = B_base + (i0 * 32);
      const float_x4 v2 = *(const float_x4 *)(B + v1);
      const float v3 = v2.lane[0];
      const float v4 = v2.lane[1];
      const float v5 = v2.lane[2];
      const float v6 = v2.lane[3];
      const int32_t v7 = i0 * 4;
      B_local[v7] = v3;
      B_local[v7 + 1] = v4;
      B_local[v7 + 2] = v5;
      B_local[v7 + 3] = v6;
    }
  }
  const int32_t B_global_base = ((((i0ooi1ooi0oii1oio & 1) * 1024) + ((i0ooi1ooi0oii1oii & 3) * 256)) + ((i0ooi1ooi0oii1oio >> 1) * 32)) + ((i0ooi1ooi0oii1oii >> 2) * 4);
  #pragma unroll
  for (int32_t i1i = 0; i1i < 4; ++i1i) {
    {
      const float v8 = B_local[i1i];
      const float v9 = B_local[i1i + 4];
      const float v10 = B_local[i1i + 8];
      const float v11 = B_local[i1i + 12];
      const int32_t v12 = B_global_base + (i1i * 64);
      const float_x4 packed = {{v8, v9, v10, v11}};
      *(float_x4 *)(B_global + v12) = packed;
    }
  }
}

extern "C" __global__ __launch_bounds__(32, 1) void weft_fn_main_1(const float *__restrict__ A, float *__restrict__ C, const float *__restrict__ B_global) {
  __shared__ __align__(128) float C_sum_shared[376];
  __shared__ __align__(128) float C_x[380];
  __shared__ __align__(128) float C_y[380];
  const int32_t i_1o = (int32_t)blockIdx.y;
  const int32_t j_1o = (int32_t)blockIdx.x;
  const int32_t tx = (int32_t)threadIdx.x;
  float C_sum[8];
  weft_mma_zero<8>((C_sum + 0));
  __syncthreads();
  weft_copy_async_16((C_y + (((tx >> 1) * 12) + ((tx & 1) * 4))), (A + (((i_1o * 1024) + ((tx >> 1) * 64)) + ((tx & 1) * 4))), true);
  weft_copy_async_16((C_x + (((tx >> 1) * 12) + ((tx & 1) * 4))), (B_global + (((j_1o * 1024) + ((tx >> 1) * 64)) + ((tx & 1) * 4))), true);
  asm volatile("cp.async.commit_group;" : : : "memory");
  for (int32_t k0 = 0; k0 < 8; ++k0) {
    asm volatile("cp.async.wait_group 0;" : : : "memory");
    __syncthreads();
    if (k0 < 7) {
      weft_copy_async_16((C_y + (((((k0 + 1) & 1) * 192) + ((tx >> 1) * 12)) + ((tx & 1) * 4))), (A + (((((i_1o * 1024) + ((tx >> 1) * 64)) + (k0 * 8)) + ((tx & 1) * 4)) + 8)), true);
      weft_copy_async_16((C_x + (((((k0 + 1) & 1) * 192) + ((tx >> 1) * 12)) + ((tx & 1) * 4))), (B_global + (((((j_1o * 1024) + ((tx >> 1) * 64)) + (k0 * 8)) + ((tx & 1) * 4)) + 8)), true);
    }
    asm volatile("cp.async.commit_group;" : : : "memory");
    float C_y_mma_a[4];
    float C_x_mma_b[4];
    weft_mma_load_rows_rounded((C_y_mma_a + 0), (C_y + ((k0 & 1) * 192)), (int32_t)(12) * 4);
    weft_mma_load_halves_rounded((C_x_mma_b + 0), (C_x + ((k0 & 1) * 192)), (int32_t)(12) * 4);
    weft_mma_dot_tf32((C_sum + 0), (C_y_mma_a + 0), (C_x_mma_b + 0));
  }
  weft_mma_store<2>((C_sum_shared + (0)), (C_sum + 0), (int32_t)(24));
  __syncthreads();
  const int32_t C_base = (((i_1o * 512) + ((tx >> 2) * 32)) + (j_1o * 16)) + ((tx & 3) * 4);
  const int32_t C_sum_shared_base = ((tx >> 2) * 24) + ((tx & 3) * 4);
  #pragma unroll
  for (int32_t i_1ij_1i0 = 0; i_1ij_1i0 < 2; ++i_1ij_1i0) {
    {
      const int32_t v1 = C_sum_shared_base + (i_1ij_1i0 * 192);
      const float_x4 v2 = *(const float_x4 *)(C_sum_shared + v1);
      const float v3 = v2.lane[0];
      const float v4 = v2.lane[1];
      const float v5 = v2.lane[2];
      const float v6 = v2.lane[3];
      const int32_t v7 = C_base + (i_1ij_1i0 * 256);
      const float_x4 packed = {{v3, v4, v5, v6}};
      *(float_x4 *)(C + v7) = packed;
    }
  }
}
