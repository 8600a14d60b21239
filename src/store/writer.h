/* The way of new tokens into the store: full tile groups to their part (memory or flash), the rest to the tail.
 *
 * Owns: each layer's tail and running checksum, the aligned buffer that writes go through. Invariant: an append that
 * fails leaves what is stored unchanged; bytes it has written lie behind everything that counts.
 * Thread rule: the thread that drives the context. */
#ifndef SL_WRITER_H
#define SL_WRITER_H

#include "store/kvfile.h"
#include "store/stream.h"

typedef struct sl_writer sl_writer;

typedef struct sl_writer_options {
    const sl_geom *geom; /* borrowed, like the next three */
    sl_parts *parts;
    sl_kvfile *file;
    sl_stream *stream;
    uint64_t max_tokens;
    bool keeps_all; /* resident parts are written, too: the file outlives the process */
    sl_budget *budget;
} sl_writer_options;

sl_status sl_writer_create(const sl_writer_options *options, sl_writer **out, sl_err *err) SL_CHECK;
void sl_writer_destroy(sl_writer *writer);
uint64_t sl_writer_table_bytes(const sl_geom *geom);

/* sl_kv_append, sl_kv_tail, sl_kv_tokens */
sl_status sl_writer_append(sl_writer *writer, uint32_t layer, const uint8_t *groups, uint64_t n_new,
                           sl_err *err) SL_CHECK;
const uint8_t *sl_writer_tail(const sl_writer *writer, uint32_t layer, uint32_t *n_tokens);
uint64_t sl_writer_tokens(const sl_writer *writer, uint32_t layer);

/* While a context is opened or cut short. start: a layer's first n_tokens, whole parts, are in the file with their
 * checksums in the table. loading: what is appended is in the file already and is not written again. */
void sl_writer_start(sl_writer *writer, uint32_t layer, uint64_t n_tokens);
/* Of the layer's unfilled tile group only n_tokens are left. */
void sl_writer_cut_tail(sl_writer *writer, uint32_t layer, uint32_t n_tokens);
void sl_writer_set_loading(sl_writer *writer, bool on);

/* The checksum of a part's full tile groups; with `with_tail` of the unfilled one too, which must be the part's. 0: it
 * has none. Parts that were written or loaded only. */
uint64_t sl_writer_part_checksum(const sl_writer *writer, uint32_t layer, uint64_t part, bool with_tail);
/* Puts a layer's waiting piece and unfilled tile group in their place in the file, padded with zeros to a sector.
 * Nothing may be appended afterwards. */
sl_status sl_writer_write_tail(sl_writer *writer, uint32_t layer, sl_err *err) SL_CHECK;

#endif
