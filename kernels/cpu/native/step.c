/* Runs a program: deals the items of each operation out to the threads of a team.
 *
 * Threads take chunks of items as they come; a chunk is small enough that the last one is short
 * and large enough that taking it costs little. An operation too small to share is one chunk.
 */
#include "step.h"

#include <stddef.h>

typedef struct {
    const evh_program *program;
    const evh_batch *batch;
    int32_t threads;
    int64_t items; /* of the operation being run */
    int64_t chunk; /* items in one chunk of it, the last one's excepted */
} run;

/* Chunks per thread: the last chunk keeps the others waiting for a sixteenth of a phase at most. */
enum { CHUNKS_PER_THREAD = 8 };

/* Elements that are worth a chunk: a few microseconds of copying, or of multiplying. */
enum { CHUNK_ELEMENTS = 8192, CHUNK_PRODUCTS = 32768 };

/* Tokens that a linear layer multiplies at a time: their values stay in a core's own cache. */
enum { TOKENS_AT_ONCE = 64 };

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t quotient_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t panels(const evh_matrix *matrix)
{
    return quotient_up(matrix->rows, EVH_PANEL);
}

/* --- items of an operation, and what one costs ------------------------------------------------ */

static int64_t count_items(const evh_op *op, const evh_batch *batch)
{
    int64_t total = 0;
    switch (op->kind) {
    case EVH_OP_LINEAR:
        for (int32_t part = 0; part < op->linear.parts; part++)
            total += panels(op->linear.matrices[part]);
        return total;
    case EVH_OP_ATTENTION:
        return evh_attention_items(batch, op->attention.pages->num_kv_heads);
    default:
        return batch->num_tokens;
    }
}

/* The fewest items of this operation that are worth a chunk. */
static int64_t worth_a_chunk(const evh_op *op, const evh_batch *batch)
{
    switch (op->kind) {
    case EVH_OP_EMBED:
        return quotient_up(CHUNK_ELEMENTS, op->embed.out->width);
    case EVH_OP_ANGLES:
        return quotient_up(CHUNK_ELEMENTS / 16, op->angles.cos->width); /* cosines are dear */
    case EVH_OP_NORM:
        return quotient_up(CHUNK_ELEMENTS, op->norm.input->width);
    case EVH_OP_QUANTIZE:
        return quotient_up(CHUNK_ELEMENTS, op->quantize.buffer->width);
    case EVH_OP_LINEAR:
        return quotient_up(CHUNK_PRODUCTS, EVH_PANEL * op->linear.input->width * batch->num_tokens);
    case EVH_OP_HEADS:
        return quotient_up(CHUNK_ELEMENTS, op->heads.qkv->width);
    case EVH_OP_GATE:
        return quotient_up(CHUNK_ELEMENTS / 8, op->gate.out->width); /* so are exponentials */
    default:
        return 1; /* attention: a tile */
    }
}

/* --- doing items ------------------------------------------------------------------------------ */

/* Panels `first` up to `past` of one matrix, a few tokens at a time. */
static void multiply(const evh_linear_op *op, int32_t part, const evh_batch *batch, float *scratch,
                     int64_t first, int64_t past)
{
    const evh_buffer *in = op->input;
    float *out = op->out->values + op->columns[part];
    for (int64_t token = 0; token < batch->num_tokens; token += TOKENS_AT_ONCE) {
        evh_activations x = {
            .values = in->values + token * in->width,
            .codes = in->codes ? in->codes + token * in->width : NULL,
            .scales = in->scales ? in->scales + token * (in->width / 32) : NULL,
            .sums = in->sums ? in->sums + token * (in->width / 32) : NULL,
            .tokens = smaller(TOKENS_AT_ONCE, batch->num_tokens - token),
            .columns = in->width,
        };
        evh_linear(op->matrices[part], &x, out + token * op->out->width, op->out->width, op->add,
                   scratch, first, past);
    }
}

