/* Products of 8-bit codes with 8-bit activations.
 *
 * The instruction that multiplies bytes wants one side unsigned, so the sign of a weight goes to the
 * activation. Two products are at most 2 * 128 * 127 in magnitude, which just fits the 16 bits that
 * their sum gets, and are widened to 32 at once.
 */
#ifdef __AVX2__
#include "int8.h"

EVH_INLINE __m256i add_products(__m256i sum, __m256i weights, __m256i four)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(four, weights));
    return _mm256_add_epi32(sum, add_pairs(pairs));
}

EVH_INLINE void products(const uint8_t *block, const int8_t *codes, int64_t stride,
                         i32x16 sums[INT8_TOKENS], const int32_t tokens, const int32_t columns)
{
    EVH_UNROLL
    for (int32_t column = 0; column < columns; column += 4, block += EVH_PANEL * 4) {
        const __m256i low = load_words(block), high = load_words(block + 32);
        EVH_UNROLL
        for (int32_t token = 0; token < tokens; token++) {
            __m256i four = splat_codes(codes + token * stride + column);
            sums[token].low = add_products(sums[token].low, low, four);
            sums[token].high = add_products(sums[token].high, high, four);
        }
    }
}

EVH_INLINE void products_16(const uint8_t *block, const int8_t *codes, int64_t stride,
                            i32x16 sums[INT8_TOKENS], const int32_t tokens)
{
    products(block, codes, stride, sums, tokens, 16);
}

EVH_INLINE void products_32(const uint8_t *block, const int8_t *codes, int64_t stride,
                            i32x16 sums[INT8_TOKENS], const int32_t tokens)
{
    products(block, codes, stride, sums, tokens, 32);
}

void dot_w8_int8(const evh_matrix *matrix, const uint8_t *panel, const evh_activations *x,
                 int64_t first, int64_t count, float *sums)
{
    if (matrix->block == 16)
        dot_tiles(matrix, panel, x, first, count, sums, 16, products_16);
    else
        dot_tiles(matrix, panel, x, first, count, sums, 32, products_32);
}
#endif
