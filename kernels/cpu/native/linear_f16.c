/* Exact products with half-precision weights. */
#include "exact.h"

EVH_INLINE f32x8 weights(const uint8_t *block, int32_t column, int32_t half, block_scales scales)
{
    (void)column, (void)scales; /* a block is one column, and has no scales */
    return f32x8_from_half(block + half * 16);
}

static const exact_format f16 = {1, 1, weights};
enum { COLUMN_BYTES = EVH_PANEL * 2 };

static void unpack_f16(const evh_matrix *matrix, const uint8_t *panel, int64_t first,
                       int64_t count, float *out)
{
    unpack(matrix, panel, first, count, out, COLUMN_BYTES, f16);
}

static void dot_f16(const evh_matrix *matrix, const uint8_t *panel, int32_t panels, const float *x,
                    int32_t tokens, float *sums)
{
    dot_any(matrix, panel, panels, x, tokens, sums, COLUMN_BYTES, f16);
}

const linear_kernels linear_f16 = {unpack_f16, dot_f16, NULL};
