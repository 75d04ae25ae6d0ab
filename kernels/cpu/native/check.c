/* Refuses what a program must not be run for, before anything is computed: see enum evh_error. */
#include "step.h"

#include <stddef.h>

static int fits(const evh_buffer *buffer, int64_t width, const evh_batch *batch)
{
    return buffer && buffer->values && buffer->width == width &&
           batch->num_tokens <= buffer->max_tokens;
}

static int quantized(const evh_buffer *buffer)
{
    return buffer->codes && buffer->scales && buffer->sums && buffer->width % 32 == 0;
}

static int32_t fitting(int right)
{
    return right ? EVH_OK : EVH_BAD_SIZE;
}

static int32_t check_embed(const evh_embed_op *op, const evh_batch *batch)
{
    if (!op->table || !op->table->panels)
        return EVH_BAD_PROGRAM;
    if (!batch->token_ids)
        return EVH_BAD_TOKEN;
    for (int64_t t = 0; t < batch->num_tokens; t++)
        if (batch->token_ids[t] < 0 || batch->token_ids[t] >= op->table->rows)
            return EVH_BAD_TOKEN;
    return fitting(fits(op->out, op->table->columns, batch));
}

static int32_t check_linear(const evh_linear_op *op, const evh_batch *batch)
{
    if (op->parts < 1 || op->parts > EVH_MAX_PARTS || !op->input || !op->out)
        return EVH_BAD_PROGRAM;
    for (int32_t part = 0; part < op->parts; part++) {
        const evh_matrix *matrix = op->matrices[part];
        if (!matrix || !matrix->panels || matrix->columns != op->input->width)
            return EVH_BAD_PROGRAM;
        if (op->columns[part] < 0 || op->columns[part] + matrix->rows > op->out->width)
            return EVH_BAD_PROGRAM;
        if (matrix->int8 && !quantized(op->input))
            return EVH_BAD_PROGRAM;
    }
    return fitting(fits(op->input, op->input->width, batch) && fits(op->out, op->out->width, batch));
}

static int32_t check_quantize(const evh_quantize_op *op, const evh_batch *batch)
{
    const evh_buffer *buffer = op->buffer;
    if (!buffer || !quantized(buffer))
        return EVH_BAD_PROGRAM;
    return fitting(fits(buffer, buffer->width, batch));
}

/* The pages of every position that the batch writes, or that its first tokens look back to. */
static int32_t check_pages(const evh_pages *pages, int64_t num_pages, const evh_batch *batch)
{
    const int32_t *tables = batch->block_tables + pages->group * batch->num_rows * batch->table_width;
    for (int64_t row = 0; row < batch->num_rows; row++) {
        int64_t tokens = batch->row_starts[row + 1] - batch->row_starts[row];
        int64_t first = batch->first_positions[row], last = first + tokens - 1;
        int64_t oldest = pages->window && first >= pages->window ? first - pages->window + 1 : 0;
        if (!tokens)
            continue;
        if (last / pages->page_size >= batch->table_width)
            return EVH_BAD_PAGE;
        for (int64_t slot = oldest / pages->page_size; slot <= last / pages->page_size; slot++) {
            int32_t page = tables[row * batch->table_width + slot];
            if (page < 0 || page >= num_pages)
                return EVH_BAD_PAGE;
        }
    }
    return EVH_OK;
}

static int fit_together(const evh_pages *pages, int64_t num_heads, const evh_buffer *qkv,
                        int64_t num_groups)
{
    return pages && pages->keys && pages->values && qkv && pages->page_size > 0 &&
           pages->head_dim > 0 && pages->num_kv_heads > 0 && num_heads > 0 &&
           num_heads % pages->num_kv_heads == 0 && pages->window >= 0 && pages->group >= 0 &&
           pages->group < num_groups &&
           qkv->width == (num_heads + 2 * pages->num_kv_heads) * pages->head_dim;
}

