/* Loading: every wanted tensor once, packed as the kernels read it. */
#include "model/weights.h"

#include "base/hash.h"
#include "model/fingerprint.h"
#include "model/tensors.h"
#include "model/weight_stream.h"

enum { READ_BYTES = 1 << 20 };

typedef struct loader {
    const sl_gguf *gguf;
    sl_weights *weights;
    uint8_t *buffer; /* READ_BYTES or one panel, whichever is more */
    size_t buffer_bytes;
    sl_weights_progress progress;
    void *arg;
    uint64_t done_bytes, total_bytes;
    bool takes_sums;
    sl_fingerprint *fingerprint; /* of everything that is read */
} loader;

static sl_status advance(loader *l, size_t bytes, sl_err *err)
{
    l->done_bytes += bytes;
    if (l->progress && !l->progress(l->arg, l->done_bytes, l->total_bytes))
        return sl_err_set(err, SL_CANCELLED, "cancelled while loading the model");
    return SL_OK;
}

/* Rows [first_out, + n_out) of the tensor; without a place for them they are looked at all the same. sums: of their
 * panels; NULL: not wanted. */
static sl_status load_rows(loader *l, const sl_gguf_tensor *tensor, size_t first_out, const sl_matrix *matrix,
                           sl_err *err)
{
    sl_status status = SL_OK;
    size_t row = sl_wtype_row_bytes(matrix->type, matrix->n_in);
    size_t rows_at_once = l->buffer_bytes / row / SL_PANEL * SL_PANEL;
    for (size_t first = 0; status == SL_OK && first < matrix->n_out; first += rows_at_once) {
        size_t n = matrix->n_out - first < rows_at_once ? matrix->n_out - first : rows_at_once;
        status = sl_gguf_read(l->gguf, tensor, (uint64_t)(first_out + first) * row, n * row, l->buffer, err);
        if (status != SL_OK)
            break;
        sl_fingerprint_add(l->fingerprint, l->buffer, n * row);
        for (size_t r = 0; r < n; r += SL_PANEL) {
            size_t w = n - r < SL_PANEL ? n - r : SL_PANEL;
            if (matrix->sums)
                matrix->sums[(first + r) / SL_PANEL] = sl_hash(l->buffer + r * row, w * row);
            if (matrix->packed)
                sl_weight_pack_panel(matrix->type, matrix->packed + (first + r) * row, l->buffer + r * row, w,
                                     matrix->n_in);
        }
        status = advance(l, n * row, err);
    }
    return status;
}

/* A stack's matrices are packed each by itself: a panel never holds rows of two. */
static sl_status load_matrix(loader *l, const sl_gguf_tensor *tensor, const sl_tensor_want *want, sl_matrix *matrix,
                             sl_err *err)
{
    sl_status status = SL_OK;
    if (l->takes_sums)
        status = sl_mem_new(l->weights->budget, sl_matrix_n_panels(matrix), sizeof *matrix->sums,
                            "checksums of weights", &matrix->sums, err);
    if (status == SL_OK && matrix->stays)
        status = sl_mem_map(l->weights->budget, matrix->bytes, want->name, &matrix->packed, err);
    matrix->is_own = matrix->packed != NULL;
    for (size_t i = 0; status == SL_OK && i < matrix->n_stacked; i++) {
        const sl_matrix one = sl_matrix_of_stack(matrix, i);
        status = load_rows(l, tensor, want->first_out + i * matrix->n_out, &one, err);
    }
    return status;
}

static sl_status load_vector(loader *l, const sl_gguf_tensor *tensor, const sl_tensor_want *want, float **vector,
                             sl_err *err)
{
    size_t bytes = want->n_in * sizeof **vector;
    sl_status status = sl_mem_new(l->weights->budget, want->n_in, sizeof **vector, want->name, vector, err);
    if (status == SL_OK)
        status = sl_gguf_read(l->gguf, tensor, 0, bytes, *vector, err);
    if (status == SL_OK) {
        sl_fingerprint_add(l->fingerprint, *vector, bytes);
        status = advance(l, bytes, err);
    }
    return status;
}

static sl_matrix *matrix_of(void *owner, const sl_tensor_want *want)
{
    return (sl_matrix *)(void *)((char *)owner + want->off);
}

static float **vector_of(void *owner, const sl_tensor_want *want)
{
    return (float **)(void *)((char *)owner + want->off);
}

static sl_status load_wants(loader *l, const sl_tensor_wants *wants, void *owner, sl_err *err)
{
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < wants->n; i++) {
        const sl_tensor_want *want = &wants->items[i];
        const sl_gguf_tensor *tensor;
        sl_wtype type = SL_WTYPE_F32;
        status = sl_tensor_want_find(l->gguf, want, &tensor, &type, err);
        if (status != SL_OK || !tensor)
            continue;
        sl_fingerprint_add_tensor(l->fingerprint, tensor);
        status = want->n_out ? load_matrix(l, tensor, want, matrix_of(owner, want), err)
                             : load_vector(l, tensor, want, vector_of(owner, want), err);
    }
    return status;
}

