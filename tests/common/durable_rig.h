/* A context file beside its plain model in memory, for the tests of contexts that survive. */
#ifndef TEST_DURABLE_RIG_H
#define TEST_DURABLE_RIG_H

#include "common/kv_model.h"
#include "store/durable.h"

enum { DURABLE_RIG_PATH = 256, DURABLE_RIG_TOKENS = 10000 };

typedef struct durable_rig {
    sl_budget budget;
    kv_model model; /* holds all tokens that will ever be appended */
    uint64_t n_all;
    int32_t ids[DURABLE_RIG_TOKENS];
    char path[DURABLE_RIG_PATH], other[DURABLE_RIG_PATH];
    sl_durable *durable;
    sl_kv *kv;
} durable_rig;

extern const sl_identity durable_rig_identity;

const char *durable_test_dir(void);
void durable_must(sl_status status, const sl_err *err);
uint64_t durable_seed(void);

/* A random geometry; n_all tokens, 0: a random number. No file is made. */
void durable_rig_start(durable_rig *b, uint64_t seed, uint64_t n_all);
void durable_rig_stop(durable_rig *b);

void durable_rig_create_file(durable_rig *b, const char *path);
void durable_rig_open_file(durable_rig *b, const char *path, bool for_writing);
/* Over the open file; a random share may stay in memory. */
void durable_rig_open_kv(durable_rig *b, bool keep);
void durable_rig_open_prefix(durable_rig *b, uint64_t n_tokens); /* of the file's; to read */
void durable_rig_close(durable_rig *b);
/* All n_all tokens in one go, without a commit but at the end. */
void durable_rig_build(durable_rig *b, const char *path);

uint8_t *durable_rig_groups(const durable_rig *b, uint32_t layer, uint64_t token);
/* The next n tokens of the model to every layer. */
void durable_rig_append(durable_rig *b, uint64_t n);
void durable_rig_commit(durable_rig *b);

/* Somewhere at or below n > 0, often at an edge of tile, part or segment. */
uint64_t durable_rig_cut(kv_model *model, uint64_t n);

/* Two walks: with adoption the second sees other places. Whole groups and the tail are the model's. */
void durable_rig_walk(durable_rig *b, uint64_t n_tokens);
void durable_rig_check_ids(const durable_rig *b, uint64_t n_tokens);
void durable_rig_same_files(const char *a, const char *b);

#endif
