/* Exact products with fp32 weights. */
#include "exact.h"

EVH_INLINE f32x16 weights(const uint8_t *codes, int32_t column, block_scales scales)
{
    (void)column, (void)scales; /* a block is one column, and has no scales */
    return f32x16_load((const float *)codes);
}

enum { COLUMN_BYTES = EVH_PANEL * 4 };
static const exact_format f32 = {1, 1, COLUMN_BYTES, weights};

static void unpack_f32(const evh_matrix *matrix, const uint8_t *panel, int64_t first, int64_t count,
                       float *out)
{
    unpack(matrix, panel, first, count, out, COLUMN_BYTES, f32);
}

static void dot_f32(const evh_matrix *matrix, const uint8_t *panel, int32_t panels, const float *x,
                    int32_t tokens, float *sums)
{
    dot_any(matrix, panel, panels, x, tokens, sums, COLUMN_BYTES, f32);
}

const linear_kernels linear_f32 = {unpack_f32, dot_f32, NULL};
