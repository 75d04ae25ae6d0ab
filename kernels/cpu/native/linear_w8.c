/* Exact products with 8-bit codes. */
#include "exact.h"

enum { GROUP = 4, GROUP_BYTES = EVH_PANEL * 4 }; /* a word per output */

EVH_INLINE f32x8 eight_weights(const uint8_t *codes, int32_t column, f32x8 scale, f32x8 minimum)
{
    i32x8 words;
    memcpy(&words, codes, sizeof words);
    return f32x8_fma(f32x8_from_i32(words << (24 - column * 8) >> 24), scale, minimum);
}

EVH_INLINE f32x16 weights(const uint8_t *codes, int32_t column, block_scales scales)
{
    return (f32x16){
        eight_weights(codes, column, scales.scale.low, scales.minimum.low),
        eight_weights(codes + 32, column, scales.scale.high, scales.minimum.high),
    };
}

static const exact_format w8_16 = {16, GROUP, GROUP_BYTES, weights};
static const exact_format w8_32 = {32, GROUP, GROUP_BYTES, weights};

static void unpack_w8(const evh_matrix *matrix, const uint8_t *panel, int64_t first, int64_t count,
                      float *out)
{
    if (matrix->block == 16)
        unpack(matrix, panel, first, count, out, block_bytes(matrix), w8_16);
    else
        unpack(matrix, panel, first, count, out, block_bytes(matrix), w8_32);
}

static void dot_w8(const evh_matrix *matrix, const uint8_t *panel, int32_t panels, const float *x,
                   int32_t tokens, float *sums)
{
    if (matrix->block == 16)
        dot_any(matrix, panel, panels, x, tokens, sums, block_bytes(matrix), w8_16);
    else
        dot_any(matrix, panel, panels, x, tokens, sums, block_bytes(matrix), w8_32);
}

const linear_kernels linear_w8 = {unpack_w8, dot_w8, dot_w8_int8};