static sl_status check_divisors(const loader *l, const char *name, const float *divisors, sl_err *err)
{
    for (uint32_t i = 0; divisors && i < l->weights->hp.rope.dims / 2; i++)
        if (!(divisors[i] >= 1e-3f && divisors[i] <= 1e6f))
            return sl_err_set(err, SL_DAMAGED, "%s: %s[%u] is %g, expected 0.001 to 1e6", sl_gguf_path(l->gguf), name,
                              i, (double)divisors[i]);
    return SL_OK;
}

static sl_status load_all(loader *l, sl_err *err)
{
    sl_weights *weights = l->weights;
    sl_tensor_wants wants;
    sl_tensor_wants_of_model(&weights->hp, &wants);
    sl_status status = load_wants(l, &wants, weights, err);
    for (uint32_t i = 0; status == SL_OK && i < weights->hp.n_layers; i++) {
        sl_tensor_wants_of_layer(&weights->hp, i, &wants);
        status = load_wants(l, &wants, &weights->layers[i], err);
    }
    if (status == SL_OK)
        status = check_divisors(l, "rope_freqs.weight", weights->rope_factors, err);
    if (status == SL_OK)
        status = check_divisors(l, "rope_factors_long.weight", weights->rope_long, err);
    return status == SL_OK ? check_divisors(l, "rope_factors_short.weight", weights->rope_short, err) : status;
}

size_t sl_weights_buffer_bytes(const sl_hparams *hp)
{
    size_t longest = hp->n_embd > hp->n_ff ? hp->n_embd : hp->n_ff;
    if (longest < (size_t)hp->n_heads * hp->head_dim)
        longest = (size_t)hp->n_heads * hp->head_dim;
    /* One that is read by whole sectors may lie across one more at either end. */
    size_t panel = SL_PANEL * longest * sizeof(float) + 2 * SL_SECTOR_BYTES;
    return panel > READ_BYTES ? panel : READ_BYTES;
}

/* --------------------------------------------------------------------------------------------------- describing */

static void describe_matrix(const sl_gguf_tensor *tensor, const sl_tensor_want *want, sl_wtype type, sl_matrix *out)
{
    const size_t row = sl_wtype_row_bytes(type, want->n_in);
    *out = (sl_matrix){
        .type = type,
        .n_out = want->n_out,
        .n_in = want->n_in,
        .n_stacked = want->n_stacked,
        .bytes = row * want->n_out * want->n_stacked,
        .file_off = tensor->file_off + (uint64_t)want->first_out * row,
        .part = tensor->part,
        .stays = true,
    };
}

/* Types, shapes and places of what is wanted, and the memory that is fixed. */
static sl_status describe_wants(sl_weights *weights, const sl_gguf *gguf, const sl_tensor_wants *wants, void *owner,
                                sl_err *err)
{
    enum { HEAP_HEAD = 32 };
    sl_status status = SL_OK;
    for (size_t i = 0; status == SL_OK && i < wants->n; i++) {
        const sl_tensor_want *want = &wants->items[i];
        const sl_gguf_tensor *tensor;
        sl_wtype type = SL_WTYPE_F32;
        status = sl_tensor_want_find(gguf, want, &tensor, &type, err);
        if (status != SL_OK || !tensor)
            continue;
        if (want->n_out == 0) {
            weights->fixed_bytes += want->n_in * sizeof(float) + HEAP_HEAD;
            weights->bytes += want->n_in * sizeof(float);
            continue;
        }
        sl_matrix *matrix = matrix_of(owner, want);
        describe_matrix(tensor, want, type, matrix);
        weights->fixed_bytes += sl_matrix_n_panels(matrix) * sizeof *matrix->sums + HEAP_HEAD;
        weights->bytes += matrix->bytes;
    }
    return status;
}

static sl_status describe_all(sl_weights *weights, const sl_gguf *gguf, sl_err *err)
{
    sl_tensor_wants wants;
    sl_tensor_wants_of_model(&weights->hp, &wants);
    sl_status status = describe_wants(weights, gguf, &wants, weights, err);
    weights->output = weights->own_output.bytes > 0 ? &weights->own_output : &weights->embedding;
    for (uint32_t i = 0; status == SL_OK && i < weights->hp.n_layers; i++) {
        sl_tensor_wants_of_layer(&weights->hp, i, &wants);
        status = describe_wants(weights, gguf, &wants, &weights->layers[i], err);
        weights->fixed_bytes += (weights->layers[i].router.bytes + SL_MEM_ALIGN - 1) / SL_MEM_ALIGN * SL_MEM_ALIGN;
    }
    weights->fixed_bytes += sl_gguf_reader_memory(weights->n_files) + weights->hp.n_layers * sizeof(sl_layer_weights) +
                            sizeof *weights;
    return status;
}

