/* A context of the public API, inside: shared by context.c (making, feeding), generate.c, score.c and save.c. */
#ifndef SL_API_CONTEXT_H
#define SL_API_CONTEXT_H

#include "api/engine.h"
#include "decode/model_drafter.h"
#include "decode/session.h"
#include "model/weight_stream.h"

/* FRESH -feed-> FED -feed-> FED -generate-> DONE; FRESH -score-> DONE.
 * With talk or keep: FED -generate-> DRAWN -feed or settle-> FED.
 * With talk:         FED, DRAWN -rewind-> DRAWN or FRESH.
 * With keep:         FRESH, FED, DRAWN -keep-> DONE.
 * An error: BROKEN, which can be destroyed only (some layers may hold rows that others lack); with talk, where the rows
 * could be taken back, DRAWN. */
typedef enum sl_context_state {
    SL_CONTEXT_STATE_FRESH, /* nothing was fed; a file's tokens may be there */
    SL_CONTEXT_STATE_FED,   /* the last token's logits are there */
    SL_CONTEXT_STATE_DRAWN, /* they are not; the last tokens may not be stored */
    SL_CONTEXT_STATE_DONE,
    SL_CONTEXT_STATE_BROKEN
} sl_context_state;

struct sl_context {
    sl_engine *engine;
    sl_context_state state;
    sl_context_options options; /* as planned, without kv_dir */
    sl_io_profile io;           /* of the disk that the cache is on */
    bool has_io, has_store;
    sl_session *session;
    sl_model_drafter *model_drafter; /* NULL: none */
    sl_plan plan;
    sl_kv_layer *layers; /* [n_layers] of the geometry */
    int64_t cached_bytes; /* of the file that it starts with, in the page cache, before; -1 unknown */
    sl_weights_stats weights_before; /* when it was made */
    sl_stats stats; /* as far as the session does not know them */
};

/* SL_USAGE unless the context is in one of the states whose bits (1 << state) are set in `states`. `what` names the
 * call. */
sl_status sl_context_expect(const sl_context *context, unsigned states, const char *what, sl_err *err) SL_CHECK;

/* Whether it goes on after an answer. */
bool sl_context_talks(const sl_context *context);

/* What it is after a call that has changed the session; an error leaves only a talk that could be put right. */
sl_context_state sl_context_state_after(const sl_context *context, sl_status status);

/* Feeds, in a state that was checked; n may be 0. The context's state and stats follow. SL_USAGE, and nothing changed,
 * for ids that the vocabulary has not. */
sl_status sl_context_feed_watched(sl_context *context, const int32_t *ids, size_t n, const sl_feed_watch *watch,
                                  sl_err *err) SL_CHECK;

#endif
