/* One text being read and continued: prefill by windows (Mode A), then bursts (Mode B).
 *
 * Owns: the token history, the context, the working memory of passes, the drafter's index. Refuses: more tokens than
 * it was made for. Thread rule: one thread drives a session.
 *
 *   create -> feed* -> generate
 *   create -> keep                             a context file gets the text
 *   create -> ( feed | generate | rewind )*    with `talks`; generate wants logits, which a feed leaves
 *   create -> ( feed | generate )* -> keep     likewise
 *
 * A session over a context file starts with the file's tokens.
 *
 * A burst is the last token and its drafts. Every position is sampled as plain decoding would; drafts are kept while
 * they are equal, so a drafter cannot change the text. */
#ifndef SL_SESSION_H
#define SL_SESSION_H

#include "decode/draft_counts.h"
#include "decode/sampler.h"
#include "model/graph.h"
#include "store/kv.h"

typedef struct sl_session sl_session;

typedef struct sl_session_options {
    const sl_weights *weights; /* borrowed, as all pointers here */
    uint64_t weight_bytes; /* that a row goes through; 0: unknown */
    const sl_kernels *kernels;
    sl_pool *pool;
    sl_budget *budget;
    sl_kv_options kv; /* geometry, ring, directory, resident share while prefilling */
    size_t max_tokens;
    size_t window_rows; /* a multiple of 64 */
    size_t max_drafts;  /* rows of a burst less one */
    bool trees;         /* drafts may branch: some memory more */
    sl_rope rope; /* dims 0: the model's own */
    bool will_decode;   /* generate follows the last feed */
    bool talks;         /* and feeds follow a generate: memory is kept for both, resident parts get none of it */
    bool ngram;         /* make the n-gram drafter */
    size_t hot_tokens;  /* of each layer and KV head, for the model's drafts for itself (self_drafter.h); 0: no such */
    /* More drafters, of the caller's making: [n_drafters], copied; what they stand for is borrowed. With the session's
     * own at most SL_MAX_DRAFTERS. */
    const sl_drafter *drafters;
    size_t n_drafters;
    double commit_s;         /* of work between two commits of a kept context, at most; 0: no limit */
    size_t commit_tokens;    /* likewise in tokens; 0: no limit */
    bool (*stop)(void *arg); /* asked between layers and parts; NULL: never */
    void *arg;
} sl_session_options;

sl_status sl_session_create(const sl_session_options *options, sl_session **out, sl_err *err) SL_CHECK;
void sl_session_destroy(sl_session *session);

/* Bytes of a session without ring and resident parts: history, logits, drafter, and the larger of window and burst
 * memory. For the plan. */
uint64_t sl_session_bytes(const sl_session_options *options);

/* What feed reports. Each may be NULL. */
typedef struct sl_feed_watch {
    void (*progress)(void *arg, size_t done_tokens, size_t total_tokens);
    /* After each window, between passes: the context has n_stored tokens. Not SL_OK ends the feed. */
    sl_status (*stored)(void *arg, size_t n_stored, sl_err *err);
    /* Every row's logits [n_vocab], in order of position; borrowed for the call. Not SL_OK ends the feed. */
    sl_status (*logits)(void *arg, uint64_t position, const float *logits, sl_err *err);
    void *arg;
} sl_feed_watch;

/* Reads n more tokens; ids in [0, n_vocab). With `talks`, what was drawn but is not stored is read before them, and n
 * may be 0. An error leaves the session as it was before, without logits, or broken: sl_session_is_whole. SL_REFUSED
 * for too many: nothing has changed. */
sl_status sl_session_feed(sl_session *session, const int32_t *ids, size_t n, const sl_feed_watch *watch,
                          sl_err *err) SL_CHECK;

/* With kv.keep: reads n more tokens, committing as it goes, commits all and finishes the file; n may be 0. After an
 * error (a stop, too) what was committed stays. */
sl_status sl_session_keep(sl_session *session, const int32_t *ids, size_t n, const sl_feed_watch *watch,
                          sl_err *err) SL_CHECK;

typedef enum sl_finish { SL_FINISH_STOP, SL_FINISH_LENGTH, SL_FINISH_CONTEXT, SL_FINISH_CANCELLED } sl_finish;

typedef struct sl_generate_options {
    sl_sampling sampling;
    size_t n_predict;
    size_t n_context;  /* no token is drawn for a position at or past it; at most max_tokens */
    size_t max_drafts; /* of a burst; at most the session's */
    bool draft_auto;   /* how many of them is chosen each burst, by what they yield; false: as many as there are */
    bool may_branch;   /* drafts may form a tree: with sl_session_options.trees */
    const sl_drafter *drafter; /* NULL: the session's own, if any */
    bool (*is_end)(void *arg, int32_t id);
    /* Every token drawn, before the other two, and the logits [n_vocab] that it was drawn from, before penalties and
     * biases; borrowed for the call. NULL: not asked for. */
    void (*drawn)(void *arg, int32_t id, const float *logits);
    /* A token of the text; false stops (cancelled). Not called for the end token. */
    bool (*token)(void *arg, int32_t id);
    void *arg;
} sl_generate_options;

typedef struct sl_generate_result {
    sl_finish finish;
    size_t n_tokens;      /* drawn, the end token included */
    size_t n_passes;      /* bursts */
    size_t n_rows;        /* verified */
    size_t n_drafted, n_accepted;
    sl_draft_counts draft;
} sl_generate_result;

/* After a feed that left logits. A stop is no error, in the middle of a pass neither: what was drawn is in the history.
 * After an error, too. */
sl_status sl_session_generate(sl_session *session, const sl_generate_options *options, sl_generate_result *out,
                              sl_err *err) SL_CHECK;

/* With `talks`, without kv.keep: forgets all but the first n tokens, at most as many as there are; a file's own, too.
 * There are no logits afterwards, unless nothing was forgotten. Where sliding layers have dropped what rows behind them
 * see, fewer are stored then (sl_session_n_stored), and the next feed computes the rest of them again. */
sl_status sl_session_rewind(sl_session *session, size_t n, sl_err *err) SL_CHECK;
/* Likewise: no token is forgotten, but the next feed computes all from `first` on again, or from somewhat before. */
sl_status sl_session_unstore(sl_session *session, size_t first, sl_err *err) SL_CHECK;

bool sl_session_has_logits(const sl_session *session);
/* False after an error that left layers with different tokens: then it can only be destroyed. */
bool sl_session_is_whole(const sl_session *session);
size_t sl_session_n_stored(const sl_session *session); /* tokens whose keys and values are stored */
sl_kv *sl_session_kv(const sl_session *session);
size_t sl_session_n_tokens(const sl_session *session);
const int32_t *sl_session_ids(const sl_session *session); /* [n_tokens] */
/* All of its drafters, whose indices the proposals' nodes and the counts have: [n]. */
const sl_drafter *sl_session_drafters(const sl_session *session, size_t *n);

#endif
