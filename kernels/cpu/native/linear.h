/* What the files of linear layers know of each other: the kernels that each format brings. */
#ifndef EVENHAND_LINEAR_H
#define EVENHAND_LINEAR_H

#include "kernels.h"

#include <stddef.h>

/* Up to so many tokens are multiplied straight from packed weights; for more it was slower. */
enum { FEW_TOKENS = 3, FEW_PANELS = 2 };

typedef struct {
    /* Columns `first` up to `first + count` of a panel, whole blocks, as fp32 [count, EVH_PANEL]. */
    void (*unpack)(const evh_matrix *matrix, const uint8_t *panel, int64_t first, int64_t count,
                   float *out);
    /* Exact products of `panels` neighbouring panels, at most few_panels(), with one to FEW_TOKENS
     * tokens x [tokens, columns]: sums [panels, tokens, EVH_PANEL]. */
    void (*dot)(const evh_matrix *matrix, const uint8_t *panel, int32_t panels, const float *x,
                int32_t tokens, float *sums);
    /* Products of a panel with the 8-bit form of `count` tokens from token `first` on: sums
     * [count, EVH_PANEL]. NULL where there is no such kernel. */
    void (*dot_int8)(const evh_matrix *matrix, const uint8_t *panel, const evh_activations *x,
                     int64_t first, int64_t count, float *sums);
} linear_kernels;

extern const linear_kernels linear_f32, linear_f16, linear_bf16, linear_w4, linear_w8;

const linear_kernels *kernels_of(const evh_matrix *matrix);

#ifdef __AVX2__
void dot_w4_int8(const evh_matrix *matrix, const uint8_t *panel, const evh_activations *x,
                 int64_t first, int64_t count, float *sums);
void dot_w8_int8(const evh_matrix *matrix, const uint8_t *panel, const evh_activations *x,
                 int64_t first, int64_t count, float *sums);
#else
#define dot_w4_int8 NULL
#define dot_w8_int8 NULL
#endif

/* How many panels a format multiplies with few tokens at once: as the vector registers allow. */
static inline int32_t few_panels(int32_t tokens)
{
    return tokens < FEW_TOKENS ? FEW_PANELS : 1;
}

/* How many of `count` tokens to do next, such that all tiles are about the same size. */
static inline int64_t tile_size(int64_t count, int64_t most)
{
    int64_t tiles = (count + most - 1) / most;
    return (count + tiles - 1) / tiles;
}

#endif
