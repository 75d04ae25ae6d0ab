/* What kernels compute of eight numbers at once beyond the compiler's own operators. */
#ifndef EVENHAND_VEC_MATH_H
#define EVENHAND_VEC_MATH_H

#include "vec.h"

/* The first `count` < 8 lanes from memory, zeros in the others. */
EVH_INLINE f32x8 f32x8_load_first(const float *from, int64_t count)
{
    f32x8 value = {0};
    memcpy(&value, from, (size_t)count * sizeof *from);
    return value;
}

EVH_INLINE void f32x8_store_first(float *to, f32x8 value, int64_t count)
{
    memcpy(to, &value, (size_t)count * sizeof *to);
}

/* The larger of each pair; b where either is NaN. */
EVH_INLINE f32x8 f32x8_max(f32x8 a, f32x8 b)
{
#ifdef __AVX2__
    return (f32x8)_mm256_max_ps((__m256)a, (__m256)b);
#else
    i32x8 larger = a > b;
    return (f32x8)((larger & (i32x8)a) | (~larger & (i32x8)b));
#endif
}

/* The smaller of each pair; b where either is NaN. */
EVH_INLINE f32x8 f32x8_min(f32x8 a, f32x8 b)
{
#ifdef __AVX2__
    return (f32x8)_mm256_min_ps((__m256)a, (__m256)b);
#else
    i32x8 smaller = a < b;
    return (f32x8)((smaller & (i32x8)a) | (~smaller & (i32x8)b));
#endif
}

/* The lanes' sum, always in the same order. */
EVH_INLINE float f32x8_sum(f32x8 x)
{
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

EVH_INLINE float f32x8_largest(f32x8 x)
{
    float largest = x[0];
    EVH_UNROLL
    for (int lane = 1; lane < 8; lane++)
        largest = x[lane] > largest ? x[lane] : largest;
    return largest;
}

/* e^x within 2 units in the last place for -87 <= x <= 88; 0 below, e^88 above, NaN of NaN.
 *
 * x = n ln 2 + f with n whole and |f| <= ln 2 / 2, and e^x = 2^n e^f. Adding 1.5 * 2^23 rounds to a
 * whole number and leaves it in the low bits; ln 2 is split so that n times its first part is
 * exact; e^f is the polynomial of Cephes' expf. */
EVH_INLINE f32x8 f32x8_exp(f32x8 x)
{
    const f32x8 lowest = f32x8_splat(-87.0f), rounder = f32x8_splat(0x1.8p23f);
    f32x8 clamped = f32x8_max(lowest, f32x8_min(f32x8_splat(88.0f), x));
    f32x8 rounded = f32x8_fma(clamped, f32x8_splat(1.44269504f), rounder);
    f32x8 n = rounded - rounder;
    f32x8 f = f32x8_fma(n, f32x8_splat(-0.693359375f), clamped);
    f = f32x8_fma(n, f32x8_splat(2.12194440e-4f), f);
    f32x8 p = f32x8_splat(1.9875691500e-4f);
    p = f32x8_fma(p, f, f32x8_splat(1.3981999507e-3f));
    p = f32x8_fma(p, f, f32x8_splat(8.3334519073e-3f));
    p = f32x8_fma(p, f, f32x8_splat(4.1665795894e-2f));
    p = f32x8_fma(p, f, f32x8_splat(1.6666665459e-1f));
    p = f32x8_fma(p, f, f32x8_splat(5.0000001201e-1f));
    p = f32x8_fma(p, f * f, f) + 1.0f;
    f32x8 power_of_two = (f32x8)(((u32x8)rounded + 127) << 23);
    return (f32x8)((i32x8)(p * power_of_two) & ~(i32x8)(x < lowest));
}

#endif
