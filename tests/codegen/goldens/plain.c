#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline float weft_max_float(float a, float b) { return a > b || a != a ? a : b; }

int32_t weft_fn_main(const int64_t *args, int64_t threads) {
  (void)threads;
  float *restrict A = (float *)(intptr_t)args[0];
  uint8_t *restrict D = (uint8_t *)(intptr_t)args[1];
  float *B = (float *)malloc((size_t)(6400) * sizeof(float) + 1);
  if (!B) { return 1; }
  float C[100];
  for (int32_t i = 0; i < 64; ++i) {
    for (int32_t j = 0; j < 100; ++j) {
      B[((int64_t)i * 100) + (int64_t)j] = sqrtf(A[((int64_t)i * 100) + (int64_t)j]);
    }
  }
  for (int32_t j_1 = 0; j_1 < 100; ++j_1) {
    C[j_1] = -INFINITY;
    for (int32_t k = 0; k < 64; ++k) {
      C[j_1] = weft_max_float(C[j_1], B[((int64_t)j_1 - ((int64_t)k * 100)) + 6300]);
    }
  }
  for (int32_t j_2 = 0; j_2 < 100; ++j_2) {
    D[j_2] = (1.0f < C[j_2]) ? 1 : 0;
  }
  free(B);
  return 0;
}
