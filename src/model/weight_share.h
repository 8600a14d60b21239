/* Which weights stay in memory where not all can, and what the others cost. Pure arithmetic over the matrices' sizes.
 *
 * Norms, biases and routers always stay. Then, as long as there is room: the output projection (and with it an
 * embedding that is the same tensor), one matrix after the other of every layer, so that all layers read alike and
 * the buffers, which hold what the layer with the most reads, are small; last an embedding of its own, of which a pass
 * reads a few rows only.
 *
 * Thread rule: one thread at a time; sl_weights_choose writes `stays` of every matrix. */
#ifndef SL_WEIGHT_SHARE_H
#define SL_WEIGHT_SHARE_H

#include "gguf/gguf_reader.h"
#include "model/weights.h"

typedef struct sl_weight_share {
    uint64_t memory_bytes;   /* of the budget, all in all */
    uint64_t resident_bytes; /* of the matrices that stay */
    uint64_t buffer_bytes;   /* of the budget: buffers and queues; 0: nothing is read */
    /* Read from flash: by a pass through the layers, for the logits of up to SL_GRAPH_LOGIT_ROWS rows, and for each
     * row's embedding, at most. */
    uint64_t pass_bytes, logit_bytes, row_bytes;
    size_t raw_bytes, packed_bytes; /* of the buffers: as read, as computed with */
    size_t lane_bytes, n_lanes;     /* for embeddings: a panel as the file has it, and the row packed */
    size_t slice_panels;            /* of the output projection, read at a time; 0: it stays */
} sl_weight_share;

/* The most that fits `room_bytes`; where nothing does, that nothing stays. */
void sl_weights_choose(sl_weights *weights, uint64_t room_bytes, sl_weight_share *out);
/* The least room in which something does: of a model that is smaller than buffers would be, with all of it. */
uint64_t sl_weights_least(sl_weights *weights);

/* The matrices that need not stay, of a layer: NULL behind the last. */
sl_matrix *sl_weights_layer_matrix(const sl_weights *weights, uint32_t layer, size_t i);
/* Of the model: the output projection, then an embedding that is not the same. */
sl_matrix *sl_weights_model_matrix(const sl_weights *weights, size_t i);

/* Panels of a matrix, those of a stack counted on; the first row of one, or, behind the last, all rows. */
size_t sl_matrix_n_panels(const sl_matrix *matrix);
size_t sl_matrix_panel_row(const sl_matrix *matrix, size_t panel);
/* Where panels [first, + n) lie in the file. */
sl_gguf_range sl_matrix_range(const sl_matrix *matrix, size_t first, size_t n);

#endif
