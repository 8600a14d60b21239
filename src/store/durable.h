/* A context file: what makes stored tokens survive. docs/context-format.md specifies the bytes.
 *
 * Owns: the named file, the token ids, the table of part checksums, the records. Knows no tiles: whoever writes blocks
 * calls commit when they are written. Refuses: a file of another format or version, one that another process writes,
 * to name anything that is not whole.
 *
 *   create or open -> ( blocks written -> commit )* -> finish -> close        writer
 *   open -> close                                                             readers, any number beside a writer
 *
 * Invariant: at every moment the file on the disk holds what the last commit (or finish) that returned SL_OK said.
 * Thread rule: one thread drives. */
#ifndef SL_DURABLE_H
#define SL_DURABLE_H

#include "base/log.h"
#include "platform/vfs.h"
#include "store/format.h"

typedef struct sl_durable sl_durable;

/* Who is told how far a long copy is; false cancels it (SL_CANCELLED). progress NULL: nobody. */
typedef struct sl_durable_watch {
    bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *arg;
} sl_durable_watch;

typedef struct sl_durable_options {
    const sl_vfs *vfs; /* NULL: the system's */
    const char *path;  /* copied */
    bool for_writing;
    bool force_buffered, allow_ram;
    bool name_last; /* create: the file has no name, and is gone when it is closed, until sl_durable_publish */
    uint64_t max_tokens;  /* the most that will be stored; open raises it to what the file holds, */
    uint64_t more_tokens; /* and so many more */
    sl_budget *budget;
    sl_log log;
} sl_durable_options;

/* Makes a new file that holds nothing yet and gives it its name. SL_REFUSED when the name is taken. */
sl_status sl_durable_create(const sl_durable_options *options, const sl_identity *identity, const sl_geom *geom,
                            sl_durable **out, sl_err *err) SL_CHECK;
/* Gives a file that was made with name_last its name, once; on the disk when it returns. SL_REFUSED when the name is
 * taken, unless it is to be replaced. */
sl_status sl_durable_publish(sl_durable *durable, bool replace, sl_err *err) SL_CHECK;
/* SL_REFUSED: being written by another (for_writing), another version. SL_DAMAGED names record, segment and field. */
sl_status sl_durable_open(const sl_durable_options *options, sl_durable **out, sl_err *err) SL_CHECK;
/* Whatever was not committed is lost; nothing else is. */
void sl_durable_close(sl_durable *durable);

/* Memory, for the plan. */
uint64_t sl_durable_bytes(const sl_geom *geom, uint64_t max_tokens);

typedef struct sl_durable_state {
    uint64_t n_tokens;        /* committed */
    uint64_t intended_tokens; /* what the writer of an unfinished file wanted; else n_tokens */
    bool is_finished;
    bool is_for_writing;
    uint64_t max_tokens; /* that this handle has room for */
    uint64_t n_commits;  /* by this handle */
    const char *note;   /* NULL, or what was found damaged but stands in a second copy */
} sl_durable_state;
sl_durable_state sl_durable_get(const sl_durable *durable);

const sl_identity *sl_durable_identity(const sl_durable *durable);
const sl_geom *sl_durable_geom(const sl_durable *durable);
const sl_layout *sl_durable_layout(const sl_durable *durable);
const int32_t *sl_durable_ids(const sl_durable *durable); /* [n_tokens] */
sl_file *sl_durable_file(const sl_durable *durable);      /* borrowed */
const sl_vfs *sl_durable_vfs(const sl_durable *durable);
bool sl_durable_is_direct(const sl_durable *durable);
const char *sl_durable_name(const sl_durable *durable); /* the path */

/* The checksum that the file has for part `part` (of the whole context) of a layer: of its full tile groups, in a
 * finished file with the unfilled one. */
uint64_t sl_durable_part(const sl_durable *durable, uint32_t layer, uint64_t part);
/* What lies in memory for a layer, since on the disk it is not there yet or may be written over: the bytes of full tile
 * groups behind the block's last whole sector, then the unfilled tile group if n_tokens % 64 != 0. NULL: nothing does,
 * or it is a finished file that this handle writes, where all is in place. */
const uint8_t *sl_durable_tail(const sl_durable *durable, uint32_t layer);

/* What a commit takes from the writer of the blocks. */
typedef struct sl_durable_source {
    /* The checksums of a segment's parts, [n_layers][4], 0 for empty ones: full tile groups, with `finished` the
     * unfilled one too. */
    void (*parts)(void *arg, uint64_t segment, bool finished, uint64_t *out);
    /* As sl_durable_tail, all layers one behind another: sl_commit_tails_bytes bytes. */
    void (*tails)(void *arg, uint8_t *out);
    void *arg;
} sl_durable_source;

/* Makes n_tokens >= the committed ones survive: their blocks' whole sectors are written. ids: [n_tokens], all. In an
 * area even where segments' records would do, when `in_area`: before anything that is committed may be overwritten. */
sl_status sl_durable_commit(sl_durable *durable, const int32_t *ids, uint64_t n_tokens, uint64_t intended_tokens,
                            bool in_area, const sl_durable_source *source, sl_err *err) SL_CHECK;
/* After a commit of everything, and after the last pieces and unfilled tile groups were written in place: no trace of
 * how the file was made is left in it. */
sl_status sl_durable_finish(sl_durable *durable, const sl_durable_source *source, sl_err *err) SL_CHECK;

typedef struct sl_durable_cloned {
    uint64_t shared_bytes, copied_bytes; /* of blocks */
} sl_durable_cloned;

/* `to`, which holds whole segments of `from` or nothing, and is not finished, gets the segments before n_segments,
 * which are full ones of `from`: their blocks are shared where the file system can, else copied and every part
 * verified. They are committed when this returns SL_OK; after an error or SL_CANCELLED a whole number of segments is.
 * SL_USAGE: not equal in identity or geometry, or not whole segments. */
sl_status sl_durable_clone(sl_durable *to, const sl_durable *from, uint64_t n_segments, const sl_durable_watch *watch,
                           sl_durable_cloned *out, sl_err *err) SL_CHECK;

/* Bytes written by this handle's own transfers (records, areas, superblock). */
uint64_t sl_durable_bytes_written(const sl_durable *durable);

#endif
