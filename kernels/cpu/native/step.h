/* A program: the operations of a forward pass, made once, run for any batch in one call.
 *
 * An operation reads and writes buffers, which have room for so many tokens; its kernel is told in
 * kernels.h. Operations are done in order, each by all threads of a team.
 */
#ifndef EVENHAND_STEP_H
#define EVENHAND_STEP_H

#include "kernels.h"
#include "team.h"

/* Values of up to `max_tokens` tokens; codes, scales and sums (or NULL) where a matrix packed for
 * int8 reads them, as in evh_activations. */
typedef struct {
    float *values; /* [max_tokens, width] */
    int8_t *codes; /* [max_tokens, width] */
    float *scales; /* [max_tokens, width / 32] */
    float *sums;   /* [max_tokens, width / 32] */
    int64_t width;
    int64_t max_tokens;
} evh_buffer;

enum evh_op_kind {
    EVH_OP_EMBED = 0,
    EVH_OP_ANGLES = 1,
    EVH_OP_NORM = 2,
    EVH_OP_QUANTIZE = 3,
    EVH_OP_LINEAR = 4,
    EVH_OP_HEADS = 5,
    EVH_OP_ATTENTION = 6,
    EVH_OP_GATE = 7
};

typedef struct {
    const evh_matrix *table;
    const evh_buffer *out;
    float scale;
} evh_embed_op;

typedef struct {
    const float *frequencies; /* [width of cos and sin] */
    const evh_buffer *cos;
    const evh_buffer *sin;
    float scale;
} evh_angles_op;

typedef struct {
    const float *weight; /* [width of input and out] */
    const evh_buffer *input;
    const evh_buffer *out;
    float eps;
    int32_t add;
} evh_norm_op;

typedef struct {
    const evh_buffer *buffer; /* its codes, scales and sums, from its values */
} evh_quantize_op;

enum { EVH_MAX_PARTS = 3 };

/* Matrices that share their input; part i writes its outputs from `columns[i]` of `out` on. */
typedef struct {
    const evh_buffer *input;
    const evh_buffer *out;
    const evh_matrix *matrices[EVH_MAX_PARTS];
    int64_t columns[EVH_MAX_PARTS];
    int32_t parts;
    int32_t add;
} evh_linear_op;

typedef struct {
    const evh_buffer *qkv;
    const evh_buffer *cos;
    const evh_buffer *sin;
    const float *query_norm; /* [head_dim], or NULL */
    const float *key_norm;   /* [head_dim], or NULL */
    const evh_pages *pages;
    int64_t num_pages;
    int64_t num_heads;
    float eps;
} evh_heads_op;

typedef struct {
    const evh_buffer *qkv;
    const evh_buffer *out;
    const evh_pages *pages;
    int64_t num_pages;
    int64_t num_heads;
    float scale;
} evh_attention_op;

typedef struct {
    const evh_buffer *input;
    const evh_buffer *out;
    int32_t activation;
} evh_gate_op;

typedef struct {
    int32_t kind; /* enum evh_op_kind: which of these it is */
    union {
        evh_embed_op embed;
        evh_angles_op angles;
        evh_norm_op norm;
        evh_quantize_op quantize;
        evh_linear_op linear;
        evh_heads_op heads;
        evh_attention_op attention;
        evh_gate_op gate;
    };
} evh_op;

typedef struct {
    const evh_op *ops;
    int64_t num_ops;
    float *scratch; /* [threads, scratch_floats] */
    int64_t scratch_floats;
    int64_t num_groups; /* block tables in a batch */
} evh_program;

enum evh_error {
    EVH_OK = 0,
    EVH_BAD_PROGRAM = 1, /* an operation's parts do not fit together */
    EVH_BAD_SIZE = 2,    /* the batch is larger than a buffer */
    EVH_BAD_ROWS = 3,    /* rows, positions and tokens do not agree */
    EVH_BAD_TOKEN = 4,   /* a token that the embedding does not have */
    EVH_BAD_PAGE = 5,    /* a position whose page does not exist */
    EVH_NOT_HERE = 6     /* the team's threads are in another process */
};

#pragma GCC visibility push(default)

/* Floats of scratch that each thread needs for this program and batches of `max_tokens`. */
int64_t evh_step_scratch(const evh_op *ops, int64_t num_ops, int64_t max_tokens);

/* Run the whole program for the batch; nothing is computed unless it returns EVH_OK. */
int32_t evh_step(evh_team *team, const evh_program *program, const evh_batch *batch);

#pragma GCC visibility pop

/* check.c: whether the program can run for the batch without reading or writing elsewhere. */
int32_t evh_check(const evh_program *program, const evh_batch *batch);

#endif
