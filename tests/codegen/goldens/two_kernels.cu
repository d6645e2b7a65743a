// weft_fn_main_0: grid (4, 1, 1), block (32, 1, 1), 0 bytes shared, A, B
// weft_fn_main_1: grid (4, 1, 1), block (32, 1, 1), 0 bytes shared, C, B
// workspace B: 100 x int32
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

static __device__ __forceinline__ int32_t weft_floormod_int32_t(int32_t a, int32_t b) {
  if (b == 0) return 0;
  if (b == -1) return 0;
  int32_t rest = (int32_t)(a % b);
  bool moves = rest != 0 && (rest < 0) != (b < 0);
  return (int32_t)(moves ? rest + b : rest);
}
static __device__ __forceinline__ int32_t weft_floordiv_int32_t(int32_t a, int32_t b) {
  if (b == 0) return 0;
  if (b == -1) return (int32_t)(0 - (uint32_t)a);
  int32_t rest = (int32_t)(a % b);
  bool moves = rest != 0 && (rest < 0) != (b < 0);
  return (int32_t)(a / b - (moves ? 1 : 0));
}

extern "C" __global__ __launch_bounds__(32, 1) void weft_fn_main_0(const int32_t *__restrict__ A, int32_t *__restrict__ B) {
  const int32_t io = (int32_t)blockIdx.x;
  const int32_t ii = (int32_t)threadIdx.x;
  if (((io * 32) + ii) < 100) {
    B[(io * 32) + ii] = (int32_t)((uint32_t)A[(io * 32) + ii] * (uint32_t)A[(io * 32) + ii]);
  }
}

extern "C" __global__ __launch_bounds__(32, 1) void weft_fn_main_1(int32_t *__restrict__ C, const int32_t *__restrict__ B) {
  const int32_t i_1o = (int32_t)blockIdx.x;
  const int32_t i_1i = (int32_t)threadIdx.x;
  if (((i_1o * 32) + i_1i) < 100) {
    C[(i_1o * 32) + i_1i] = (int32_t)((uint32_t)weft_floormod_int32_t(B[(99 - (i_1o * 32)) - i_1i], 7) + (uint32_t)weft_floordiv_int32_t(B[(i_1o * 32) + i_1i], 3));
  }
}
