/* A session that is fed, asked and taken back at random, beside what a fresh one makes of the same tokens. */
#ifndef TEST_TALK_RIG_H
#define TEST_TALK_RIG_H

#include "common/effort.h"
#include "common/tiny_run.h"
#include "store/durable.h"

enum {
    TALK_MOST = EFFORT_IS_SMALL ? 2600 : 5200, /* tokens of a context */
    TALK_MOST_FED = 700,
    TALK_MOST_DRAWN = 60
};

typedef struct talk {
    tiny_run *run;
    sl_pool *pool;
    sl_session *session;
    sl_durable *durable;
    char path[256];
    sl_kv_type type;
    size_t max_drafts, commit_tokens;
    size_t n_recomputed; /* tokens that rewinds left to be computed again */
    sl_slide slide; /* of sessions that are not kept; set after the start */
    uint64_t random;
    long asks_left;        /* of `stop`, before it says yes; negative: never */
    uint64_t hashes[TALK_MOST]; /* of each position's logits, as they were seen; 0: a burst stored that token */
    const char *doing;
} talk;

typedef struct talk_answer {
    int32_t ids[TALK_MOST_DRAWN];
    size_t n, most; /* most: the callback stops behind so many */
} talk_answer;

extern const tiny_ways talk_plain_ways;

uint64_t talk_seed(void); /* SLUICE_TEST_SEED, or always the same */
uint64_t talk_draw(talk *t, uint64_t n); /* below n */
void talk_start(talk *t, tiny_run *run, sl_kv_type type, uint64_t seed);
void talk_must(const talk *t, sl_status status, const sl_err *err);

/* Over t->durable, if it is there. */
void talk_open_session(talk *t, const tiny_ways *ways, bool keep, uint64_t durable_tokens);
void talk_close_session(talk *t); /* and the file */
void talk_create_file(talk *t, const char *path);
void talk_open_file(talk *t, const char *path, bool for_writing);
/* A finished file of these tokens, in one go. */
void talk_prefill_file(talk *t, const char *path, const int32_t *ids, size_t n);
void talk_expect_same_files(const talk *t, const char *a, const char *b);

void talk_make_tokens(talk *t, int32_t *out, size_t n);
/* n tokens; stopped by the `asks`-th question, 0: not. */
void talk_feed(talk *t, size_t n, long asks);
/* out->most is the caller's. */
sl_generate_result talk_generate(talk *t, sl_session *session, size_t n_predict, size_t drafts, uint64_t seed,
                                 talk_answer *out);
/* An answer to what was fed, stopped behind `most` tokens (0: not) or by the `asks`-th question; then compared. */
void talk_ask(talk *t, size_t n_predict, size_t most, long asks);
/* Near n, at an edge of tile or part, anywhere below; `least` at least. */
size_t talk_place(talk *t, size_t least, size_t n);
/* Any of what a conversation does. */
void talk_take_turn(talk *t);

#endif
