/* A context's K and V: what is on flash, what is in memory, and the walk over it.
 *
 * Owns: the file, the ring and its I/O thread, resident parts, each layer's tail. Refuses: a memory file system, a
 * budget too small for the ring, any byte whose checksum is not the one written.
 *
 *   create -> ( pass_begin -> for each layer in order: next/release until no part is left, tail, append -> pass_end )*
 *
 * Thread rule: one thread drives a context. sl_kv_release may be called from any thread. */
#ifndef SL_KV_H
#define SL_KV_H

#include "base/log.h"
#include "base/mem.h"
#include "base/trace.h"
#include "platform/queue.h"
#include "platform/vfs.h"
#include "store/geom.h"

typedef struct sl_kv sl_kv;
typedef struct sl_durable sl_durable;             /* store/durable.h */
typedef struct sl_durable_watch sl_durable_watch; /* the same */

typedef struct sl_kv_options {
    sl_geom geom;      /* copied */
    const sl_vfs *vfs; /* NULL: the system's */
    const char *dir;   /* where the unnamed file goes */
    bool allow_ram_dir;
    bool force_buffered;     /* no direct I/O even where it works (tests) */
    uint64_t max_tokens;     /* the most that will ever be stored: sizes tables; disk space reserved on demand */
    uint64_t resident_bytes; /* KV bytes that may stay in memory, fixed subset of parts over max_tokens */
    /* Token from which on passes of few rows follow one another. Parts of sliding layers that none of those rows sees
     * are the last to stay in memory. 0: all parts are alike. */
    uint64_t answer_from;
    /* What is kept of sliding layers. Zeros: everything. With drops a pass may add any number of tokens; if one that
     * was given up shall be cut back (sl_kv_truncate), at most back_tokens. Not with keep: a kept file holds
     * everything. */
    sl_slide slide;
    size_t slot_bytes;       /* the ring holds n_slots of these; raised to the largest part, rounded down to 4096 */
    size_t n_slots;          /* 2 or more; 0 with keep: the context is never walked, and has no ring */
    size_t read_bytes;       /* of one read, most: a multiple of a sector; 0: default */
    size_t in_flight_bytes;  /* read ahead at once, most, as far as the ring has room; 0: default */
    uint64_t read_rate;      /* bytes a second that reading may take, averaged over a tenth of a second; 0: all */
    sl_io_engine io_engine;
    /* A context file whose tokens this one starts with, of the same geometry; borrowed, outlives the context. NULL:
     * none, the context is ephemeral. keep: new tokens go into it (it must be open for writing), to be committed; else
     * to an unnamed file, and it stays as it is. durable_tokens: only its first so many, at most what it holds; 0: all.
     * Not with keep. */
    sl_durable *durable;
    uint64_t durable_tokens;
    bool keep;
    sl_trace *trace;         /* borrowed; NULL: none */
    sl_budget *budget;       /* borrowed, outlives the context */
    sl_log log;              /* called by the thread that drives the context */
    bool (*stop)(void *arg); /* asked while a part is long in coming: true gives SL_CANCELLED; NULL: never */
    void *arg;
} sl_kv_options;

/* The file is created when the first byte must be written; a context that fits its resident share has none. */
sl_status sl_kv_create(const sl_kv_options *options, sl_kv **out, sl_err *err) SL_CHECK;
void sl_kv_destroy(sl_kv *kv);

/* Memory, without parts and ring, that a context needs. For the plan. */
uint64_t sl_kv_table_bytes(const sl_geom *geom, uint64_t max_tokens);

/* A run of stored full tiles of one layer, in token order. */
typedef struct sl_kv_part {
    const uint8_t *tiles; /* [n_groups][n_kv_heads] tiles, 64-byte aligned; borrowed until released */
    uint64_t first_token; /* a multiple of 1024 */
    uint32_t n_groups;    /* tile groups (64 tokens each), 1..16, all full */
    uint32_t layer;
    int32_t slot; /* private: its item in the ring; -1 = resident */
} sl_kv_part;

/* will_follow: another pass over at least the same tokens is expected, so the reader may run ahead into it. */
sl_status sl_kv_pass_begin(sl_kv *kv, bool will_follow, sl_err *err) SL_CHECK;

/* The next part of `layer` in token order, waiting for it; *found = false when the layer has no more. Its checksum
 * has been verified. SL_DAMAGED names layer, segment and offset. n_slots - 1 parts may be held while another is asked
 * for, whatever their sizes; more as long as the ring has room between them. */
sl_status sl_kv_next(sl_kv *kv, uint32_t layer, sl_kv_part *part, bool *found, sl_err *err) SL_CHECK;
/* Whether sl_kv_next would return at once: with a part, with none left or with an error. */
bool sl_kv_is_ready(sl_kv *kv, uint32_t layer);
void sl_kv_release(sl_kv *kv, const sl_kv_part *part);

/* The unfilled tile group of a layer: n tokens in it (0..63). Borrowed until the next append to the layer. */
const uint8_t *sl_kv_tail(const sl_kv *kv, uint32_t layer, uint32_t *n_tokens);

