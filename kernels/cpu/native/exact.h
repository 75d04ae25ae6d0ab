/* The exact kernels, written once for every format: weights become fp32, products are accumulated
 * in order of columns.
 *
 * A format is told by a `const exact_format`. All functions here are expanded in the file of the
 * format, where its numbers and its function are constants: nothing is called through a pointer.
 *
 * Each (token, output) has one accumulator, which starts at zero and takes weight * value of column
 * 0, 1, 2 and so on, always by f32x8_fma. So the result depends neither on how many tokens there
 * are nor on which kernel computed it.
 */
#ifndef EVENHAND_EXACT_H
#define EVENHAND_EXACT_H

#include "linear.h"
#include "pack.h"

typedef struct {
    int32_t columns; /* in a block */
    int32_t group;   /* columns that are decoded together: the loop over them is unrolled */
    /* The weights of one column of a block for eight outputs, the panel's first or last eight. */
    f32x8 (*weights)(const uint8_t *block, int32_t column, int32_t half, block_scales scales);
} exact_format;

/* Columns first up to first + count of a panel, as fp32 [count, EVH_PANEL]; whole blocks. */
EVH_INLINE void unpack(const evh_matrix *matrix, const uint8_t *panel, int64_t first, int64_t count,
                       float *restrict out, const int64_t bytes, const exact_format format)
{
    const uint8_t *block = panel + first / format.columns * bytes;
    for (int64_t at = 0; at < count; at += format.columns, block += bytes) {
        const block_scales low = load_scales(matrix, block, 0), high = load_scales(matrix, block, 1);
        for (int32_t group = 0; group < format.columns; group += format.group)
            EVH_UNROLL
            for (int32_t i = 0; i < format.group; i++, out += EVH_PANEL) {
                f32x8_store(out, format.weights(block, group + i, 0, low));
                f32x8_store(out + 8, format.weights(block, group + i, 1, high));
            }
    }
}

/* Products of one or two panels with few tokens, x [tokens, matrix->columns], straight from the
 * packed weights: sums [panels, tokens, EVH_PANEL]. */
EVH_INLINE void dot(const evh_matrix *matrix, const uint8_t *panel, const float *x, float *sums,
                    const int64_t bytes, const exact_format format, const int32_t tokens,
                    const int32_t panels)
{
    f32x8 total[4][4] = {0}; /* [half of a panel][token] */
    const int64_t columns = matrix->columns;
    for (int64_t first = 0; first < columns; first += format.columns, panel += bytes) {
        block_scales scales[4];
        EVH_UNROLL
        for (int32_t half = 0; half < 2 * panels; half++)
            scales[half] =
                load_scales(matrix, panel + half / 2 * matrix->panel_bytes, half % 2);
        for (int32_t group = 0; group < format.columns; group += format.group)
            EVH_UNROLL
            for (int32_t i = 0; i < format.group; i++)
                EVH_UNROLL
                for (int32_t half = 0; half < 2 * panels; half++) {
                    const uint8_t *block = panel + half / 2 * matrix->panel_bytes;
                    f32x8 weights = format.weights(block, group + i, half % 2, scales[half]);
                    EVH_UNROLL
                    for (int32_t token = 0; token < tokens; token++) {
                        float value = x[token * columns + first + group + i];
                        total[half][token] =
                            f32x8_fma(weights, f32x8_splat(value), total[half][token]);
                    }
                }
    }
    for (int32_t half = 0; half < 2 * panels; half++)
        for (int32_t token = 0; token < tokens; token++)
            f32x8_store(sums + (half / 2 * tokens + token) * EVH_PANEL + half % 2 * 8,
                        total[half][token]);
}

/* dot() for any number of tokens up to FEW_TOKENS, each its own code. */
EVH_INLINE void dot_any(const evh_matrix *matrix, const uint8_t *panel, int32_t panels,
                        const float *x, int32_t tokens, float *sums, const int64_t bytes,
                        const exact_format format)
{
    if (panels == 2 && tokens == 1)
        dot(matrix, panel, x, sums, bytes, format, 1, 2);
    else if (panels == 2 && tokens == 2)
        dot(matrix, panel, x, sums, bytes, format, 2, 2);
    else if (panels == 1 && tokens == 1)
        dot(matrix, panel, x, sums, bytes, format, 1, 1);
    else if (panels == 1 && tokens == 2)
        dot(matrix, panel, x, sums, bytes, format, 2, 1);
    else if (panels == 1 && tokens == 3)
        dot(matrix, panel, x, sums, bytes, format, 3, 1);
    else if (panels == 1 && tokens == 4)
        dot(matrix, panel, x, sums, bytes, format, 4, 1);
}

#endif
