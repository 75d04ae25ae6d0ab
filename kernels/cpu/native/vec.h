/* Eight fp32 lanes, and what kernels do with them, for any compiler with GNU vector extensions.
 *
 * With AVX2 a vector is one register; elsewhere the compiler splits it into what the machine has.
 * Intrinsics appear only where the compiler would not find the instruction itself.
 */
#ifndef EVENHAND_VEC_H
#define EVENHAND_VEC_H

#include <stdint.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

typedef float f32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef int8_t i8x32 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef int8_t i8x8 __attribute__((vector_size(8)));

/* A function that must be expanded where it is called, so that its constant arguments fold. */
#define EVH_INLINE static inline __attribute__((always_inline))

/* Before a loop with few, constant rounds: keeps what it indexes in registers. */
#ifdef __clang__
#define EVH_UNROLL _Pragma("unroll")
#else
#define EVH_UNROLL _Pragma("GCC unroll 16")
#endif

EVH_INLINE f32x8 f32x8_load(const float *from)
{
    f32x8 value;
    memcpy(&value, from, sizeof value);
    return value;
}

EVH_INLINE void f32x8_store(float *to, f32x8 value)
{
    memcpy(to, &value, sizeof value);
}

EVH_INLINE f32x8 f32x8_splat(float x)
{
    return (f32x8){x, x, x, x, x, x, x, x};
}

/* a * b + c: rounded once where the machine multiplies and adds at once, else twice. */
EVH_INLINE f32x8 f32x8_fma(f32x8 a, f32x8 b, f32x8 c)
{
#ifdef __FMA__
    return (f32x8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

EVH_INLINE f32x8 f32x8_from_i32(i32x8 value)
{
    return __builtin_convertvector(value, f32x8);
}

/* Eight half-precision numbers; exact, subnormals, infinities and NaNs included. */
EVH_INLINE f32x8 f32x8_from_half(const void *from)
{
    u16x8 bits;
    memcpy(&bits, from, sizeof bits);
#ifdef __F16C__
    return (f32x8)_mm256_cvtph_ps((__m128i)bits);
#else
    u32x8 wide = __builtin_convertvector(bits, u32x8);
    u32x8 sign = (wide & 0x8000) << 16;
    u32x8 magnitude = (wide & 0x7fff) << 13;
    u32x8 not_finite = -(((wide & 0x7c00) + 0x0400) >> 15); /* a comparison would be split */
    u32x8 rebiased = (u32x8)((f32x8)magnitude * f32x8_splat(0x1p112f));
    return (f32x8)(rebiased | (not_finite & 0x7f800000) | sign);
#endif
}

/* Eight bfloat16 numbers: the upper halves of fp32 ones. */
EVH_INLINE f32x8 f32x8_from_bf16(const void *from)
{
    u16x8 bits;
    memcpy(&bits, from, sizeof bits);
    return (f32x8)(__builtin_convertvector(bits, u32x8) << 16);
}

#endif
