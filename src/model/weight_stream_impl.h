/* Inside the stream of weights: weight_stream.c decides what stays, what comes and when; weight_pack.c checks and
 * packs; weight_rows.c reads single rows of an embedding. */
#ifndef SL_WEIGHT_STREAM_IMPL_H
#define SL_WEIGHT_STREAM_IMPL_H

#include "gguf/gguf_reader.h"
#include "model/weight_stream.h"

enum { SL_UNIT_PIECES = 8 };

/* A matrix, or some rows of the output projection, in the buffers. */
typedef struct sl_held_piece {
    sl_matrix *matrix;
    size_t first, n;            /* panels */
    size_t raw_off, packed_off; /* in the buffers */
    size_t slot;                /* once it was asked for */
} sl_held_piece;

/* What is read and held together: a layer's matrices that do not stay, or a slice of the output projection. */
typedef struct sl_held_unit {
    int64_t id; /* layers, then slices; SL_NO_UNIT */
    size_t n, n_asked, n_taken;
    sl_held_piece pieces[SL_UNIT_PIECES];
} sl_held_unit;

enum { SL_NO_UNIT = -1 };

struct sl_weight_stream {
    sl_gguf_reader *reader;
    const sl_log *log;
    bool is_set; /* all is as `share` says */
    sl_weight_share share;
    size_t map_bytes;
    uint64_t taken_bytes; /* of the budget, for buffers and queues; the share counts the queues' most */
    uint8_t *raw, *packed, *lanes; /* lanes: behind raw, in its mapping */
    sl_held_unit now; /* being packed, or held */
    sl_held_unit coming;
};

/* Panels of a matrix from raw, as the file has them, to packed. SL_DAMAGED for other bytes than when the model was
 * loaded. pool: NULL: alone. */
sl_status sl_weight_pack(const sl_weights *weights, const sl_held_piece *piece, const uint8_t *raw, uint8_t *packed,
                         sl_pool *pool, sl_err *err) SL_CHECK;

/* SL_OK, or that the last sl_weights_set_room failed half way: then a matrix may be neither in memory nor read. */
sl_status sl_weight_expect_set(const sl_weights *weights, sl_err *err) SL_CHECK;

/* SL_FAILED and SL_DAMAGED, naming tensor and file. */
sl_status sl_weight_say_unread(const sl_weights *weights, const sl_matrix *matrix, const sl_err *cause, sl_err *err);
sl_status sl_weight_say_changed(const sl_weights *weights, const sl_matrix *matrix, size_t panel, sl_err *err);

#endif
