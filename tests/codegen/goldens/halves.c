#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline uint32_t weft_as_bits(float value) { uint32_t x; memcpy(&x, &value, 4); return x; }
static inline float weft_as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint16_t weft_to_half(float value) {
  uint32_t bits = weft_as_bits(value);
  uint32_t sign = (bits >> 16) & 0x8000u, body = bits & 0x7fffffffu, result;
  if (body > 0x7f800000u) result = ((body >> 13) & 0x3ffu) | 0x7e00u;
  else if (body >= (143u << 23)) result = 0x7c00u;
  else if (body < (113u << 23)) result = weft_as_bits(weft_as_float(body) + 0.5f) - 0x3f000000u;
  else result = (body - (112u << 23) + 0xfffu + ((body >> 13) & 1u)) >> 13;
  return (uint16_t)(result | sign);
}
static inline float weft_max_float(float a, float b) { return a > b || a != a ? a : b; }
static inline float weft_from_half(uint16_t half_bits) {
  uint32_t body = ((uint32_t)half_bits & 0x7fffu) << 13;
  uint32_t sign = ((uint32_t)half_bits & 0x8000u) << 16;
  uint32_t scaled = weft_as_bits(weft_as_float(body) * 5.192296858534828e+33f);
  return weft_as_float((body >= (0x7c00u << 13) ? (body | 0x7f800000u) : scaled) | sign);
}
static inline float weft_round_half(float value) { return weft_from_half(weft_to_half(value)); }
static inline float weft_from_bfloat(uint16_t bits) { return weft_as_float((uint32_t)bits << 16); }

int32_t weft_fn_main(const int64_t *args, int64_t threads) {
  (void)threads;
  uint16_t *restrict A = (uint16_t *)(intptr_t)args[0];
  uint16_t *restrict B = (uint16_t *)(intptr_t)args[1];
  uint16_t *restrict C = (uint16_t *)(intptr_t)args[2];
  for (int32_t io = 0; io < 2; ++io) {
    for (int32_t iio = 0; iio < 16; ++iio) {
      {
        const int64_t v1 = ((int64_t)io * 128) + ((int64_t)iio * 8);
        const uint16_t v2 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(A[v1]) * 2.0f), weft_round_half(weft_from_bfloat(B[v1]))));
        const uint16_t v3 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(A[v1 + 1]) * 2.0f), weft_round_half(weft_from_bfloat(B[v1 + 1]))));
        const uint16_t v4 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(A[v1 + 2]) * 2.0f), weft_round_half(weft_from_bfloat(B[v1 + 2]))));
        const uint16_t v5 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(A[v1 + 3]) * 2.0f), weft_round_half(weft_from_bfloat(B[v1 + 3]))));
        const uint16_t v6 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(A[v1 + 4]) * 2.0f), weft_round_half(weft_from_bfloat(B[v1 + 4]))));
        const uint16_t v7 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(A[v1 + 5]) * 2.0f), weft_round_half(weft_from_bfloat(B[v1 + 5]))));
        const uint16_t v8 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(A[v1 + 6]) * 2.0f), weft_round_half(weft_from_bfloat(B[v1 + 6]))));
        const uint16_t v9 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(A[v1 + 7]) * 2.0f), weft_round_half(weft_from_bfloat(B[v1 + 7]))));
        C[v1] = v2;
        C[v1 + 1] = v3;
        C[v1 + 2] = v4;
        C[v1 + 3] = v5;
        C[v1 + 4] = v6;
        C[v1 + 5] = v7;
        C[v1 + 6] = v8;
        C[v1 + 7] = v9;
      }
    }
  }
  return 0;
}
