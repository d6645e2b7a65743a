// weft_fn_main_0: grid ((n + 63) // 64, 1, 1), block (64, 1, 1), 0 bytes shared, A, C, n
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

extern "C" __global__ __launch_bounds__(64) void weft_fn_main_0(const float *__restrict__ A, float *__restrict__ C, const int64_t n) {
  const int32_t i_1o = (int32_t)blockIdx.x;
  const int32_t i_1i = (int32_t)threadIdx.x;
  if (i_1o < ((n + 63) >> 6)) {
    if ((((int64_t)i_1o * 64) + (int64_t)i_1i) < n) {
      const bool v1 = 1 <= (((int64_t)i_1o * 64) + (int64_t)i_1i);
      const float v2 = v1 ? A[(((int64_t)i_1o * 64) + (int64_t)i_1i) - 1] : 0.0f;
      const bool v3 = ((((int64_t)i_1o * 64) + (int64_t)i_1i) + 1) < n;
      const float v4 = v3 ? A[(((int64_t)i_1o * 64) + (int64_t)i_1i) + 1] : 0.0f;
      C[((int64_t)i_1o * 64) + (int64_t)i_1i] = expf(v2) + v4;
    }
  }
}
