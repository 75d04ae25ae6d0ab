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
typedef uint16_t u16x8 __attribute__((vector_size(16)));

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

/* Sixteen lanes: a number for each output of a panel. */
typedef struct {
    f32x8 low;
    f32x8 high;
} f32x16;

EVH_INLINE f32x16 f32x16_load(const float *from)
{
    return (f32x16){f32x8_load(from), f32x8_load(from + 8)};
}

EVH_INLINE void f32x16_store(float *to, f32x16 value)
{
    f32x8_store(to, value.low);
    f32x8_store(to + 8, value.high);
}

EVH_INLINE f32x16 f32x16_splat(float x)
{
    return (f32x16){f32x8_splat(x), f32x8_splat(x)};
}

EVH_INLINE f32x16 f32x16_fma(f32x16 a, f32x8 b, f32x16 c)
{
    return (f32x16){f32x8_fma(a.low, b, c.low), f32x8_fma(a.high, b, c.high)};
}

EVH_INLINE f32x8 f32x8_from_i32(i32x8 value)
{
    return __builtin_convertvector(value, f32x8);
}

/* Byte `n` of every lane, 0 the lowest, without a sign. */
EVH_INLINE i32x8 i32x8_byte(u32x8 lanes, int32_t n)
{
#ifdef __AVX2__
    /* One shuffle instead of a shift and a mask; an index with its top bit set gives zero. */
    const int32_t zeros = (int32_t)0x80808000 + n;
    const __m256i at = _mm256_add_epi32(
        _mm256_set1_epi32(zeros), _mm256_set_epi32(12, 8, 4, 0, 12, 8, 4, 0));
    if (n < 3)
        return (i32x8)_mm256_shuffle_epi8((__m256i)lanes, at);
#endif
    lanes >>= 8 * n;
    return (i32x8)(n < 3 ? lanes & 255 : lanes);
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

/* Ask for memory that will be read soon, into the second level cache; any address will do. */
EVH_INLINE void prefetch(const uint8_t *from, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(from + at, 0, 2);
}

#endif
