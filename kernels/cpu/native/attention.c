/* Paged attention: keys and values are read in their pages, any mix of rows in one call.
 *
 * A tile is up to EVH_TILE consecutive tokens of one row; with one key/value head and the query
 * heads that share it, it is an item of work, so that a page is read once for all of them. The
 * softmax is computed online (Milakov and Gimelshein, 2018) over spans of whole pages that begin at
 * multiples of a fixed number of positions. What a token adds up, and in which order, follows from
 * its position, the window and the page size: its result has the same bits in any tile, chunk or
 * batch. Only what it sees enters its result, so hidden slots may hold anything.
 *
 * Queries are counted by token, then by head: query i * shared + h is head h of the tile's token i.
 */
#include <float.h>
#include <math.h>

#include "kernels.h"
#include "multiply.h"
#include "vec_math.h"

enum { SPAN_POSITIONS = 128 }; /* about so many; whole pages, one at least */

/* What an item works on. */
typedef struct {
    const evh_pages *pages;
    const int32_t *table; /* the row's pages */
    int64_t kv_head;
    int64_t shared;   /* query heads per key/value head */
    int64_t token;    /* the tile's first token: its place in the batch, */
    int64_t position; /* and in its sequence */
    int64_t count;    /* tokens of the tile */
    int64_t window;   /* positions seen, full attention's too */
    float *queries;   /* [queries, D], times scale */
    float *sums;      /* [queries, D]: values times weights, relative to `tops` */
    float *scores;    /* [queries, stride]: of a span; later weights */
    float *tops;      /* [queries]: highest score so far */
    float *totals;    /* [queries]: of weights, relative to `tops` */
    int64_t width;    /* positions in a span */
    int64_t stride;   /* that, in whole vectors */
} item;

/* Indices first up to past. */
typedef struct {
    int64_t first;
    int64_t past;
} range;

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t span_width(int64_t page_size)
{
    return max(1, SPAN_POSITIONS / page_size) * page_size;
}

static int64_t whole_vectors(int64_t width)
{
    return (width + 7) / 8 * 8;
}

/* Which of `width` positions from `base` the tile's token i sees, counted from `base`. */
static range seen_by(const item *it, int64_t i, int64_t base, int64_t width)
{
    int64_t past = it->position + i + 1 - base;
    return (range){max(0, past - it->window), min(width, past)};
}

/* Which of the tile's tokens see any of `width` positions from `base`. */
static range tokens_seeing(const item *it, int64_t base, int64_t width)
{
    int64_t past = base + width - 1 + it->window - it->position;
    return (range){max(0, base - it->position), min(it->count, past)};
}

/* The key/value head's part of the page, of keys or values, that holds `position`. */
static const float *part_of(const item *it, const float *pages, int64_t position)
{
    int64_t page = it->table[position / it->pages->page_size];
    int64_t part = page * it->pages->num_kv_heads + it->kv_head;
    return pages + part * it->pages->head_dim * it->pages->page_size;
}

/* Scores of the page at position `at` of the span at `base`. */
static void score_page(const item *it, int64_t base, int64_t at, const float *next)
{
    int64_t size = it->pages->page_size, dim = it->pages->head_dim;
    range tokens = tokens_seeing(it, at, size);
    int64_t query = tokens.first * it->shared;
    product scores = {
        .factors = it->queries + query * dim,
        .factor_stride = dim,
        .matrix = part_of(it, it->pages->keys, at),
        .next = next,
        .matrix_stride = size,
        .out = it->scores + query * it->stride + at - base,
        .out_stride = it->stride,
        .rows = (tokens.past - tokens.first) * it->shared,
        .columns = size,
        .depth = dim,
    };
    multiply(&scores, false);
}

