/* Context files: a text as a model has read it, kept. Making, opening, looking inside; checking, mending, copying,
 * replacing. A context (sluice.h) starts with one: sl_context_options.store. Part of sluice.h.
 * Thread rule: as an engine's contexts; without an engine, one thread drives each call. */
#ifndef SLUICE_CONTEXTS_H
#define SLUICE_CONTEXTS_H

#include <sluice/sluice.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_store_options {
    const char *path;
    bool for_writing;    /* one writer at a time, any number of readers */
    bool buffered;       /* no direct I/O */
    uint64_t max_tokens;  /* for writing: the most that it will hold; if less, what it holds */
    uint64_t more_tokens; /* and so many more than it holds */
} sl_store_options;

/* What the last commit left. engine NULL: for looking only; else closed before the engine. *out owned by caller, NULL
 * on error. SL_REFUSED: being written by another, another version. SL_DAMAGED names what is wrong. */
sl_status sl_store_open(sl_engine *engine, const sl_store_options *options, sl_store **out, sl_err *err);
/* A new file for a context of these options, of prompt_tokens + predict_tokens; holds nothing yet. *out as above.
 * SL_REFUSED when the name is taken. SL_USAGE: the engine has no weights. */
sl_status sl_store_create(sl_engine *engine, const char *path, const sl_context_options *options, sl_store **out,
                          sl_err *err);
void sl_store_close(sl_store *store);

typedef struct sl_store_info {
    uint64_t n_tokens;        /* committed */
    uint64_t intended_tokens; /* of an unfinished file */
    bool is_finished, is_chat;
    sl_cache cache;
    uint32_t n_layers, n_kv_heads, head_dim, n_vocab;
    uint64_t token_bytes; /* KV bytes of a token, all layers */
    uint32_t arithmetic_version, format_version;
    const char *model_name; /* borrowed, as ids and note, while the store is open */
    uint64_t model[2], tokenizer; /* fingerprints */
    double rope_base, rope_scale;
    uint32_t rope_dims;
    const char *rope_kind; /* "linear", "yarn", ...; static */
    sl_rope_options rope;  /* with rope_scale: what opens it where no rule of YaRN's was changed */
    const int32_t *ids; /* [n_tokens] */
    const char *note;   /* what is damaged but stands in a second copy; NULL: nothing was seen */
} sl_store_info;
void sl_store_get_info(const sl_store *store, sl_store_info *out);

typedef struct sl_store_layer {
    uint32_t n_kv_heads, head_dim;
    uint32_t span; /* tokens that a row sees, its own included; 0: all before it */
} sl_store_layer;
/* Layer `layer` of n_layers; zeros beyond them. In sl_store_info are the first one's. */
sl_store_layer sl_store_get_layer(const sl_store *store, uint32_t layer);

/* Whether the file holds the bits that a context of these options (of the engine that it was opened with) would have:
 * SL_REFUSED names the first difference with both values. */
sl_status sl_store_match(const sl_store *store, const sl_context_options *options, sl_err *err);

/* What a context file takes on its disk. */
typedef struct sl_store_space {
    uint64_t file_bytes;    /* with that many tokens, at its largest */
    uint64_t present_bytes; /* what is on the disk of it now; 0: there is no such file */
    uint64_t free_bytes;    /* of its file system; UINT64_MAX: it does not count them */
    uint64_t written_bytes; /* by sl_context_keep, about: commits that time forces come on top */
} sl_store_space;
/* For a context of this engine and these options in `path`, which may not exist (NULL: only what does not depend on
 * it). Used of the options: cache, commit_tokens, store (whose tokens need not be written). */
sl_status sl_store_get_space(sl_engine *engine, const char *path, const sl_context_options *options, uint64_t n_tokens,
                             sl_store_space *out, sl_err *err);

typedef struct sl_store_share_options {
    const sl_store *from; /* of the same identity and type */
    uint64_t n_tokens;    /* of its first tokens the whole segments (of 4,096) are taken */
    bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* false cancels; NULL: none */
    void *arg;
} sl_store_share_options;

/* What a file took over from another. */
typedef struct sl_store_shared {
    uint64_t n_tokens; /* taken over now */
    uint64_t shared_bytes, copied_bytes; /* on the disk once for both files; written anew */
} sl_store_shared;

/* `to`, open for writing, unfinished, without tokens or with whole segments of `from`, takes over those that it lacks:
 * by reference where the file system can, else as a copy whose checksums are verified. They then are committed. Nothing
 * where `to` holds a part of a segment, or is finished. SL_USAGE: of another kind than `from`. SL_DAMAGED: a part that
 * would be copied. After an error or SL_CANCELLED, too, `to` holds whole segments, and the call can be made again. */
sl_status sl_store_share(sl_store *to, const sl_store_share_options *options, sl_store_shared *out, sl_err *err);
/* A finished file, open for writing, gets the name `path` in its folder, in place of a file that has it (and that the
 * caller should have open for writing, too): at every moment the name is one file's or the other's. On the disk when it
 * returns. `store` can only be closed afterwards. SL_USAGE: unfinished. */
sl_status sl_store_rename(sl_store *store, const char *path, sl_err *err);

#define SL_STORE_ALL UINT64_MAX

