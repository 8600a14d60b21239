/* Weights that stay on flash: read, checked and packed when a pass comes to them, one layer behind the other.
 *
 *   raw buffer      the next layer's bytes as the file has them, on their way while this layer computes
 *   packed buffer   this layer's, as the kernels read them
 *
 * Between two layers the pool checks and packs panel by panel; as soon as a matrix has left the raw buffer, what will
 * take its place is asked for. A matrix in the packed buffer has the very bytes that it would have had in memory since
 * loading, so no bit depends on what stays.
 *
 * Owns: buffers, queues, and what is in flight. Refuses: bytes that are not those of loading, by the checksum of each
 * panel, naming tensor and file. Thread rule: the thread that drives passes, of all graphs over the weights in turn. */
#ifndef SL_WEIGHT_STREAM_H
#define SL_WEIGHT_STREAM_H

#include "base/thread.h"
#include "model/weight_share.h"

/* From now on as sl_weights_choose chooses for that room: drops what need not stay, makes buffers, reads what shall
 * stay and is not there. What was held is no more. After an error some of both, and passes give SL_FAILED: another call
 * may set it right. Only weights of sl_weights_open. */
sl_status sl_weights_set_room(sl_weights *weights, uint64_t room_bytes, sl_weight_share *out, sl_err *err) SL_CHECK;

/* What the weights take of the budget now. */
uint64_t sl_weights_memory(const sl_weights *weights);

/* What a pass will come to when it is through the layers. */
typedef struct sl_weights_ahead {
    bool has_logits; /* the logits of some rows */
    bool has_pass;   /* another pass */
} sl_weights_ahead;

/* The layer's matrices are in memory until the next call for another layer or for a slice. Errors: SL_FAILED (cannot be
 * read), SL_DAMAGED (other bytes than before); nothing is held then, and the call can be made again. */
sl_status sl_weights_hold(const sl_weights *weights, uint32_t layer, sl_weights_ahead ahead, sl_pool *pool,
                          sl_err *err) SL_CHECK;

/* Rows [*first, + out->n_out) of the output projection, slice by slice from 0 on; false: there are no more. */
bool sl_weights_has_slice(const sl_weights *weights, size_t slice);
/* ahead.has_logits: behind the last slice the first one comes again, for other rows. */
sl_status sl_weights_hold_slice(const sl_weights *weights, size_t slice, sl_weights_ahead ahead, sl_pool *pool,
                                sl_matrix *out, size_t *first, sl_err *err) SL_CHECK;

/* Rows of the embedding that ids name: out[n][n_embd]. */
sl_status sl_weights_embed(const sl_weights *weights, const int32_t *ids, size_t n, float *out, sl_pool *pool,
                           sl_err *err) SL_CHECK;

typedef struct sl_weights_stats {
    uint64_t bytes_read; /* from flash, since loading */
    double wait_s;       /* the driving thread waited for them */
    bool is_direct;
} sl_weights_stats;
void sl_weights_get_stats(const sl_weights *weights, sl_weights_stats *out);

/* Inside the weights: made by sl_weights_open, before anything is known of what stays. */
sl_status sl_weight_stream_create(sl_weights *weights, const sl_gguf *gguf, const sl_weights_options *options,
                                  sl_err *err) SL_CHECK;
void sl_weight_stream_destroy(sl_weights *weights);

#endif
