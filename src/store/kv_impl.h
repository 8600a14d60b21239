/* Inside the context: shared by kv.c, kv_durable.c and kv_cut.c. */
#ifndef SL_KV_IMPL_H
#define SL_KV_IMPL_H

#include "store/durable.h"
#include "store/kv.h"
#include "store/kvfile.h"
#include "store/parts.h"
#include "store/stream.h"
#include "store/writer.h"

struct sl_kv {
    sl_budget *budget;
    sl_geom geom;
    sl_kv_layer *layers;
    char *dir;
    sl_parts parts;
    sl_kvfile file;
    sl_stream *stream;
    sl_writer *writer;
    sl_durable *durable;  /* borrowed; NULL: ephemeral */
    uint64_t base_tokens; /* of it, that are taken over */
    bool keeps;           /* what is appended goes to the durable file */
    bool is_never_walked;
    bool is_lost;         /* cutting it short failed half way */
};

/* Memory that taking over takes while it lasts. */
size_t sl_kv_load_bytes(const sl_geom *geom);
/* Takes over what the durable file holds: whole parts as they lie, the open part and the tail by way of the writer. */
sl_status sl_kv_load(sl_kv *kv, sl_err *err) SL_CHECK;

/* The full tile groups of a stored part, verified; borrowed from `room` (a part of memory: after sl_stream_pause, what
 * that gave), or from where they stay. */
sl_status sl_kv_fetch(sl_kv *kv, uint32_t layer, uint64_t part, uint8_t *room, const uint8_t **groups,
                      sl_err *err) SL_CHECK;
/* Whether the parts of a layer are there that rows behind its first n_tokens see, and the one that these end in. */
bool sl_kv_has_window(const sl_kv *kv, uint32_t layer, uint64_t n_tokens);
/* SL_OK, or that it is lost. */
sl_status sl_kv_check_whole(const sl_kv *kv, sl_err *err) SL_CHECK;

#endif
