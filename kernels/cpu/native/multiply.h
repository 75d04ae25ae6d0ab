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
    const float *next; /* as large as the matrix, and fetched into the cache meanwhile */
    float *out;
    int64_t factor_stride; /* elements from one row to the next */
    int64_t matrix_stride;
    int64_t out_stride;
    int64_t rows;
    int64_t columns;
    int64_t depth;
} product;

/* One register; compilers keep a loop's sums in memory when they are wider than the machine's. */
#ifdef __AVX2__
typedef f32x8 floats;
enum { LANES = 8 };

EVH_INLINE floats splat(float x)
{
    return f32x8_splat(x);
}

EVH_INLINE floats multiply_add(floats a, floats b, floats c)
{
    return f32x8_fma(a, b, c);
}
#else
typedef float floats __attribute__((vector_size(16)));
enum { LANES = 4 };

EVH_INLINE floats splat(float x)
{
    return (floats){x, x, x, x};
}

EVH_INLINE floats multiply_add(floats a, floats b, floats c)
{
    return a * b + c;
}
#endif

/* A block has about twelve sums, which sixteen registers hold beside vectors of the matrix and a
 * factor: the fewer rows there are, the more columns, so that the matrix is read in longer runs. */
enum { BLOCK_ROWS = 6, BLOCK_SUMS = 12, BLOCK_VECTORS = 8 };

/* The block of `rows` and `columns` from (row, column); of columns LANES, a multiple, or one. */
EVH_INLINE void multiply_block(const product *p, int64_t row, int64_t column, int rows,
                               int columns, bool add)
{
    const float *factors = p->factors + row * p->factor_stride;
    const float *matrix = p->matrix + column, *next = p->next + column;
    const int vectors = columns == 1 ? 1 : columns / LANES;
    const size_t bytes = columns == 1 ? sizeof(float) : sizeof(floats);
    floats sums[BLOCK_ROWS][BLOCK_VECTORS] = {0};
    for (int64_t k = 0; k < p->depth; k++, matrix += p->matrix_stride, next += p->matrix_stride) {
        floats part[BLOCK_VECTORS] = {0};
        EVH_UNROLL
        for (int v = 0; v < vectors; v++) {
            memcpy(&part[v], matrix + LANES * v, bytes);
            if (LANES * v % 16 == 0)
                __builtin_prefetch(next + LANES * v);
        }
        EVH_UNROLL
        for (int r = 0; r < rows; r++) {
            floats factor = splat(factors[r * p->factor_stride + k]);
            EVH_UNROLL
            for (int v = 0; v < vectors; v++)
                sums[r][v] = multiply_add(factor, part[v], sums[r][v]);
        }
    }
    EVH_UNROLL
    for (int r = 0; r < rows; r++)
        EVH_UNROLL
        for (int v = 0; v < vectors; v++) {
            float *to = p->out + (row + r) * p->out_stride + column + LANES * v;
            floats before = {0};
            if (add)
                memcpy(&before, to, bytes);
            sums[r][v] += before;
            memcpy(to, &sums[r][v], bytes);
        }
}

EVH_INLINE void multiply_rows(const product *p, int64_t row, int rows, bool add)
{
    const int widest = LANES * (rows == 1 ? BLOCK_VECTORS : BLOCK_SUMS / rows);
    int64_t column = 0;
    for (; column + widest <= p->columns; column += widest)
        multiply_block(p, row, column, rows, widest, add);
    for (; column + 2 * LANES <= p->columns; column += 2 * LANES)
        multiply_block(p, row, column, rows, 2 * LANES, add);
    for (; column + LANES <= p->columns; column += LANES)
        multiply_block(p, row, column, rows, LANES, add);
    for (; column < p->columns; column++)
        multiply_block(p, row, column, rows, 1, add);
}

EVH_INLINE void multiply(const product *p, bool add)
{
    int64_t row = 0;
    for (; row + BLOCK_ROWS <= p->rows; row += BLOCK_ROWS)
        multiply_rows(p, row, BLOCK_ROWS, add);
    switch (p->rows - row) {
    case 5: multiply_rows(p, row, 5, add); break;
    case 4: multiply_rows(p, row, 4, add); break;
    case 3: multiply_rows(p, row, 3, add); break;
    case 2: multiply_rows(p, row, 2, add); break;
    case 1: multiply_rows(p, row, 1, add); break;
    }
}

#endif