/* A new highest score: what was summed relative to the one before is brought in line. */
static void raise_top(const item *it, int64_t query, float top)
{
    float shrink = f32x8_exp(f32x8_splat(it->tops[query] - top))[0];
    float *sums = it->sums + query * it->pages->head_dim;
    for (int64_t d = 0; d < it->pages->head_dim; d++)
        sums[d] *= shrink;
    it->totals[query] *= shrink;
    it->tops[query] = top;
}

/* Scores of the positions seen become weights, relative to the highest score so far. */
static void fold_query(const item *it, int64_t query, range seen)
{
    float *scores = it->scores + query * it->stride;
    int64_t first = seen.first / 8 * 8, past = whole_vectors(seen.past);
    for (int64_t i = first; i < seen.first; i++)
        scores[i] = -INFINITY;
    for (int64_t i = seen.past; i < past; i++)
        scores[i] = -INFINITY;

    f32x8 highest = f32x8_splat(it->tops[query]);
    for (int64_t i = first; i < past; i += 8)
        highest = f32x8_max(f32x8_load(scores + i), highest);
    float top = f32x8_largest(highest);
    highest = f32x8_splat(top);

    f32x8 total = {0};
    for (int64_t i = first; i < past; i += 8) {
        f32x8 weights = f32x8_exp(f32x8_load(scores + i) - highest);
        f32x8_store(scores + i, weights);
        total += weights;
    }
    if (top > it->tops[query])
        raise_top(it, query, top);
    it->totals[query] += f32x8_sum(total);
}

static void fold_span(const item *it, int64_t base)
{
    range tokens = tokens_seeing(it, base, it->width);
    for (int64_t i = tokens.first; i < tokens.past; i++)
        for (int64_t h = 0; h < it->shared; h++)
            fold_query(it, i * it->shared + h, seen_by(it, i, base, it->width));
}

/* Values of the page at position `at` of the span at `base`, times weights. Tokens that see the
 * same part of it are computed together: all but those whose position or window begins inside. */
static void add_page(const item *it, int64_t base, int64_t at, const float *next)
{
    int64_t size = it->pages->page_size, dim = it->pages->head_dim;
    range tokens = tokens_seeing(it, at, size);
    for (int64_t i = tokens.first, end; i < tokens.past; i = end) {
        range seen = seen_by(it, i, at, size);
        for (end = i + 1; end < tokens.past; end++) {
            range other = seen_by(it, end, at, size);
            if (other.first != seen.first || other.past != seen.past)
                break;
        }
        product values = {
            .factors = it->scores + i * it->shared * it->stride + at - base + seen.first,
            .factor_stride = it->stride,
            .matrix = part_of(it, it->pages->values, at) + seen.first * dim,
            .next = next + seen.first * dim,
            .matrix_stride = dim,
            .out = it->sums + i * it->shared * dim,
            .out_stride = dim,
            .rows = (end - i) * it->shared,
            .columns = dim,
            .depth = seen.past - seen.first,
        };
        multiply(&values, true);
    }
}

static void start_item(const item *it, const float *qkv, int64_t num_heads, float scale)
{
    int64_t dim = it->pages->head_dim, size = it->shared * dim;
    int64_t token_size = (num_heads + 2 * it->pages->num_kv_heads) * dim;
    for (int64_t i = 0; i < it->count; i++) {
        const float *heads = qkv + (it->token + i) * token_size + it->kv_head * size;
        for (int64_t d = 0; d < size; d++) {
            it->queries[i * size + d] = heads[d] * scale;
            it->sums[i * size + d] = 0;
        }
    }
    for (int64_t query = 0; query < it->count * it->shared; query++) {
        it->tops[query] = -FLT_MAX;
        it->totals[query] = 0;
    }
}

/* Every page that some token of the tile sees, and no other, is read: its keys, and when those of
 * the span are done, its values. Each is told what comes next: pages lie anywhere in memory, where
 * the processor does not expect them. */