/* Appends n_new tokens. `groups`: 64-byte aligned tile groups, the first one holding the tail's tokens in their
 * places followed by new ones; bytes of tokens after the last new one need not be zero (rejected drafts): they are
 * zeroed in what is kept. Call after the layer's parts have been walked; every layer once a pass, in order, or all
 * layers between passes (accepted drafts). Borrowed for the call. */
sl_status sl_kv_append(sl_kv *kv, uint32_t layer, const uint8_t *groups, uint64_t n_new, sl_err *err) SL_CHECK;
sl_status sl_kv_pass_end(sl_kv *kv, sl_err *err) SL_CHECK;

uint64_t sl_kv_tokens(const sl_kv *kv, uint32_t layer);

/* With `keep`, between passes, when every layer has the same number of tokens: all of them survive from now on. ids:
 * [tokens], borrowed. intended: what the file is meant to hold in the end. */
sl_status sl_kv_commit(sl_kv *kv, const int32_t *ids, uint64_t intended_tokens, sl_err *err) SL_CHECK;
/* After a commit: the file is finished; nothing may be appended any more. */
sl_status sl_kv_finish(sl_kv *kv, sl_err *err) SL_CHECK;

/* Part `part` of a layer (of the whole context, 1024 tokens each) as it is stored, the unfilled tile group included,
 * whole: from memory, or from flash and verified. For parts that were appended to this context and not dropped. Between
 * passes, or after one that was cancelled behind the layer. out: a whole part. */
sl_status sl_kv_get_part(sl_kv *kv, uint32_t layer, uint64_t part, uint8_t *out, sl_err *err) SL_CHECK;

/* The most tokens, n or fewer, to which sl_kv_truncate can go back: where sliding layers drop old parts, 0 in the worst
 * case. */
uint64_t sl_kv_find_point(const sl_kv *kv, uint64_t n_tokens);
/* Whether every part behind n_tokens is there, for sl_kv_copy: sliding layers may have dropped some. */
bool sl_kv_has_all(const sl_kv *kv, uint64_t n_tokens);

/* Between passes; with keep, nothing that is committed; to a point (sl_kv_find_point), else SL_USAGE: all layers forget
 * what they have from n_tokens on (a layer that has less keeps it), wherever it lies; what is left is as if the rest
 * had never been there. A part that the cut falls in is read and verified; it goes to this context's own file where it
 * lay in the durable one. After an error all later calls give SL_FAILED, but for SL_USAGE, which changes nothing. */
sl_status sl_kv_truncate(sl_kv *kv, uint64_t n_tokens, sl_err *err) SL_CHECK;

/* Appends to `to` the tokens that a context file has behind to's own, which are whole parts, up to n_tokens; verified.
 * SL_CANCELLED: the watch said so. */
sl_status sl_kv_append_stored(sl_kv *to, const sl_durable *from, uint64_t n_tokens, const sl_durable_watch *watch,
                              sl_err *err) SL_CHECK;
/* The same from another context of equal geometry, which goes on unchanged; both between passes. The bytes are those of
 * the first n_tokens of `from` if what `to` has are its first ones. */
sl_status sl_kv_copy(sl_kv *to, sl_kv *from, uint64_t n_tokens, const sl_durable_watch *watch, sl_err *err) SL_CHECK;
/* Tokens of the durable file that this context still starts with. */
uint64_t sl_kv_base_tokens(const sl_kv *kv);

/* Raises the resident share; parts join when a pass next reads them. */
sl_status sl_kv_set_resident(sl_kv *kv, uint64_t resident_bytes, sl_err *err) SL_CHECK;

/* For measuring. Rehearsal: the schedule, ring and hashing run as ever, but nothing is read: a part's bytes are what
 * its place in the ring last held (tiles of other parts where all parts have one size, or zeros), and no checksum is
 * compared; no rate holds it back and no part joins the resident ones. Between passes only. */
sl_status sl_kv_set_rehearsal(sl_kv *kv, bool on, sl_err *err) SL_CHECK;
/* Before the first pass: the ring holds `pattern` over and over, for rehearsals of a context of which nothing was read.
 * Does nothing without a ring. */
void sl_kv_fill_ring(sl_kv *kv, const uint8_t *pattern, size_t bytes);

/* Seconds, monotonic: the store's clock, for who decides when to commit. */
double sl_kv_seconds(void);

typedef struct sl_kv_stats {
    uint64_t bytes_read, bytes_written; /* by this file's transfers */
    uint64_t bytes_visited;             /* flash-stored bytes that the passes walked and did not hold in memory */
    uint64_t bytes_resident;            /* held now */
    uint64_t n_passes;
    double wait_s;                      /* the driving thread waited for a part */
    double read_s;                      /* at least one read was in flight */
    double write_s;                     /* inside write calls */
    int64_t page_cache_bytes;           /* of this file, now; -1 unknown */
    const char *io_mode;                /* "memory" (no file), "direct", "buffered" */
    const char *io_engine;              /* as sl_queue_engine; "none" before the first read */
    size_t read_bytes, in_flight_bytes; /* in force */
} sl_kv_stats;
void sl_kv_get_stats(const sl_kv *kv, sl_kv_stats *out);

#endif