typedef struct sl_store_fork_options {
    const char *from, *to;
    uint64_t n_tokens;  /* of from's first (committed) ones; SL_STORE_ALL */
    bool buffered;      /* no direct I/O */
    bool allow_ram_dir; /* as in sl_context_options */
    bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* false cancels; NULL: none */
    void *arg;
} sl_store_fork_options;

typedef struct sl_store_forked {
    uint64_t n_tokens;
    uint64_t from_tokens, from_intended_tokens; /* that the source holds; that its writer wanted, if unfinished */
    uint64_t shared_bytes, copied_bytes;        /* of the cache: on the disk once for both files; written anew */
    uint64_t bytes_written;                     /* what else belongs to a file included */
} sl_store_forked;

/* A new, finished context file of another's first tokens, byte for byte as prefill of these tokens alone would have
 * made it; no model is needed. Whole segments are shared where the file system can (damage in them, too: verify tells),
 * the rest is copied and verified. The file has its name when it is whole; after an error or a cancel there is none.
 * SL_REFUSED: the name is taken, no tokens or more than there are, no room. SL_DAMAGED: as sl_store_open, or a part
 * that is copied. SL_USAGE: a name or `out` is NULL. */
sl_status sl_store_fork(const sl_store_fork_options *options, sl_store_forked *out, sl_err *err);

/* The stored tokens back to bytes, piece by piece, in order; special: control tokens' spelling too. `take` returns
 * false to cancel. SL_REFUSED when the store was opened with an engine of another tokenizer; SL_USAGE with none. */
sl_status sl_store_get_text(const sl_store *store, bool special,
                            bool (*take)(void *arg, const char *bytes, size_t size), void *arg, sl_err *err);

/* One damaged thing of a file. */
typedef struct sl_store_damage {
    const char *what;       /* static: "superblock", "segment record", "part", "unused bytes" ... */
    int copy;               /* of two: 0 or 1; -1: there is one */
    int64_t layer, segment; /* -1: of none */
    uint64_t off, bytes;    /* in the file */
} sl_store_damage;

typedef struct sl_store_verify_options {
    const char *path;
    bool buffered; /* no direct I/O */
    void (*found)(void *arg, const sl_store_damage *damage);
    bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* false cancels; NULL: none */
    void *arg;
} sl_store_verify_options;

typedef struct sl_store_verified {
    uint64_t n_tokens, intended_tokens;
    bool is_finished;
    uint64_t file_bytes, n_damaged;
    uint64_t outside_bytes; /* of an unfinished file: bytes behind the last commit, in sectors that are not zero */
    bool is_torn; /* a commit that was cut off has left something, or one copy of the last one alone is whole */
} sl_store_verified;

/* Reads a whole file: both copies of everything, every checksum, and that unused bytes of a finished file are zero.
 * SL_OK: whole. SL_DAMAGED: `found` was told of out->n_damaged things; 0: not even a superblock could be believed. */
sl_status sl_store_verify(const sl_store_verify_options *options, sl_store_verified *out, sl_err *err);

/* What becomes of a damaged thing. */
typedef enum sl_store_fate {
    SL_STORE_FATE_REPAIRED,
    SL_STORE_FATE_REPAIRABLE, /* dry_run: would have been */
    SL_STORE_FATE_LOST        /* nothing left says what was there */
} sl_store_fate;

typedef struct sl_store_repair_options {
    const char *path;
    bool dry_run;         /* nothing is computed or written */
    const char *kv_dir;   /* the next five: as in sl_context_options */
    bool allow_ram_dir;
    size_t window_tokens;
    uint64_t ring_bytes;
    sl_io io;
    /* Each thing once, as soon as its fate is known. NULL: nobody asks. */
    void (*told)(void *arg, const sl_store_damage *damage, sl_store_fate fate);
    /* First bytes of the file that have been looked at, then (computing) tokens of the damaged parts. NULL: none. */
    void (*progress)(void *arg, bool computing, uint64_t done, uint64_t total);
    bool (*stop)(void *arg); /* true cancels: what was repaired stays. NULL: never */
    void *arg;
} sl_store_repair_options;

typedef struct sl_store_repaired {
    uint64_t n_tokens, intended_tokens;
    bool is_finished;
    uint64_t file_bytes;
    uint64_t n_found, n_repaired, n_lost; /* things */
    uint64_t tokens_computed, tokens_damaged; /* of damaged parts */
    uint64_t bytes_written, peak_rss_bytes;
} sl_store_repaired;

/* Rewrites exactly what is damaged in a context file, finished or not: a copy of superblock or record from the other
 * copy, unused bytes as zeros, and parts, in order of position, computed from the stored tokens over what lies before
 * them; such a part is written only if its checksum is then the one in the file. Needs the lock of a writer (not with
 * dry_run). Killed at any moment, the same call goes on. Memory as planned for a context of so many tokens.
 * SL_OK: nothing is damaged any more. SL_DAMAGED: something is lost (or, with dry_run, damaged): `told` was told; or a
 * part comes out otherwise than it was stored. SL_REFUSED: another model, named with both values; another writer. */
sl_status sl_store_repair(sl_engine *engine, const sl_store_repair_options *options, sl_store_repaired *out,
                          sl_err *err);

#ifdef __cplusplus
}
#endif
#endif
