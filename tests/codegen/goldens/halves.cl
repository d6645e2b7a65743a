// weft_fn_main_0: grid (2, 1, 1), block (16, 1, 1), 0 bytes shared, A, B, C
typedef char int8_t; typedef short int16_t; typedef int int32_t; typedef long int64_t;
typedef uchar uint8_t; typedef ushort uint16_t; typedef uint uint32_t; typedef ulong uint64_t;

static inline uint32_t weft_as_bits(float value) { return as_uint(value); }
static inline float weft_as_float(uint32_t bits) { return as_float(bits); }
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

__kernel __attribute__((reqd_work_group_size(16, 1, 1))) void weft_fn_main_0(__global const uint16_t *restrict A, __global const uint16_t *restrict B, __global uint16_t *restrict C) {
  const int32_t io = (int32_t)get_group_id(0);
  const int32_t iio = (int32_t)get_local_id(0);
  {
    const int32_t v1 = (io * 128) + (iio * 8);
    const ushort8 v2 = vload8(0, A + v1);
    const ushort8 v3 = vload8(0, B + v1);
    const uint16_t v4 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.s0) * 2.0f), weft_round_half(weft_from_bfloat(v3.s0))));
    const uint16_t v5 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.s1) * 2.0f), weft_round_half(weft_from_bfloat(v3.s1))));
    const uint16_t v6 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.s2) * 2.0f), weft_round_half(weft_from_bfloat(v3.s2))));
    const uint16_t v7 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.s3) * 2.0f), weft_round_half(weft_from_bfloat(v3.s3))));
    const uint16_t v8 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.s4) * 2.0f), weft_round_half(weft_from_bfloat(v3.s4))));
    const uint16_t v9 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.s5) * 2.0f), weft_round_half(weft_from_bfloat(v3.s5))));
    const uint16_t v10 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.s6) * 2.0f), weft_round_half(weft_from_bfloat(v3.s6))));
    const uint16_t v11 = weft_to_half(weft_max_float(weft_round_half(weft_from_half(v2.s7) * 2.0f), weft_round_half(weft_from_bfloat(v3.s7))));
    vstore8((ushort8)(v4, v5, v6, v7, v8, v9, v10, v11), 0, C + v1);
  }
}
