/* Products with 8-bit activations, for every format of codes; AVX2 only, where bytes multiply in one
 * instruction.
 *
 * Within a block of columns products are summed as integers, exactly. The sums of blocks are scaled
 * and added as fp32, in order of columns, the same for any number of tokens. What minima add is a
 * minimum times the sum of the block's activations, which came with them.
 */
#ifndef EVENHAND_INT8_H
#define EVENHAND_INT8_H

#include "linear.h"
#include "pack.h"

enum {
    ACTIVATION_BLOCK = 32,
    INT8_TOKENS = 4, /* in a tile: 8 accumulators of the 16 vector registers */
};

/* A 32-bit sum for each output of a panel. */
typedef struct {
    __m256i low;
    __m256i high;
} i32x16;

/* What a format brings: the sums over one block of weights with `tokens` rows of codes, `stride`
 * apart. Expanded where it is used, for each constant number of tokens. */
typedef void block_products(const uint8_t *block, const int8_t *codes, int64_t stride,
                            i32x16 sums[INT8_TOKENS], const int32_t tokens);

EVH_INLINE __m256i load_words(const uint8_t *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}

/* The codes of four columns of a token, for each of eight outputs. */
EVH_INLINE __m256i splat_codes(const int8_t *codes)
{
    int32_t four;
    memcpy(&four, codes, sizeof four);
    return _mm256_set1_epi32(four);
}

/* Sixteen sums of 16 bits to eight of 32. */
EVH_INLINE __m256i add_pairs(__m256i sums)
{
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
}

/* total + sums * scale of the weights * scale of the activations. */
EVH_INLINE f32x16 add_scaled(f32x16 total, i32x16 sums, f32x16 weight_scale, f32x8 activation_scale)
{
    return (f32x16){
        f32x8_fma(f32x8_from_i32((i32x8)sums.low), weight_scale.low * activation_scale, total.low),
        f32x8_fma(f32x8_from_i32((i32x8)sums.high), weight_scale.high * activation_scale,
                  total.high),
    };
}

/* The sum of 16 activations: half of a block, whose sum they came with is of no use. */
EVH_INLINE float half_block_sum(const int8_t *codes, float scale)
{
    __m128i offset = _mm_xor_si128(_mm_loadu_si128((const __m128i *)codes), _mm_set1_epi8(-128));
    __m128i sums = _mm_sad_epu8(offset, _mm_setzero_si128()); /* of code + 128, eight and eight */
    return scale * (float)(_mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128);
}

/* Products of a panel with `tokens` tokens: sums [tokens, EVH_PANEL]. */
EVH_INLINE void dot_tile(const evh_matrix *matrix, const uint8_t *panel, const evh_activations *x,
                         int64_t first, float *sums, const int32_t block, block_products *products,
                         const int32_t tokens)
{
    const int64_t columns = x->columns, activation_blocks = columns / ACTIVATION_BLOCK;
    const int64_t bytes = block_bytes(matrix);
    f32x16 totals[INT8_TOKENS] = {0};
    for (int64_t column = 0; column < columns; column += block, panel += bytes) {
        const int8_t *codes = x->codes + first * columns + column;
        i32x16 block_sums[INT8_TOKENS] = {0};
        products(panel, codes, columns, block_sums, tokens);
        const block_scales scales = load_scales(matrix, panel);
        EVH_UNROLL
        for (int32_t token = 0; token < tokens; token++) {
            const int64_t at = (first + token) * activation_blocks + column / ACTIVATION_BLOCK;
            const float scale = x->scales[at];
            f32x16 total =
                add_scaled(totals[token], block_sums[token], scales.scale, f32x8_splat(scale));
            if (block == ACTIVATION_BLOCK) {
                total = f32x16_fma(scales.minimum, f32x8_splat(x->sums[at]), total);
            } else if (matrix->has_minimum) {
                float sum = half_block_sum(codes + token * columns, scale);
                total = f32x16_fma(scales.minimum, f32x8_splat(sum), total);
            }
            totals[token] = total;
        }
    }
    for (int32_t token = 0; token < tokens; token++)
        f32x16_store(sums + token * EVH_PANEL, totals[token]);
}

/* The same for any number of tokens, each size of tile its own code. */
EVH_INLINE void dot_tiles(const evh_matrix *matrix, const uint8_t *panel, const evh_activations *x,
                          int64_t first, int64_t count, float *sums, const int32_t block,
                          block_products *products)
{
    for (int64_t size; count > 0; first += size, count -= size, sums += size * EVH_PANEL) {
        size = tile_size(count, INT8_TOKENS);
        switch (size) {
        case 1: dot_tile(matrix, panel, x, first, sums, block, products, 1); break;
        case 2: dot_tile(matrix, panel, x, first, sums, block, products, 2); break;
        case 3: dot_tile(matrix, panel, x, first, sums, block, products, 3); break;
        case 4: dot_tile(matrix, panel, x, first, sums, block, products, 4); break;
        }
    }
}

#endif