static void attend(const item *it)
{
    const float *keys = it->pages->keys, *values = it->pages->values;
    int64_t size = it->pages->page_size, past = it->position + it->count;
    int64_t seen = max(0, it->position + 1 - it->window);
    for (int64_t base = seen / it->width * it->width; base < past; base += it->width) {
        int64_t first = max(base, seen / size * size), end = min(base + it->width, past);
        for (int64_t at = first; at < end; at += size) {
            bool more = at + size < end;
            score_page(it, base, at, part_of(it, more ? keys : values, more ? at + size : first));
        }
        fold_span(it, base);
        for (int64_t at = first; at < end; at += size) {
            const float *next = at + size < end ? values : keys;
            add_page(it, base, at, part_of(it, next, min(at + size, past - 1)));
        }
    }
}

static void finish_item(const item *it, int64_t num_heads, float *out)
{
    int64_t dim = it->pages->head_dim;
    for (int64_t i = 0; i < it->count; i++)
        for (int64_t h = 0; h < it->shared; h++) {
            int64_t query = i * it->shared + h, head = it->kv_head * it->shared + h;
            float *to = out + ((it->token + i) * num_heads + head) * dim;
            for (int64_t d = 0; d < dim; d++)
                to[d] = it->sums[query * dim + d] / it->totals[query];
        }
}

/* Tiles are numbered so that a row's are found without counting those before it: row r's begin at
 * r + row_starts[r] / EVH_TILE, which leaves a row as many numbers as it has tiles, or one more. */
static int64_t first_tile(const evh_batch *batch, int64_t row)
{
    return row + batch->row_starts[row] / EVH_TILE;
}

static int64_t row_of_tile(const evh_batch *batch, int64_t tile)
{
    int64_t row = 0, past = batch->num_rows;
    while (past - row > 1) {
        int64_t middle = (row + past) / 2;
        if (first_tile(batch, middle) <= tile)
            row = middle;
        else
            past = middle;
    }
    return row;
}

/* Point an item at its tile's tokens; `count` is 0 or less where the number has no tile. */
static void place(item *it, const evh_batch *batch, int64_t tile)
{
    int64_t row = row_of_tile(batch, tile);
    int64_t done = (tile - first_tile(batch, row)) * EVH_TILE;
    int64_t table = it->pages->group * batch->num_rows + row;
    it->token = batch->row_starts[row] + done;
    it->count = min(EVH_TILE, batch->row_starts[row + 1] - it->token);
    it->position = batch->first_positions[row] + done;
    it->table = batch->block_tables + table * batch->table_width;
    it->window = it->pages->window ? it->pages->window : it->position + it->count;
}

int64_t evh_attention_items(const evh_batch *batch, int64_t num_kv_heads)
{
    return first_tile(batch, batch->num_rows) * num_kv_heads;
}

int64_t evh_attention_scratch(int64_t num_heads, const evh_pages *pages)
{
    int64_t queries = EVH_TILE * num_heads / pages->num_kv_heads;
    int64_t stride = whole_vectors(span_width(pages->page_size));
    return queries * (2 * pages->head_dim + stride + 2);
}

void evh_attention(const float *qkv, int64_t num_heads, float scale, const evh_pages *pages,
                   const evh_batch *batch, float *out, float *scratch, int64_t first, int64_t past)
{
    int64_t kv_heads = pages->num_kv_heads, shared = num_heads / kv_heads;
    int64_t queries = EVH_TILE * shared, width = span_width(pages->page_size);
    item it = {.pages = pages, .shared = shared, .width = width, .stride = whole_vectors(width)};
    it.queries = scratch;
    it.sums = it.queries + queries * pages->head_dim;
    it.scores = it.sums + queries * pages->head_dim;
    it.tops = it.scores + queries * it.stride;
    it.totals = it.tops + queries;
    for (int64_t i = first; i < past; i++) {
        it.kv_head = i % kv_heads;
        place(&it, batch, i / kv_heads);
        if (it.count <= 0)
            continue;
        start_item(&it, qkv, num_heads, scale);
        attend(&it);
        finish_item(&it, num_heads, out);
    }
}