static int32_t check_heads(const evh_heads_op *op, const evh_batch *batch, int64_t num_groups)
{
    if (!fit_together(op->pages, op->num_heads, op->qkv, num_groups))
        return EVH_BAD_PROGRAM;
    if (!batch->num_rows)
        return EVH_BAD_ROWS;
    int64_t half = op->pages->head_dim / 2;
    if (!fits(op->qkv, op->qkv->width, batch) || !fits(op->cos, half, batch) ||
        !fits(op->sin, half, batch))
        return EVH_BAD_SIZE;
    return check_pages(op->pages, op->num_pages, batch);
}

/* Its pages were checked with the heads before it. */
static int32_t check_attention(const evh_attention_op *op, const evh_batch *batch,
                               int64_t num_groups)
{
    if (!fit_together(op->pages, op->num_heads, op->qkv, num_groups))
        return EVH_BAD_PROGRAM;
    if (!batch->num_rows)
        return EVH_BAD_ROWS;
    return fitting(fits(op->qkv, op->qkv->width, batch) &&
                   fits(op->out, op->num_heads * op->pages->head_dim, batch));
}

static int32_t check_op(const evh_op *op, const evh_batch *batch, int64_t num_groups)
{
    switch (op->kind) {
    case EVH_OP_EMBED:
        return check_embed(&op->embed, batch);
    case EVH_OP_ANGLES:
        if (!op->angles.frequencies || !op->angles.cos)
            return EVH_BAD_PROGRAM;
        if (!batch->positions)
            return EVH_BAD_ROWS;
        return fitting(fits(op->angles.cos, op->angles.cos->width, batch) &&
                       fits(op->angles.sin, op->angles.cos->width, batch));
    case EVH_OP_NORM:
        if (!op->norm.weight || !op->norm.input)
            return EVH_BAD_PROGRAM;
        return fitting(fits(op->norm.input, op->norm.input->width, batch) &&
                       fits(op->norm.out, op->norm.input->width, batch));
    case EVH_OP_QUANTIZE:
        return check_quantize(&op->quantize, batch);
    case EVH_OP_LINEAR:
        return check_linear(&op->linear, batch);
    case EVH_OP_HEADS:
        return check_heads(&op->heads, batch, num_groups);
    case EVH_OP_ATTENTION:
        return check_attention(&op->attention, batch, num_groups);
    case EVH_OP_GATE:
        if (!op->gate.input || !op->gate.out || op->gate.input->width != 2 * op->gate.out->width)
            return EVH_BAD_PROGRAM;
        return fitting(fits(op->gate.input, op->gate.input->width, batch) &&
                       fits(op->gate.out, op->gate.out->width, batch));
    default:
        return EVH_BAD_PROGRAM;
    }
}

/* Rows follow each other without gaps, and every token knows its row and position; or there are no
 * rows, and operations that need them refuse the batch. */
static int32_t check_rows(const evh_batch *batch)
{
    int64_t token = 0;
    if (batch->num_tokens < 0 || batch->num_rows < 0 || batch->table_width < 0)
        return EVH_BAD_ROWS;
    for (int64_t row = 0; row < batch->num_rows; row++) {
        int64_t past = batch->row_starts[row + 1];
        if (batch->row_starts[row] != token || past < token || past > batch->num_tokens ||
            batch->first_positions[row] < 0)
            return EVH_BAD_ROWS;
        for (int64_t position = batch->first_positions[row]; token < past; token++, position++)
            if (batch->rows[token] != row || batch->positions[token] != position)
                return EVH_BAD_ROWS;
    }
    return batch->num_rows && token != batch->num_tokens ? EVH_BAD_ROWS : EVH_OK;
}

int32_t evh_check(const evh_program *program, const evh_batch *batch)
{
    int32_t error = check_rows(batch);
    for (int64_t i = 0; i < program->num_ops && !error; i++)
        error = check_op(&program->ops[i], batch, program->num_groups);
    return error;
}
