/* How a weight lies in memory for the kernels, and the packers that put it there.
 *
 * A panel holds EVH_PANEL (16) outputs, that is rows of the matrix; panels follow each other. The
 * outputs of a panel lie side by side, so that a vector of eight lanes takes the weights of eight
 * outputs for one column, and the columns follow in order. Numbers are little-endian.
 *
 * EVH_F32, EVH_F16, EVH_BF16: one number per column and output, o0 to o15 the panel's outputs.
 *
 *     column 0                column 1
 *     | o0 | o1 | ... | o15 | o0 | o1 | ... | o15 | ...
 *
 * EVH_W8: blocks of `block` columns. Inside, groups of four columns, c0 to c3: a 32-bit word per
 * output with a code in each byte. Then the sixteen scales of the block and, where the matrix has
 * them, its sixteen minima; each in half precision or in fp32.
 *
 *     columns 0-3                             columns 4-7              scales        minima
 *     | o0: c0 c1 c2 c3 | o1: c0 c1 ... | o15 | o0: c4 c5 ... | ... | o0 | .. | o15 | o0 | .. | o15 |
 *
 * EVH_W4: the same with eight columns to a word, always 32 to a block. Byte i of a word holds
 * column i in its low half and column 4 + i in its high half, so that masking a word leaves bytes
 * in order of columns, as products of bytes want them.
 *
 *     columns 0-7                                                  columns 8-15
 *     | o0: c4<<4|c0  c5<<4|c1  c6<<4|c2  c7<<4|c3 | o1: ... | o15 | o0: ... | ...
 */
#ifndef EVENHAND_PACK_H
#define EVENHAND_PACK_H

#include "kernels.h"
#include "vec.h"

enum { W4_BLOCK = 32 };

/* Bytes of the codes of a block, of its scales (or of its minima), and of all of it. */
EVH_INLINE int64_t block_code_bytes(const evh_matrix *matrix)
{
    int64_t codes = (int64_t)matrix->block * EVH_PANEL;
    return matrix->format == EVH_W4 ? codes / 2 : codes;
}

EVH_INLINE int64_t block_scale_bytes(const evh_matrix *matrix)
{
    return EVH_PANEL * (matrix->half_scales ? 2 : 4);
}

EVH_INLINE int64_t block_bytes(const evh_matrix *matrix)
{
    int64_t vectors = matrix->has_minimum ? 2 : 1;
    return block_code_bytes(matrix) + vectors * block_scale_bytes(matrix);
}

EVH_INLINE const uint8_t *panel_at(const evh_matrix *matrix, int64_t panel)
{
    return (const uint8_t *)matrix->panels + panel * matrix->panel_bytes;
}

EVH_INLINE int64_t num_panels(const evh_matrix *matrix)
{
    return (matrix->rows + EVH_PANEL - 1) / EVH_PANEL;
}

/* What the columns of a block have in common, for each output of a panel. */
typedef struct {
    f32x16 scale;
    f32x16 minimum;
} block_scales;

EVH_INLINE f32x16 load_scale_vector(const evh_matrix *matrix, const uint8_t *from)
{
    if (matrix->half_scales)
        return (f32x16){f32x8_from_half(from), f32x8_from_half(from + 16)};
    return f32x16_load((const float *)from);
}

/* A missing minimum is minus zero, which leaves any number as it is when added to it. */
EVH_INLINE block_scales load_scales(const evh_matrix *matrix, const uint8_t *block)
{
    block_scales scales = {f32x16_splat(1.0f), f32x16_splat(-0.0f)};
    if (matrix->block == 0)
        return scales;
    const uint8_t *at = block + block_code_bytes(matrix);
    scales.scale = load_scale_vector(matrix, at);
    if (matrix->has_minimum)
        scales.minimum = load_scale_vector(matrix, at + block_scale_bytes(matrix));
    return scales;
}

#pragma GCC visibility push(default)

/* Bytes of a panel of a matrix whose other fields, but for the pointers, are set. */
int64_t evh_panel_bytes(const evh_matrix *matrix);

/* Whether every number survives the way to half precision and back; NaN never does. */
int32_t evh_fits_half(const float *values, int64_t count);

/* Write panels `first` up to `past` of a matrix of floats from values [rows, columns], each of two
 * bytes or of four as the format has it. */
void evh_pack_floats(const evh_matrix *matrix, const void *values, void *panels, int64_t first,
                     int64_t past);

/* Write panels of a quantised matrix: codes [rows, columns] of a byte each (for EVH_W4 below 16),
 * scales and, unless the matrix has none, minima [rows, columns / block]. */
void evh_pack_codes(const evh_matrix *matrix, const uint8_t *codes, const float *scales,
                    const float *minima, void *panels, int64_t first, int64_t past);

#pragma GCC visibility pop

#endif
