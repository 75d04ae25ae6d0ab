/* What every native kernel looks like from outside.
 *
 * A kernel computes the items `first` up to `past` of its work and knows nothing of threads: the
 * step (step.c) deals items out. An item is a token, a panel of a matrix, or a tile of attention;
 * items never write the same memory. All sizes are in elements unless they say bytes, all arrays
 * are contiguous unless a stride is given, and nothing here allocates.
 *
 * N tokens in the batch, H query heads, G key/value heads, D head size, S tokens per page.
 */
#ifndef EVENHAND_KERNELS_H
#define EVENHAND_KERNELS_H

#include <stdint.h>

#pragma GCC visibility push(default)

enum { EVH_PANEL = 16 }; /* outputs that a matrix keeps side by side */

enum evh_format {
    EVH_F32 = 0,  /* fp32 weights */
    EVH_F16 = 1,  /* half precision, exactly as stored */
    EVH_BF16 = 2, /* bfloat16, exactly as stored */
    EVH_W4 = 3,   /* unsigned 4-bit codes: weight = code * scale + minimum, per block of a row */
    EVH_W8 = 4    /* signed 8-bit codes: weight = code * scale (+ minimum), per block of a row */
};

/* A weight [rows, columns] in panels of EVH_PANEL rows, the last one padded with zeros.
 * The layout inside a panel is told in pack.h, format by format. */
typedef struct {
    const void *panels;
    const float *bias; /* [rows], or NULL */
    int64_t rows;
    int64_t columns;
    int64_t panel_bytes;
    int32_t format;      /* enum evh_format */
    int32_t block;       /* columns that share a scale: 16 or 32; 0 for floating-point formats */
    int32_t half_scales; /* scales and minima are kept in half precision, not fp32 */
    int32_t has_minimum;
    int32_t int8;        /* packed for int8 activations; else for fp32 ones */
} evh_matrix;

/* What a linear layer multiplies: fp32 values, and their int8 form where some matrix wants it.
 * Codes are per token and block of 32 columns: value = code * scale, |code| <= 127. */
typedef struct {
    const float *values; /* [tokens, columns] */
    const int8_t *codes; /* [tokens, columns], or NULL */
    const float *scales; /* [tokens, columns / 32], or NULL */
    const float *sums;   /* [tokens, columns / 32], or NULL: of each block's values */
    int64_t tokens;
    int64_t columns;
} evh_activations;

/* The batch, as kernels.layout.BatchLayout has it. */
typedef struct {
    const int32_t *token_ids;       /* [N] */
    const int32_t *positions;       /* [N] */
    const int32_t *rows;            /* [N]: the row that each token belongs to */
    const int32_t *row_starts;      /* [R + 1] */
    const int32_t *first_positions; /* [R] */
    const int32_t *block_tables;    /* [groups, R, table_width] */
    int64_t num_tokens;
    int64_t num_rows;
    int64_t table_width;
} evh_batch;

/* Pages of one layer: keys [pages, G, D, S], values [pages, G, S, D]. */
typedef struct {
    float *keys;
    float *values;
    int64_t num_kv_heads;
    int64_t head_dim;
    int64_t page_size;
    int64_t group;  /* which of the batch's block tables leads to them */
    int64_t window; /* latest positions a token attends to, itself included; 0: all of them */
} evh_pages;

enum evh_activation { EVH_SILU = 0, EVH_GELU_TANH = 1 };

/* out[t] = row token_ids[t] of the table, times scale. Item: a token. */
void evh_embed(const evh_matrix *table, const int32_t *token_ids, float scale, float *out,
               int64_t first, int64_t past);

/* out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight, or added to out[t] if `add`. Item: a token.
 * `out` may be `x` unless `add`. */
void evh_rms_norm(const float *x, const float *weight, float eps, int64_t width, int32_t add,
                  float *out, int64_t first, int64_t past);

/* codes, scales and sums of x [N, width], width a multiple of 32. Item: a token. */
void evh_quantize(const float *x, int64_t width, int8_t *codes, float *scales, float *sums,
                  int64_t first, int64_t past);

/* out[t, column + r] (+)= x[t] . weight[r] + bias[r], fp32 accumulation in order of columns, the
 * same for any number of tokens. Item: a panel of the matrix. `scratch` is evh_linear_scratch()
 * floats of the calling thread's own. `add` adds to what `out` holds. */
void evh_linear(const evh_matrix *weight, const evh_activations *x, float *out, int64_t out_stride,
                int32_t add, float *scratch, int64_t first, int64_t past);
int64_t evh_linear_scratch(int64_t max_tokens);

/* cos and sin [N, half] of positions[t] * frequencies, both times scale. Item: a token. */
void evh_angles(const int32_t *positions, const float *frequencies, float scale, int64_t half,
                float *cos, float *sin, int64_t first, int64_t past);

/* Of qkv [N, (H + 2G) * D]: normalise each query and key head (where a weight [D] is given), rotate
 * them by the angles (element i pairs with i + D/2), and write keys and values to the pages.
 * Item: a token. */
void evh_heads(float *qkv, int64_t num_heads, const float *query_norm, const float *key_norm,
               float eps, const float *cos, const float *sin, const evh_pages *pages,
               const evh_batch *batch, int64_t first, int64_t past);

/* Causal attention within the window, scores times `scale`; out [N, H * D]. Item: one tile of at
 * most EVH_TILE consecutive tokens of one row, and one key/value head; evh_attention_items() says
 * how many there are (a few have nothing to do), and item i's tile and head follow from i alone.
 * Slots past a token's position or before its window may hold anything, NaN included. `scratch` is
 * evh_attention_scratch() floats of the calling thread's own. */
enum { EVH_TILE = 16 };
int64_t evh_attention_items(const evh_batch *batch, int64_t num_kv_heads);
int64_t evh_attention_scratch(int64_t num_heads, const evh_pages *pages);
void evh_attention(const float *qkv, int64_t num_heads, float scale, const evh_pages *pages,
                   const evh_batch *batch, float *out, float *scratch, int64_t first,
                   int64_t past);

/* out[t] = activation(gate_up[t, :width]) * gate_up[t, width:]. Item: a token. */
void evh_gate(const float *gate_up, int64_t width, int32_t activation, float *out, int64_t first,
              int64_t past);

#pragma GCC visibility pop

#endif
