/* Exact products with 8-bit codes. */
#include "exact.h"

EVH_INLINE f32x8 weights(const uint8_t *block, int32_t column, int32_t half, block_scales scales)
{
    i32x8 words;
    memcpy(&words, block + column / 4 * EVH_PANEL * 4 + half * 32, sizeof words);
    f32x8 codes = f32x8_from_i32(words << (24 - column % 4 * 8) >> 24);
    return f32x8_fma(codes, scales.scale, scales.minimum);
}

static const exact_format w8_16 = {16, 4, weights};
static const exact_format w8_32 = {32, 4, weights};

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
