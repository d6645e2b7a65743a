// weft_fn_main_0: grid (2, 1, 1), block (16, 1, 1), 0 bytes shared, A, B, C
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

static __device__ __forceinline__ uint16_t weft_to_half(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
static __device__ __forceinline__ float weft_max_float(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float chosen;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(chosen) : "f"(a), "f"(b));
  return chosen;
#else
  return a > b || a != a ? a : b;
#endif
}
static __device__ __forceinline__ float weft_from_half(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
static __device__ __forceinline__ float weft_round_half(float value) { return weft_from_half(weft_to_half(value)); }
static __device__ __forceinline__ float weft_as_float(uint32_t bits) { return __uint_as_float(bits); }
static __device__ __forceinline__ float weft_from_bfloat(uint16_t bits) { return weft_as_float((uint32_t)bits << 16); }

typedef struct __align__(16) { uint16_t lane[8]; } uint16_x8;

extern "C" __global__ __launch_bounds__(16, 1) void weft_fn_main_0(const uint16_t *__restrict__ A, const uint16_t *__restrict__ B, uint16_t *__restrict__ C) {
  const int32_t io = (int32_t)blockIdx.x;
  const int32_t iio = (int32_t)threadIdx.x;
  {
    const int32_t v1 = (io * 128) + (iio * 8);
    const uint16_x8 v2 = *(const uint16_x8 *)(A + v1);
    const uint16_x8 v3 = *(const uint16_x8 *)(B + v1);
    const uint16_t v4 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.lane[0]) * 2.0f), weft_round_half(weft_from_bfloat(v3.lane[0]))));
    const uint16_t v5 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.lane[1]) * 2.0f), weft_round_half(weft_from_bfloat(v3.lane[1]))));
    const uint16_t v6 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.lane[2]) * 2.0f), weft_round_half(weft_from_bfloat(v3.lane[2]))));
    const uint16_t v7 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.lane[3]) * 2.0f), weft_round_half(weft_from_bfloat(v3.lane[3]))));
    const uint16_t v8 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.lane[4]) * 2.0f), weft_round_half(weft_from_bfloat(v3.lane[4]))));
    const uint16_t v9 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.lane[5]) * 2.0f), weft_round_half(weft_from_bfloat(v3.lane[5]))));
    const uint16_t v10 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.lane[6]) * 2.0f), weft_round_half(weft_from_bfloat(v3.lane[6]))));
    const uint16_t v11 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.lane[7]) * 2.0f), weft_round_half(weft_from_bfloat(v3.lane[7]))));
    const uint16_x8 packed = {{v4, v5, v6, v7, v8, v9, v10, v11}};
    *(uint16_x8 *)(C + v1) = packed;
  }
}
