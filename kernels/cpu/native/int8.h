/* What the kernels for 8-bit activations share; AVX2 only, where bytes multiply in one instruction.
 *
 * Within a block of columns products are summed as integers, exactly. Sums of blocks are scaled and
 * added as fp32, in order of columns, the same for any number of tokens.
 */
#ifndef EVENHAND_INT8_H
#define EVENHAND_INT8_H

#include "linear.h"
#include "pack.h"

enum {
    ACTIVATION_BLOCK = 32,
    INT8_TOKENS = 4, /* in a tile: with 16 outputs, 8 accumulators */
};

/* A format's kernel: sums [tokens, EVH_PANEL] of one panel and tokens `first` and on. */
typedef void int8_tile(const evh_matrix *weight, const uint8_t *panel, const evh_activations *x,
                       int64_t first, float *sums, int32_t tokens);

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

/* total + sums * scale: integer sums over a block, with the scales of weights and activations. */
EVH_INLINE f32x8 add_scaled(f32x8 total, __m256i sums, f32x8 weight_scale, float activation_scale)
{
    f32x8 scale = weight_scale * f32x8_splat(activation_scale);
    return f32x8_fma(f32x8_from_i32((i32x8)sums), scale, total);
}

/* `tile` over all tokens, each size of tile its own code. */
EVH_INLINE void multiply_tiles(const evh_matrix *weight, const uint8_t *panel,
                               const evh_activations *x, int64_t first, int64_t count, float *sums,
                               int8_tile *tile)
{
    for (int64_t size; count > 0; first += size, count -= size, sums += size * EVH_PANEL) {
        size = tile_size(count, INT8_TOKENS);
        switch (size) {
        case 1: tile(weight, panel, x, first, sums, 1); break;
        case 2: tile(weight, panel, x, first, sums, 2); break;
        case 3: tile(weight, panel, x, first, sums, 3); break;
        case 4: tile(weight, panel, x, first, sums, 4); break;
        }
    }
}

#endif
