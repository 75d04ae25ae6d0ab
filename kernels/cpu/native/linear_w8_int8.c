/* Products of 8-bit codes with 8-bit activations.
 *
 * The instruction for products of bytes wants one side unsigned, so the sign of a weight goes to the
 * activation. Two products add up to at most 2 * 128 * 127 in magnitude, which just fits 16 bits,
 * and are widened to 32 at once.
 */
#ifdef __AVX2__
#include "int8.h"

/* Sums over one block, for each token and half of the panel. */
EVH_INLINE void block_products(const uint8_t *words, const int8_t *codes, int64_t columns,
                               __m256i products[INT8_TOKENS][2], const int32_t block,
                               const int32_t tokens)
{
    EVH_UNROLL
    for (int32_t token = 0; token < tokens; token++)
        products[token][0] = products[token][1] = _mm256_setzero_si256();
    EVH_UNROLL
    for (int32_t column = 0; column < block; column += 4, words += EVH_PANEL * 4) {
        const __m256i low = load_words(words), high = load_words(words + 32);
        const __m256i low_size = _mm256_abs_epi8(low), high_size = _mm256_abs_epi8(high);
        EVH_UNROLL
        for (int32_t token = 0; token < tokens; token++) {
            __m256i four = splat_codes(codes + token * columns + column);
            __m256i low_sums = _mm256_maddubs_epi16(low_size, _mm256_sign_epi8(four, low));
            __m256i high_sums = _mm256_maddubs_epi16(high_size, _mm256_sign_epi8(four, high));
            products[token][0] = _mm256_add_epi32(products[token][0], add_pairs(low_sums));
            products[token][1] = _mm256_add_epi32(products[token][1], add_pairs(high_sums));
        }
    }
}

EVH_INLINE void tile(const evh_matrix *weight, const uint8_t *panel, const evh_activations *x,
                     int64_t first, float *sums, const int32_t tokens, const int32_t block)
{
    const int64_t columns = x->columns, activation_blocks = columns / ACTIVATION_BLOCK;
    const int64_t bytes = block_bytes(weight);
    f32x8 total[INT8_TOKENS][2] = {0};
    for (int64_t column = 0; column < columns; column += block, panel += bytes) {
        __m256i products[INT8_TOKENS][2];
        block_products(panel, x->codes + first * columns + column, columns, products, block, tokens);
        EVH_UNROLL
        for (int32_t half = 0; half < 2; half++) {
            const block_scales scales = load_scales(weight, panel, half);
            EVH_UNROLL
            for (int32_t token = 0; token < tokens; token++) {
                int64_t at = (first + token) * activation_blocks + column / ACTIVATION_BLOCK;
                f32x8 sum = add_scaled(total[token][half], products[token][half], scales.scale,
                                       x->scales[at]);
                if (block == ACTIVATION_BLOCK)
                    sum = f32x8_fma(scales.minimum, f32x8_splat(x->sums[at]), sum);
                total[token][half] = sum;
            }
        }
    }
    for (int32_t token = 0; token < tokens; token++)
        for (int32_t half = 0; half < 2; half++)
            f32x8_store(sums + token * EVH_PANEL + half * 8, total[token][half]);
}

EVH_INLINE void tile_16(const evh_matrix *weight, const uint8_t *panel, const evh_activations *x,
                        int64_t first, float *sums, const int32_t tokens)
{
    tile(weight, panel, x, first, sums, tokens, 16);
}

EVH_INLINE void tile_32(const evh_matrix *weight, const uint8_t *panel, const evh_activations *x,
                        int64_t first, float *sums, const int32_t tokens)
{
    tile(weight, panel, x, first, sums, tokens, 32);
}

void dot_w8_int8(const evh_matrix *weight, const uint8_t *panel, const evh_activations *x,
                      int64_t first, int64_t count, float *sums)
{
    if (weight->block == 16)
        multiply_tiles(weight, panel, x, first, count, sums, tile_16);
    else
        multiply_tiles(weight, panel, x, first, count, sums, tile_32);
}
#endif