/* Items of a linear layer are the panels of its first matrix, then those of the next. */
static void do_linear(const evh_linear_op *op, const evh_batch *batch, float *scratch,
                      int64_t first, int64_t past)
{
    for (int32_t part = 0; part < op->parts && past > 0; part++) {
        int64_t count = panels(op->matrices[part]);
        if (first < count)
            multiply(op, part, batch, scratch, larger(first, 0), smaller(past, count));
        first -= count;
        past -= count;
    }
}

static void do_items(const evh_op *op, const evh_batch *batch, float *scratch, int64_t first,
                     int64_t past)
{
    switch (op->kind) {
    case EVH_OP_EMBED:
        evh_embed(op->embed.table, batch->token_ids, op->embed.scale, op->embed.out->values, first,
                  past);
        break;
    case EVH_OP_ANGLES:
        evh_angles(batch->positions, op->angles.frequencies, op->angles.scale,
                   op->angles.cos->width, op->angles.cos->values, op->angles.sin->values, first,
                   past);
        break;
    case EVH_OP_NORM:
        evh_rms_norm(op->norm.input->values, op->norm.weight, op->norm.eps, op->norm.input->width,
                     op->norm.add, op->norm.out->values, first, past);
        break;
    case EVH_OP_QUANTIZE:
        evh_quantize(op->quantize.buffer->values, op->quantize.buffer->width,
                     op->quantize.buffer->codes, op->quantize.buffer->scales,
                     op->quantize.buffer->sums, first, past);
        break;
    case EVH_OP_LINEAR:
        do_linear(&op->linear, batch, scratch, first, past);
        break;
    case EVH_OP_HEADS:
        evh_heads(op->heads.qkv->values, op->heads.num_heads, op->heads.query_norm,
                  op->heads.key_norm, op->heads.eps, op->heads.cos->values, op->heads.sin->values,
                  op->heads.pages, batch, first, past);
        break;
    case EVH_OP_ATTENTION:
        evh_attention(op->attention.qkv->values, op->attention.num_heads, op->attention.scale,
                      op->attention.pages, batch, op->attention.out->values, scratch, first, past);
        break;
    default:
        evh_gate(op->gate.input->values, op->gate.out->width, op->gate.activation,
                 op->gate.out->values, first, past);
    }
}

/* --- the job ---------------------------------------------------------------------------------- */

static int64_t begin(void *argument, int64_t phase)
{
    run *this = argument;
    if (phase == this->program->num_ops)
        return EVH_JOB_DONE;
    const evh_op *op = &this->program->ops[phase];
    this->items = count_items(op, this->batch);
    this->chunk = larger(worth_a_chunk(op, this->batch),
                         quotient_up(this->items, this->threads * CHUNKS_PER_THREAD));
    if (op->kind == EVH_OP_LINEAR) /* few tokens are multiplied with two panels at a time */
        this->chunk += this->chunk % 2;
    return quotient_up(this->items, this->chunk);
}

static void work(void *argument, int64_t phase, int64_t chunk, int32_t worker)
{
    const run *this = argument;
    const evh_program *program = this->program;
    int64_t first = chunk * this->chunk;
    do_items(&program->ops[phase], this->batch, program->scratch + worker * program->scratch_floats,
             first, smaller(first + this->chunk, this->items));
}

int64_t evh_step_scratch(const evh_op *ops, int64_t num_ops, int64_t max_tokens)
{
    int64_t most = evh_linear_scratch(smaller(max_tokens, TOKENS_AT_ONCE));
    for (const evh_op *op = ops; op < ops + num_ops; op++)
        if (op->kind == EVH_OP_ATTENTION)
            most = larger(most, evh_attention_scratch(op->attention.num_heads, op->attention.pages));
    return quotient_up(most, 16) * 16; /* no two threads on one cache line */
}

int32_t evh_step(evh_team *team, const evh_program *program, const evh_batch *batch)
{
    if (!evh_team_is_here(team))
        return EVH_NOT_HERE;
    int32_t error = evh_check(program, batch);
    if (error || !batch->num_tokens)
        return error;
    run this = {.program = program, .batch = batch, .threads = evh_team_threads(team)};
    evh_team_run(team, &(evh_job){.begin = begin, .work = work, .argument = &this});
    return EVH_OK;
}
