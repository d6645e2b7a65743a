// weft_fn_main_0: grid (1, 1, 1), block (32, 1, 1), 0 bytes shared, B, B_global
// weft_fn_main_1: grid (2, 2, 1), block (32, 1, 1), 4592 bytes shared, A, C, B_global
// workspace B_global: 2048 x int8
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

typedef struct __align__(4) { int8_t lane[4]; } int8_x4;
typedef struct __align__(16) { int8_t lane[16]; } int8_x16;
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
static __device__ __forceinline__ void weft_mma_load_rows(uint32_t *words, const void *from, int32_t row_bytes) {
  const int32_t lane = (int32_t)(threadIdx.x & 31u);
  uint32_t place = (uint32_t)__cvta_generic_to_shared(from) + (lane & 15) * row_bytes + ((lane >> 4) << 4);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(place) : "memory");
}
static __device__ __forceinline__ void weft_mma_load_halves(uint32_t *words, const void *from, int32_t row_bytes) {
  const int32_t lane = (int32_t)(threadIdx.x & 31u);
  uint32_t place = (uint32_t)__cvta_generic_to_shared(from) + ((lane & 7) + ((lane >> 4) << 3)) * row_bytes + (((lane >> 3) & 1) << 4);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(place) : "memory");
}
static __device__ __forceinline__ void weft_mma_dot_u8s8(int32_t *sum, const uint32_t *a, const uint32_t *b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(sum[4]), "+r"(sum[5]), "+r"(sum[6]), "+r"(sum[7])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2]), "r"(b[3]));
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
typedef struct __align__(16) { int32_t lane[4]; } int32_x4;

extern "C" __global__ __launch_bounds__(32, 1) void weft_fn_main_0(const int8_t *__restrict__ B, int8_t *__restrict__ B_global) {
  const int32_t i0ooi1ooi0oii1oio = (int32_t)blockIdx.x;
  const int32_t i0ooi1ooi0oii1oii = (int32_t)threadIdx.x;
  int8_t B_local[64];
  const int32_t B_base = (((((i0ooi1ooi0oii1oii >> 2) & 3) * 512) + (i0ooi1ooi0oii1oio * 32)) + ((i0ooi1ooi0oii1oii >> 4) * 16)) + ((i0ooi1ooi0oii1oii & 3) * 4);
  #pragma unroll
  for (int32_t i0 = 0; i0 < 16; ++i0) {
    {
      const int32_t v1 = B_base + (i0 * 32);
      const int8_x4 v2 = *(const int8_x4 *)(B + v1);
      const int8_t v3 = v2.lane[0];
      const int8_t v4 = v2.lane[1];
      const int8_t v5 = v2.lane[2];
      const int8_t v6 = v2.lane[3];
      const int32_t v7 = i0 * 4;
      B_local[v7] = v3;
      B_local[v7 + 1] = v4;
      B_local[v7 + 2] = v5;
      B_local[v7 + 3] = v6;
    }
  }
  const int32_t B_global_base = (((i0ooi1ooi0oii1oio * 2048) + ((i0ooi1ooi0oii1oii >> 4) * 1024)) + ((i0ooi1ooi0oii1oii & 3) * 256)) + (((i0ooi1ooi0oii1oii >> 2) & 3) * 16);
  #pragma unroll
  for (int32_t i1i = 0; i1i < 4; ++i1i) {
    {
      const int8_t v8 = B_local[i1i];
      const int8_t v9 = B_local[i1i + 4];
      const int8_t v10 = B_local[i1i + 8];
      const int8_t v11 = B_local[i1i + 12];
      const int8_t v12 = B_local[i1i + 16];
      const int8_t v13 = B_local[i1i + 20];
      const int8_t v14 = B_local[i1i + 24];
      const int8_t v15 = B_local[i1i + 28];
      const int8_t v16 = B_local[i1i + 32];
      const int8_t v17 = B_local[i1i + 36];
      const int8_t v18 = B_local[i1i + 40];
      const int8_t v19 = B_local[i1i + 44];
      const int8_t v20 = B_local[i1i + 48];
      const int8_t v21 = B_local[i1i + 52];
      const int8_t v22 = B_local[i1i + 56];
      const int8_t v23 = B_local[i1i + 60];
      const int32_t v24 = B_global_base + (i1i * 64);
      const int8_x16 packed = {{v8, v9, v10, v11, v12, v13, v14, v15, v16, v17, v18, v19, v20, v21, v22, v23}};
      *(int8_x16 *)(B_global + v24) = packed;
    }
  }
}

