/* The exact kernels, written once for every format: weights become fp32, and products with fp32
 * activations are accumulated in order of columns.
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
    int32_t columns;     /* of a block: they share scales */
    int32_t group;       /* columns that are decoded from the same bytes */
    int32_t group_bytes; /* of all outputs of the panel */
    /* The weights of one column of a group. */
    f32x16 (*weights)(const uint8_t *codes, int32_t column, block_scales scales);
} exact_format;

/* Columns `first` up to `first + count` of a panel, whole blocks, as fp32 [count, EVH_PANEL]. */
EVH_INLINE void unpack(const evh_matrix *matrix, const uint8_t *panel, int64_t first, int64_t count,
                       float *restrict out, const int64_t bytes, const exact_format format)
{
    const uint8_t *block = panel + first / format.columns * bytes;
    for (const float *past = out + count * EVH_PANEL; out < past; block += bytes) {
        const block_scales scales = load_scales(matrix, block);
        prefetch(block + matrix->panel_bytes, bytes);
        const uint8_t *codes = block;
        for (int32_t column = 0; column < format.columns; column += format.group) {
            EVH_UNROLL
            for (int32_t i = 0; i < format.group; i++, out += EVH_PANEL)
                f32x16_store(out, format.weights(codes, i, scales));
            codes += format.group_bytes;
        }
    }
}

/* totals [panels, tokens] += products of one column: `codes` is its group in the first panel,
 * `values` are those of the group's columns, `stride` apart from token to token. */
EVH_INLINE void add_column(f32x16 totals[FEW_PANELS][FEW_TOKENS], const uint8_t *codes,
                           int64_t panel_bytes, int32_t column,
                           const block_scales scales[FEW_PANELS], const float *values,
                           int64_t stride, const exact_format format, const int32_t tokens,
                           const int32_t panels)
{
    EVH_UNROLL
    for (int32_t panel = 0; panel < panels; panel++) {
        f32x16 weights = format.weights(codes + panel * panel_bytes, column, scales[panel]);
        EVH_UNROLL
        for (int32_t token = 0; token < tokens; token++)
            totals[panel][token] = f32x16_fma(weights, f32x8_splat(values[token * stride + column]),
                                              totals[panel][token]);
    }
}

/* Products of one or two panels with few tokens x [tokens, columns], straight from the packed
 * weights: sums [panels, tokens, EVH_PANEL]. Two panels make enough sums that the processor need
 * not wait for one addition to begin the next. */
EVH_INLINE void dot(const evh_matrix *matrix, const uint8_t *panel, const float *x, float *sums,
                    const int64_t bytes, const exact_format format, const int32_t tokens,
                    const int32_t panels)
{
    const int64_t columns = matrix->columns, panel_bytes = matrix->panel_bytes;
    f32x16 totals[FEW_PANELS][FEW_TOKENS] = {0};
    for (const float *past = x + columns; x < past; panel += bytes) {
        block_scales scales[FEW_PANELS];
        EVH_UNROLL
        for (int32_t i = 0; i < panels; i++) {
            scales[i] = load_scales(matrix, panel + i * panel_bytes);
            prefetch(panel + (panels + i) * panel_bytes, bytes);
        }
        const uint8_t *codes = panel;
        for (int32_t column = 0; column < format.columns; column += format.group) {
            EVH_UNROLL
            for (int32_t i = 0; i < format.group; i++)
                add_column(totals, codes, panel_bytes, i, scales, x, columns, format, tokens,
                           panels);
            codes += format.group_bytes;
            x += format.group;
        }
    }
    for (int32_t i = 0; i < panels; i++)
        for (int32_t token = 0; token < tokens; token++)
            f32x16_store(sums + (i * tokens + token) * EVH_PANEL, totals[i][token]);
}

/* dot() for any few tokens and panels, each pair of numbers its own code. */
EVH_INLINE void dot_any(const evh_matrix *matrix, const uint8_t *panel, int32_t panels,
                        const float *x, int32_t tokens, float *sums, const int64_t bytes,
                        const exact_format format)
{
    switch (tokens * FEW_PANELS + panels) {
    case 1 * FEW_PANELS + 1: dot(matrix, panel, x, sums, bytes, format, 1, 1); break;
    case 1 * FEW_PANELS + 2: dot(matrix, panel, x, sums, bytes, format, 1, 2); break;
    case 2 * FEW_PANELS + 1: dot(matrix, panel, x, sums, bytes, format, 2, 1); break;
    case 2 * FEW_PANELS + 2: dot(matrix, panel, x, sums, bytes, format, 2, 2); break;
    case 3 * FEW_PANELS + 1: dot(matrix, panel, x, sums, bytes, format, 3, 1); break;
    }
}

#endif
