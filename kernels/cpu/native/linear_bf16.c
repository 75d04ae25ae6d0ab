/* Exact products with bfloat16 weights. */
#include "exact.h"

EVH_INLINE f32x16 weights(const uint8_t *codes, int32_t column, block_scales scales)
{
    (void)column, (void)scales; /* a block is one column, and has no scales */
    return (f32x16){f32x8_from_bf16(codes), f32x8_from_bf16(codes + 16)};
}

enum { COLUMN_BYTES = EVH_PANEL * 2 };
static const exact_format bf16 = {1, 1, COLUMN_BYTES, weights};

static void unpack_bf16(const evh_matrix *matrix, const uint8_t *panel, int64_t first,
                        int64_t count, float *out)
{
    unpack(matrix, panel, first, count, out, COLUMN_BYTES, bf16);
}

static void dot_bf16(const evh_matrix *matrix, const uint8_t *panel, int32_t panels, const float *x,
                     int32_t tokens, float *sums)
{
    dot_any(matrix, panel, panels, x, tokens, sums, COLUMN_BYTES, bf16);
}

const linear_kernels linear_bf16 = {unpack_bf16, dot_bf16, NULL};