extern "C" __global__ __launch_bounds__(32, 1) void weft_fn_main_1(const uint8_t *__restrict__ A, int32_t *__restrict__ C, const int8_t *__restrict__ B_global) {
  __shared__ __align__(128) int32_t C_sum_shared[376];
  __shared__ __align__(128) int8_t C_x[1520];
  __shared__ __align__(128) uint8_t C_y[1520];
  const int32_t i_1o = (int32_t)blockIdx.y;
  const int32_t j_1o = (int32_t)blockIdx.x;
  const int32_t tx = (int32_t)threadIdx.x;
  int32_t C_sum[8];
  weft_mma_zero<8>((C_sum + 0));
  __syncthreads();
  weft_copy_async_16((C_y + (((tx >> 1) * 48) + ((tx & 1) * 16))), (A + (((i_1o * 1024) + ((tx >> 1) * 64)) + ((tx & 1) * 16))), true);
  weft_copy_async_16((C_x + (((tx >> 1) * 48) + ((tx & 1) * 16))), (B_global + (((j_1o * 1024) + ((tx >> 1) * 64)) + ((tx & 1) * 16))), true);
  asm volatile("cp.async.commit_group;" : : : "memory");
  for (int32_t k0 = 0; k0 < 2; ++k0) {
    asm volatile("cp.async.wait_group 0;" : : : "memory");
    __syncthreads();
    if (k0 < 1) {
      weft_copy_async_16((C_y + ((((k0 * 768) + ((tx >> 1) * 48)) + ((tx & 1) * 16)) + 768)), (A + (((((i_1o * 1024) + ((tx >> 1) * 64)) + (k0 * 32)) + ((tx & 1) * 16)) + 32)), true);
      weft_copy_async_16((C_x + ((((k0 * 768) + ((tx >> 1) * 48)) + ((tx & 1) * 16)) + 768)), (B_global + (((((j_1o * 1024) + ((tx >> 1) * 64)) + (k0 * 32)) + ((tx & 1) * 16)) + 32)), true);
    }
    asm volatile("cp.async.commit_group;" : : : "memory");
    uint32_t C_y_mma_a[4];
    uint32_t C_x_mma_b[4];
    weft_mma_load_rows((C_y_mma_a + 0), (C_y + (k0 * 768)), (int32_t)(48) * 1);
    weft_mma_load_halves((C_x_mma_b + 0), (C_x + (k0 * 768)), (int32_t)(48) * 1);
    weft_mma_dot_u8s8((C_sum + 0), (C_y_mma_a + 0), (C_x_mma_b + 0));
  }
  weft_mma_store<2>((C_sum_shared + (0)), (C_sum + 0), (int32_t)(24));
  __syncthreads();
  const int32_t C_base = (((i_1o * 512) + ((tx >> 2) * 32)) + (j_1o * 16)) + ((tx & 3) * 4);
  const int32_t C_sum_shared_base = ((tx >> 2) * 24) + ((tx & 3) * 4);
  #pragma unroll
  for (int32_t i_1ij_1i0 = 0; i_1ij_1i0 < 2; ++i_1ij_1i0) {
    {
      const int32_t v1 = C_sum_shared_base + (i_1ij_1i0 * 192);
      const int32_x4 v2 = *(const int32_x4 *)(C_sum_shared + v1);
      const int32_t v3 = v2.lane[0];
      const int32_t v4 = v2.lane[1];
      const int32_t v5 = v2.lane[2];
      const int32_t v6 = v2.lane[3];
      const int32_t v7 = C_base + (i_1ij_1i0 * 256);
      const int32_x4 packed = {{v3, v4, v5, v6}};
      *(int32_x4 *)(C + v7) = packed;
    }
  }
}
