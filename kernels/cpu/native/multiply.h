/* Small matrix products that keep a block of their result in registers.
 *
 * out [rows, columns] = factors [rows, depth] @ matrix [depth, columns], or added to what `out`
 * holds. Every element is one sum from zero in order of depth, whatever block it falls into: its
 * bits do not depend on the rows computed with it.
 */
#ifndef EVENHAND_MULTIPLY_H
#define EVENHAND_MULTIPLY_H

#include <stdbool.h>

#include "vec.h"

typedef struct {
    const float *factors;
    const float *matrix;
    float *out;
    int64_t factor_stride; /* elements from one row to the next */
    int64_t matrix_stride;
    int64_t out_stride;
    int64_t rows;
    int64_t columns;
    int64_t depth;
} product;

enum { MULTIPLY_ROWS = 6 }; /* twelve sums, two matrix vectors and a factor: sixteen registers */

/* `rows` rows and 8 * `vectors` columns from (row, column). */
EVH_INLINE void multiply_block(const product *p, int rows, int vectors, bool add, int64_t row,
                               int64_t column)
{
    const float *factors = p->factors + row * p->factor_stride;
    const float *matrix = p->matrix + column;
    f32x8 sums[MULTIPLY_ROWS][2] = {0};
    for (int64_t k = 0; k < p->depth; k++, matrix += p->matrix_stride) {
        f32x8 part[2];
        EVH_UNROLL
        for (int v = 0; v < vectors; v++)
            part[v] = f32x8_load(matrix + 8 * v);
        EVH_UNROLL
        for (int r = 0; r < rows; r++) {
            f32x8 factor = f32x8_splat(factors[r * p->factor_stride + k]);
            EVH_UNROLL
            for (int v = 0; v < vectors; v++)
                sums[r][v] = f32x8_fma(factor, part[v], sums[r][v]);
        }
    }
    EVH_UNROLL
    for (int r = 0; r < rows; r++)
        EVH_UNROLL
        for (int v = 0; v < vectors; v++) {
            float *to = p->out + (row + r) * p->out_stride + column + 8 * v;
            f32x8_store(to, add ? f32x8_load(to) + sums[r][v] : sums[r][v]);
        }
}

/* One column of what is left of a width that is no multiple of eight. */
EVH_INLINE void multiply_column(const product *p, int rows, bool add, int64_t row, int64_t column)
{
    for (int r = 0; r < rows; r++) {
        const float *factors = p->factors + (row + r) * p->factor_stride;
        float *to = p->out + (row + r) * p->out_stride + column;
        float sum = 0;
        for (int64_t k = 0; k < p->depth; k++)
            sum += factors[k] * p->matrix[k * p->matrix_stride + column];
        *to = add ? *to + sum : sum;
    }
}

EVH_INLINE void multiply_rows(const product *p, int rows, bool add, int64_t row)
{
    int64_t column = 0;
    for (; column + 16 <= p->columns; column += 16)
        multiply_block(p, rows, 2, add, row, column);
    for (; column + 8 <= p->columns; column += 8)
        multiply_block(p, rows, 1, add, row, column);
    for (; column < p->columns; column++)
        multiply_column(p, rows, add, row, column);
}

EVH_INLINE void multiply(const product *p, bool add)
{
    int64_t row = 0;
    for (; row + MULTIPLY_ROWS <= p->rows; row += MULTIPLY_ROWS)
        multiply_rows(p, MULTIPLY_ROWS, add, row);
    switch (p->rows - row) {
    case 5: multiply_rows(p, 5, add, row); break;
    case 4: multiply_rows(p, 4, add, row); break;
    case 3: multiply_rows(p, 3, add, row); break;
    case 2: multiply_rows(p, 2, add, row); break;
    case 1: multiply_rows(p, 1, add, row); break;
    }
}

#endif