/* The weights as described, nothing read. */
static sl_status describe(const sl_gguf *gguf, sl_budget *budget, sl_weights **out, sl_err *err)
{
    sl_hparams hp;
    sl_weights *weights = NULL;
    sl_status status = sl_hparams_read(gguf, &hp, err);
    if (status == SL_OK)
        status = sl_weights_check(gguf, &hp, err);
    if (status == SL_OK)
        status = sl_mem_new(budget, 1, sizeof *weights, "weights", &weights, err);
    if (status != SL_OK)
        return status;
    weights->budget = budget;
    weights->hp = hp;
    for (size_t i = 0; i < sl_gguf_n_tensors(gguf); i++)
        if (sl_gguf_tensor_at(gguf, i)->part >= weights->n_files)
            weights->n_files = sl_gguf_tensor_at(gguf, i)->part + 1;
    status = sl_mem_new(budget, hp.n_layers, sizeof *weights->layers, "weights", &weights->layers, err);
    if (status == SL_OK)
        status = describe_all(weights, gguf, err);
    if (status != SL_OK) {
        sl_weights_destroy(weights);
        return status;
    }
    *out = weights;
    return SL_OK;
}

/* ------------------------------------------------------------------------------------------------------- loading */

static sl_status read_all(loader *l, sl_err *err)
{
    sl_budget *budget = l->weights->budget;
    for (size_t i = 0; i < sl_gguf_n_tensors(l->gguf); i++)
        l->total_bytes += sl_gguf_tensor_at(l->gguf, i)->bytes;
    l->buffer_bytes = sl_weights_buffer_bytes(&l->weights->hp);
    sl_status status = sl_mem_map(budget, l->buffer_bytes, "weight reading buffer", &l->buffer, err);
    if (status == SL_OK)
        status = sl_fingerprint_create(&l->weights->hp, budget, &l->fingerprint, err);
    if (status == SL_OK)
        status = load_all(l, err);
    if (status == SL_OK)
        sl_fingerprint_get(l->fingerprint, l->weights->fingerprint);
    sl_fingerprint_destroy(l->fingerprint, budget);
    sl_mem_unmap(budget, l->buffer, l->buffer_bytes);
    return status;
}

static sl_status finish(sl_status status, sl_weights *weights, sl_weights **out)
{
    if (status != SL_OK)
        sl_weights_destroy(weights);
    *out = status == SL_OK ? weights : NULL;
    return status;
}

sl_status sl_weights_load(const sl_gguf *gguf, sl_budget *budget, sl_weights_progress progress, void *arg,
                          sl_weights **out, sl_err *err)
{
    *out = NULL;
    loader l = {.gguf = gguf, .progress = progress, .arg = arg};
    sl_status status = describe(gguf, budget, &l.weights, err);
    return status == SL_OK ? finish(read_all(&l, err), l.weights, out) : status;
}

sl_status sl_weights_open(const sl_gguf *gguf, const sl_weights_options *options, sl_weights **out, sl_err *err)
{
    *out = NULL;
    loader l = {.gguf = gguf, .progress = options->progress, .arg = options->arg, .takes_sums = true};
    sl_weight_share share;
    sl_status status = describe(gguf, options->budget, &l.weights, err);
    if (status != SL_OK || options->only_describe)
        return finish(status, l.weights, out);
    sl_weights_choose(l.weights, options->room_bytes, &share);
    status = sl_weight_stream_create(l.weights, gguf, options, err);
    return finish(status == SL_OK ? read_all(&l, err) : status, l.weights, out);
}

static void free_wants(sl_budget *budget, const sl_tensor_wants *wants, void *owner)
{
    for (size_t i = 0; i < wants->n; i++) {
        const sl_tensor_want *want = &wants->items[i];
        if (want->n_out) {
            const sl_matrix *matrix = matrix_of(owner, want);
            if (matrix->is_own)
                sl_mem_unmap(budget, matrix->packed, matrix->bytes);
            sl_mem_free(budget, matrix->sums);
        } else {
            sl_mem_free(budget, *vector_of(owner, want));
        }
    }
}

void sl_weights_destroy(sl_weights *weights)
{
    if (!weights)
        return;
    sl_budget *budget = weights->budget;
    sl_tensor_wants wants;
    sl_weight_stream_destroy(weights);
    for (uint32_t i = 0; weights->layers && i < weights->hp.n_layers; i++) {
        sl_tensor_wants_of_layer(&weights->hp, i, &wants);
        free_wants(budget, &wants, &weights->layers[i]);
    }
    sl_tensor_wants_of_model(&weights->hp, &wants);
    free_wants(budget, &wants, weights);
    sl_mem_free(budget, weights->layers);
    sl_mem_free(budget, weights);
}

sl_matrix sl_matrix_of_stack(const sl_matrix *stack, size_t index)
{
    sl_matrix one = *stack;
    one.n_stacked = 1;
    one.bytes = stack->bytes / stack->n_stacked;
    if (stack->packed)
        one.packed = stack->packed + index * one.bytes;
    if (stack->sums)
        one.sums = stack->sums + index * ((stack->n_out + SL_PANEL - 1) / SL_PANEL);
    return one;
}

const float *sl_weights_rope_divisors(const sl_weights *weights, sl_rope_kind kind)
{
    if (kind == SL_ROPE_KIND_LONG_SHORT)
        return weights->rope_short;
    return kind == SL_ROPE_KIND_LONG_LONG ? weights->rope_long : weights->rope_factors;
}
