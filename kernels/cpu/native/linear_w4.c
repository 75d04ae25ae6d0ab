/* Exact products with 4-bit codes. */
#include "exact.h"

enum { GROUP = 8, GROUP_BYTES = EVH_PANEL * 4 }; /* a word per output */

EVH_INLINE f32x8 eight_weights(const uint8_t *codes, int32_t column, f32x8 scale, f32x8 minimum)
{
    u32x8 words;
    memcpy(&words, codes, sizeof words);
    words = (column < 4 ? words : words >> 4) & 0x0f0f0f0f;
    return f32x8_fma(f32x8_from_i32(i32x8_byte(words, column % 4)), scale, minimum);
}

EVH_INLINE f32x16 weights(const uint8_t *codes, int32_t column, block_scales scales)
{
    return (f32x16){
        eight_weights(codes, column, scales.scale.low, scales.minimum.low),
        eight_weights(codes + 32, column, scales.scale.high, scales.minimum.high),
    };
}

static const exact_format w4 = {W4_BLOCK, GROUP, GROUP_BYTES, weights};

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
