/* Exact products with 4-bit codes. */
#include "exact.h"

EVH_INLINE f32x8 weights(const uint8_t *block, int32_t column, int32_t half, block_scales scales)
{
    u32x8 words;
    memcpy(&words, block + column / 8 * EVH_PANEL * 4 + half * 32, sizeof words);
    int32_t within = column % 8;
    int32_t shift = within < 4 ? within * 8 : within * 8 - 28;
    f32x8 codes = f32x8_from_i32((i32x8)(words >> shift & 15));
    return f32x8_fma(codes, scales.scale, scales.minimum);
}

static const exact_format w4 = {W4_BLOCK, 8, weights};

static void unpack_w4(const evh_matrix *matrix, const uint8_t *panel, int64_t first, int64_t count,
                      float *out)
{
    unpack(matrix, panel, first, count, out, block_bytes(matrix), w4);
}

static void dot_w4(const evh_matrix *matrix, const uint8_t *panel, int32_t panels, const float *x,
                   int32_t tokens, float *sums)
{
    dot_any(matrix, panel, panels, x, tokens, sums, block_bytes(matrix), w4);
}

const linear_kernels linear_w4 = {unpack_w4, dot_w4, dot_w4_int8};
