/* Making a context file whole again. What stands twice is copied from the other copy; unused bytes become zeros; parts
 * are written in place when somebody has computed them and their checksum is the one in the record.
 *
 * Owns: the file, its lock. Refuses: a file that another process writes; to write a part of any other checksum. Bytes
 * that are what they should be are not written, but with others of their sector: with themselves.
 *
 *   open (writes nothing) -> look (copies, unused bytes) -> ( next -> put, for the layers asked for )* -> close
 *
 * Invariant: at every moment the file can be repaired as it could before, and says what it said.
 * Thread rule: one thread drives; callbacks come on it. */
#ifndef SL_DURABLE_REPAIR_H
#define SL_DURABLE_REPAIR_H

#include "store/durable_verify.h"

typedef struct sl_repair sl_repair;

typedef enum sl_fate {
    SL_FATE_REPAIRED,
    SL_FATE_REPAIRABLE, /* dry_run: would have been */
    SL_FATE_LOST        /* nothing left says what was there */
} sl_fate;

typedef struct sl_repair_options {
    const sl_vfs *vfs; /* NULL: the system's */
    const char *path;
    bool dry_run; /* takes no lock, writes nothing */
    bool force_buffered;
    sl_budget *budget;
    sl_log log;
    void (*told)(void *arg, const sl_damage *damage, sl_fate fate); /* NULL: nobody asks */
    bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* of look; false cancels; NULL: none */
    void *arg;
} sl_repair_options;

sl_status sl_repair_open(const sl_repair_options *options, sl_repair **out, sl_err *err) SL_CHECK;
void sl_repair_close(sl_repair *repair);

/* The file: its identity and geometry from the start; after `next` its tokens are those before the part, to be taken
 * over by a context (sl_kv_options.durable, without keep). Borrowed. */
sl_durable *sl_repair_durable(sl_repair *repair);

/* Repairs all but parts, and finds those. Reads the whole file. */
sl_status sl_repair_look(sl_repair *repair, sl_err *err) SL_CHECK;

/* Damaged parts of some layers, of the same tokens. */
typedef struct sl_repair_work {
    uint64_t first_token; /* a multiple of 1024 */
    size_t n_tokens;      /* that the parts hold, 1 to 1024 */
    const int32_t *ids;   /* [n_tokens], borrowed until the next call; any numbers */
    uint32_t n_layers;    /* the last damaged layer, plus one */
} sl_repair_work;
/* The next ones in order of position, of which everything before is intact; false: none is left. With dry_run none is
 * given: all are told. */
bool sl_repair_next(sl_repair *repair, sl_repair_work *out);
/* Whether the layer's part is one of them. */
bool sl_repair_wants(const sl_repair *repair, uint32_t layer);
/* `groups`: the part's tile groups as they are stored, the unfilled one included, whole; room for whole sectors, which
 * are filled up with zeros. SL_DAMAGED when they have another checksum than the record says: nothing is written. */
sl_status sl_repair_put(sl_repair *repair, uint32_t layer, uint8_t *groups, sl_err *err) SL_CHECK;
/* After the last layer of a piece of work: it is on the disk. */
sl_status sl_repair_settle(sl_repair *repair, sl_err *err) SL_CHECK;

typedef struct sl_repair_result {
    uint64_t n_tokens, intended_tokens;
    bool is_finished;
    uint64_t file_bytes;
    uint64_t n_found, n_repaired, n_lost; /* things */
    uint64_t part_tokens; /* that `next` will give in all, or would */
    uint64_t bytes_written;
} sl_repair_result;
sl_repair_result sl_repair_get(const sl_repair *repair);

#endif
