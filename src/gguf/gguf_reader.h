/* A model's files read again after they were opened: ranges by direct I/O, many in flight, through a queue for each
 * file (platform/queue.h).
 *
 * Owns: the open files, their last, unfinished sectors in memory, queues. Refuses: nothing; what the file does not give
 * is an error of the range. Where a file system has no direct I/O, what was read leaves the page cache when it is
 * waited for. Thread rule: one thread at a time. */
#ifndef SL_GGUF_READER_H
#define SL_GGUF_READER_H

#include "base/log.h"
#include "gguf/gguf.h"
#include "platform/vfs.h"

typedef struct sl_gguf_reader sl_gguf_reader;

enum { SL_GGUF_READER_SLOTS = 64 }; /* ranges that may be added and not yet waited for */

/* Of one of a model's files. */
typedef struct sl_gguf_range {
    uint64_t off;
    size_t bytes;  /* more than 0 */
    uint32_t part; /* which file */
} sl_gguf_range;

/* Memory that a range is read into: the whole sectors that it lies in, which is what is read of the file at most. */
size_t sl_gguf_range_room(const sl_gguf_range *range);

/* vfs: NULL: the system's. The files are those of `gguf` (which must come from a path and may be closed afterwards), as
 * their names lead to them now: the caller compares what it reads. */
sl_status sl_gguf_reader_open(const sl_gguf *gguf, const sl_vfs *vfs, sl_budget *budget, sl_gguf_reader **out,
                              sl_err *err) SL_CHECK;
void sl_gguf_reader_close(sl_gguf_reader *reader); /* waits for what is in flight */

/* Makes the queues: ranges may be added. All that they are read into lies in `memory`. */
sl_status sl_gguf_reader_start(sl_gguf_reader *reader, uint8_t *memory, size_t memory_bytes, const sl_log *log,
                               sl_err *err) SL_CHECK;
void sl_gguf_reader_stop(sl_gguf_reader *reader); /* waits likewise; nothing where it was not started */
/* Memory that a reader of so many files takes; that their queues take. For the plan. */
uint64_t sl_gguf_reader_memory(size_t n_files);
uint64_t sl_gguf_reader_queue_bytes(size_t n_files);

/* Asks for a range; buf: sl_gguf_range_room bytes, on a sector, untouched until it was waited for. Returns its slot. */
size_t sl_gguf_reader_add(sl_gguf_reader *reader, const sl_gguf_range *range, uint8_t *buf);
/* Ends a slot. *at: the range's first byte, in its buf. */
sl_status sl_gguf_reader_wait(sl_gguf_reader *reader, size_t slot, const uint8_t **at, sl_err *err) SL_CHECK;
/* Reads a range at once, without queues. */
sl_status sl_gguf_reader_read(sl_gguf_reader *reader, const sl_gguf_range *range, uint8_t *buf, const uint8_t **at,
                              sl_err *err) SL_CHECK;

const char *sl_gguf_reader_path(const sl_gguf_reader *reader, uint32_t part);
uint64_t sl_gguf_reader_bytes_read(const sl_gguf_reader *reader); /* asked for so far */
double sl_gguf_reader_wait_s(const sl_gguf_reader *reader);       /* that its caller waited so far */
bool sl_gguf_reader_is_direct(const sl_gguf_reader *reader);      /* all its files */

#endif
