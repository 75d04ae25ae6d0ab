/* Products of 4-bit codes with 8-bit activations.
 *
 * One instruction multiplies 32 bytes by 32 and adds neighbours, as 16 bits. Over a block of 32
 * columns a lane takes 16 products of at most 15 * 127 in magnitude, which fits.
 */
#ifdef __AVX2__
#include "int8.h"

EVH_INLINE void products(const uint8_t *block, const int8_t *codes, int64_t stride,
                         i32x16 sums[INT8_TOKENS], const int32_t tokens)
{
    const __m256i mask = _mm256_set1_epi8(15);
    EVH_UNROLL
    for (int32_t column = 0; column < W4_BLOCK; column += 4) {
        const uint8_t *words = block + column / 8 * EVH_PANEL * 4;
        const int32_t shift = column % 8; /* 4 for the high halves of the bytes */
        __m256i low = _mm256_and_si256(_mm256_srli_epi16(load_words(words), shift), mask);
        __m256i high = _mm256_and_si256(_mm256_srli_epi16(load_words(words + 32), shift), mask);
        EVH_UNROLL
        for (int32_t token = 0; token < tokens; token++) {
            __m256i four = splat_codes(codes + token * stride + column);
            i32x16 *sum = &sums[token]; /* of 16 bits, until the end */
            sum->low = _mm256_add_epi16(sum->low, _mm256_maddubs_epi16(low, four));
            sum->high = _mm256_add_epi16(sum->high, _mm256_maddubs_epi16(high, four));
        }
    }
    EVH_UNROLL
    for (int32_t token = 0; token < tokens; token++)
        sums[token] = (i32x16){add_pairs(sums[token].low), add_pairs(sums[token].high)};
}

void dot_w4_int8(const evh_matrix *matrix, const uint8_t *panel, const evh_activations *x,
                 int64_t first, int64_t count, float *sums)
{
    dot_tiles(matrix, panel, x, first, count, sums, W4_BLOCK, products);
}
#endif
