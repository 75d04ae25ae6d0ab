/* Root mean square normalisation of one vector: shared by layers' norms and heads' norms. */
#ifndef EVENHAND_NORM_H
#define EVENHAND_NORM_H

#include <math.h>

#include "vec_math.h"

/* 1 / sqrt(mean(x^2) + eps). The order of additions depends on `width` alone. */
EVH_INLINE float inverse_rms(const float *x, int64_t width, float eps)
{
    f32x8 sums[4] = {0};
    int64_t i = 0;
    for (; i + 32 <= width; i += 32)
        EVH_UNROLL
        for (int part = 0; part < 4; part++) {
            f32x8 value = f32x8_load(x + i + 8 * part);
            sums[part] = f32x8_fma(value, value, sums[part]);
        }
    float total = f32x8_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < width; i++)
        total += x[i] * x[i];
    return 1.0f / sqrtf(total / (float)width + eps);
}

#endif
