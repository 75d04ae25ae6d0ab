/* Products of 4-bit codes with 8-bit activations.
 *
 * An instruction multiplies 32 bytes by 32 and adds neighbours, as 16 bits. Over a block of 32
 * columns a lane takes 16 products of at most 15 * 127 in magnitude: that fits.
 */
#ifdef __AVX2__
#include "int8.h"

EVH_INLINE void tile(const evh_matrix *weight, const uint8_t *panel, const evh_activations *x,
                     int64_t first, float *sums, const int32_t tokens)
{
    const int64_t columns = x->columns, blocks = columns / W4_BLOCK, bytes = block_bytes(weight);
    const __m256i nibble = _mm256_set1_epi8(15);
    f32x8 total[INT8_TOKENS][2] = {0};
    for (int64_t block = 0; block < blocks; block++, panel += bytes) {
        const int8_t *codes = x->codes + first * columns + block * W4_BLOCK;
        __m256i products[INT8_TOKENS][2];
        EVH_UNROLL
        for (int32_t token = 0; token < tokens; token++)
            products[token][0] = products[token][1] = _mm256_setzero_si256();
        EVH_UNROLL
        for (int32_t column = 0; column < W4_BLOCK; column += 8) {
            const uint8_t *words = panel + column / 8 * EVH_PANEL * 4;
            EVH_UNROLL
            for (int32_t part = 0; part < 2; part++) {
                __m256i low = load_words(words), high = load_words(words + 32);
                low = _mm256_and_si256(part ? _mm256_srli_epi16(low, 4) : low, nibble);
                high = _mm256_and_si256(part ? _mm256_srli_epi16(high, 4) : high, nibble);
                EVH_UNROLL
                for (int32_t token = 0; token < tokens; token++) {
                    __m256i four = splat_codes(codes + token * columns + column + part * 4);
                    products[token][0] = _mm256_add_epi16(products[token][0],
                                                          _mm256_maddubs_epi16(low, four));
                    products[token][1] = _mm256_add_epi16(products[token][1],
                                                          _mm256_maddubs_epi16(high, four));
                }
            }
        }
        EVH_UNROLL
        for (int32_t half = 0; half < 2; half++) {
            const block_scales scales = load_scales(weight, panel, half);
            EVH_UNROLL
            for (int32_t token = 0; token < tokens; token++) {
                int64_t at = (first + token) * blocks + block;
                f32x8 sum = add_scaled(total[token][half], add_pairs(products[token][half]),
                                       scales.scale, x->scales[at]);
                total[token][half] = f32x8_fma(scales.minimum, f32x8_splat(x->sums[at]), sum);
            }
        }
    }
    for (int32_t token = 0; token < tokens; token++)
        for (int32_t half = 0; half < 2; half++)
            f32x8_store(sums + token * EVH_PANEL + half * 8, total[token][half]);
}

void dot_w4_int8(const evh_matrix *weight, const uint8_t *panel, const evh_activations *x,
                      int64_t first, int64_t count, float *sums)
{
    multiply_tiles(weight, panel, x, first, count, sums, tile);
}
#endif
