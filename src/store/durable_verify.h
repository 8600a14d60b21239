/* Checking a whole context file: both copies of superblock and records, their chain, every part, and that whatever is
 * under no checksum is zero. Reads all of it once, in large direct reads, the next ones while these are hashed.
 * Owns nothing between calls. Thread rule: callbacks come on the calling thread. */
#ifndef SL_DURABLE_VERIFY_H
#define SL_DURABLE_VERIFY_H

#include "store/durable.h"

typedef enum sl_damage_kind {
    SL_DAMAGE_COPY,   /* of a superblock or a record */
    SL_DAMAGE_UNUSED, /* bytes that should be zero */
    SL_DAMAGE_PART,
    SL_DAMAGE_CHAIN, /* records that do not belong together */
    SL_DAMAGE_SIZE,  /* of the file */
    SL_DAMAGE_UNREADABLE
} sl_damage_kind;

typedef struct sl_damage {
    const char *what;       /* static: "superblock", "segment record", "part", ... */
    int copy;               /* 0 or 1; -1: there is only one */
    int64_t layer, segment; /* -1: of none */
    uint64_t off, bytes;    /* where in the file */
    sl_damage_kind kind;
    uint32_t part; /* SL_DAMAGE_PART: of the segment */
    uint64_t end;  /* SL_DAMAGE_UNUSED: where the bytes that should be zero end */
} sl_damage;

typedef struct sl_verify_options {
    const sl_vfs *vfs; /* NULL: the system's */
    const char *path;
    bool force_buffered;
    sl_durable *opened; /* borrowed, its superblock read; what is above does not count then. NULL: opened here */
    sl_budget *budget;
    sl_log log;
    void (*found)(void *arg, const sl_damage *damage);                            /* in order of position, nearly */
    bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* false cancels; NULL: none */
    void *arg;
} sl_verify_options;

typedef struct sl_verify_result {
    uint64_t n_tokens, intended_tokens; /* committed; wanted by the writer of an unfinished file */
    bool is_finished;
    uint64_t file_bytes, n_damaged;
    uint64_t outside_bytes; /* of an unfinished file: sectors behind the last commit that are not zero */
    bool is_torn; /* a commit that was cut off has left something, or one copy of the last one alone is whole */
} sl_verify_result;

/* SL_OK: whole. SL_DAMAGED: `found` was told what, or nothing at all can be believed (n_damaged is 0 then). */
sl_status sl_durable_verify(const sl_verify_options *options, sl_verify_result *out, sl_err *err) SL_CHECK;

#endif
