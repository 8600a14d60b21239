/* Inside a session: shared by session.c (making, feeding, taking back) and burst.c (drawing). */
#ifndef SL_SESSION_IMPL_H
#define SL_SESSION_IMPL_H

#include "decode/draft_guesses.h"
#include "decode/ngram.h"
#include "decode/self_drafter.h"
#include "decode/session.h"

struct sl_session {
    sl_session_options options;
    sl_kv *kv;
    sl_graph *graph; /* of windows or of bursts; NULL: could not be made */
    bool bursting;
    bool is_broken;          /* layers differ: nothing can be computed any more */
    uint64_t reserved_bytes; /* what the other kind of pass needs beyond the graph's memory */
    sl_ngram *ngram; /* NULL: none */
    sl_self *self;   /* likewise */
    sl_drafter drafters[SL_MAX_DRAFTERS]; /* its own, then those of the options */
    size_t n_drafters;
    /* the burst under way, and what bursts have taught so far */
    sl_draft_plan plan;
    sl_guesses guesses;
    sl_burst_rows rows;
    int32_t *history; /* [max_tokens + 1] every token, fed or drawn */
    size_t n_history;
    size_t n_stored; /* tokens whose K and V are in the store; those behind are fed first by the next feed */
    float *logits;   /* [SL_GRAPH_LOGIT_ROWS][n_vocab]; after a feed, row 0 is the last row's */
    bool has_logits;
    /* the feed under way, for progress between layers */
    const sl_feed_watch *watch;
    bool keeping;
    double rate; /* tokens a second of the last window; 0: unknown */
    double window_at_s, committed_at_s;
    size_t n_committed, keep_all;
    size_t keep_from; /* of the tokens that a keep under way began behind */
    size_t feed_done, feed_total, window_rows;
    uint32_t layers_done;
};

/* Makes the graph the one of bursts, or of windows. What either needs has been taken from the budget at the beginning,
 * except that without `talks` a session that bursts never goes back. */
sl_status sl_session_set_bursting(sl_session *session, bool on, sl_err *err) SL_CHECK;

/* After a pass that was given up or failed: every layer has the first n tokens, at most n_stored, and nothing else; or
 * the session is broken. */
void sl_session_take_back(sl_session *session, size_t n);

/* sl_session_options.stop, asked; arg: the session. */
bool sl_session_is_stopped(void *arg);

#endif
