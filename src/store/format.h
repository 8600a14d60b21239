/* The bytes of a context file's superblock and records: encoding, decoding, places. docs/context-format.md specifies
 * them. Pure functions on buffers; trusts no byte: every length is bounded before it is used. No I/O.
 *
 *   0  superblock, twice | 2 commit areas, each two copies | segments: the blocks of the layers, a record, twice | ...
 *   | of a finished file the end record, twice
 */
#ifndef SL_FORMAT_H
#define SL_FORMAT_H

#include <stdbool.h>

#include "base/mem.h"
#include "store/geom.h"

enum {
    SL_FORMAT_VERSION = 2,
    SL_FORMAT_NAME_BYTES = 256,
    SL_FORMAT_FLAG_CHAT = 1,
    SL_FORMAT_ROPE_NUMBERS = 5,
    SL_FORMAT_END_BYTES = 4096 /* of one copy of the end record */
};

/* What the stored bytes depend on, beside the geometry. Two contexts whose identities are equal hold the same bits for
 * the same tokens. */
typedef struct sl_identity {
    uint32_t arithmetic_version;
    uint32_t flags;     /* SL_FORMAT_FLAG_CHAT: the text is a chat template's head and a document */
    uint64_t model[2];  /* fingerprint of hyper-parameters and tensors */
    uint64_t tokenizer; /* fingerprint of the vocabulary and its rules */
    uint32_t rope_kind; /* 0: none or linear scaling */
    uint32_t rope_dims; /* of a head: the first so many are rotated */
    double rope_base, rope_scale;
    uint64_t rope_factors; /* hash of the factors of each frequency and of the rule's numbers; 0: none */
    /* The rule's numbers, all in that hash: the original length, the magnitude, YaRN's fast and slow turns and share of
     * unscaled frequencies. 0: the model's own, or without bearing */
    double rope_numbers[SL_FORMAT_ROPE_NUMBERS];
    uint32_t n_vocab;
    float attn_scale, softcap;           /* 0: the default; none */
    char name[SL_FORMAT_NAME_BYTES + 1]; /* the model's, for people, without control characters when read; not part of
                                            the comparison */
} sl_identity;

/* Whether a token's id is one of the vocabulary's. */
static inline bool sl_id_is_known(int32_t id, uint32_t n_vocab)
{
    return id >= 0 && (uint32_t)id < n_vocab;
}

/* Names the first difference in err with both values: SL_REFUSED, "<what>: the context has A, the model B". */
sl_status sl_identity_compare(const sl_identity *context, const sl_identity *model, sl_err *err) SL_CHECK;

/* Where things lie; follows from the geometry alone. */
typedef struct sl_layout {
    uint64_t superblock_bytes; /* of one copy */
    uint64_t commit_bytes;     /* room for one copy of a commit record; an area has two */
    uint64_t record_bytes;     /* of one copy of a segment's record */
    uint64_t data_off;         /* of segment 0 */
    uint64_t blocks_bytes;     /* of a segment's blocks: the records follow */
    uint64_t stride;           /* of segments */
} sl_layout;

sl_layout sl_layout_of(const sl_geom *geom); /* a geometry that sl_geom_check has passed */
uint64_t sl_layout_area_off(const sl_layout *layout, unsigned area);
uint64_t sl_layout_segment_off(const sl_layout *layout, uint64_t segment);
uint64_t sl_layout_record_off(const sl_layout *layout, uint64_t segment); /* of its first copy */
/* Of a finished file of so many segments; its end record's first copy begins 2 * SL_FORMAT_END_BYTES before. */
uint64_t sl_layout_finished_bytes(const sl_layout *layout, uint64_t n_segments);
/* Segments that a file can have: offsets stay below 2^63. */
uint64_t sl_layout_max_segments(const sl_layout *layout);

/* ---- superblock ---- */

/* Most bytes that a superblock can have: what to read to find its second copy. */
uint64_t sl_superblock_max_bytes(void);

/* buf [layout's superblock_bytes]; returns the checksum that ends it: the context's mark in its records. */
uint64_t sl_superblock_encode(uint8_t *buf, const sl_identity *identity, const sl_geom *geom);

typedef struct sl_superblock {
    sl_identity identity;
    sl_geom geom; /* layers owned by the superblock */
    sl_kv_layer *layers;
    uint64_t checksum;
} sl_superblock;

/* One copy at buf [size]. SL_DAMAGED names the field (no magic, checksum, geometry); SL_REFUSED: another version, with
 * both. Freed by sl_superblock_free whatever came back. */
sl_status sl_superblock_decode(const uint8_t *buf, size_t size, sl_budget *budget, sl_superblock *out,
                               sl_err *err) SL_CHECK;
void sl_superblock_free(sl_superblock *superblock, sl_budget *budget);

/* ---- segment record ---- */

typedef struct sl_record {
    uint64_t segment;
    uint32_t n_tokens;     /* 1..4096 */
    uint64_t superblock;   /* its checksum */
    uint64_t previous;     /* checksum of the previous segment's record; 0 in the first */
    const uint64_t *parts; /* [n_layers][4] checksums of the parts' bytes; 0: an empty part */
    const int32_t *ids;    /* [n_tokens] */
    uint64_t checksum;     /* of this record; filled in by both */
} sl_record;

/* buf [record_bytes], 8-byte aligned. Fills in record->checksum. */
void sl_record_encode(uint8_t *buf, const sl_geom *geom, sl_record *record);
/* parts and ids then point into buf, whose numbers have been brought to the machine's byte order. SL_DAMAGED names what
 * is wrong: magic, checksum, another segment's, another context's, a count out of range. */
sl_status sl_record_decode(uint8_t *buf, const sl_geom *geom, uint64_t segment, uint64_t superblock, sl_record *out,
                           sl_err *err) SL_CHECK;

/* ---- commit record ---- */

typedef struct sl_commit {
    uint64_t generation; /* from 1 on */
    uint64_t n_tokens, intended_tokens;
    uint64_t superblock, previous; /* as in sl_record: of segment n_tokens / 4096 - 1 */
    bool is_alone; /* full segments behind it count by a later commit record, not by their own records alone */
    const int32_t *ids;            /* [n_tokens % 4096] of the open segment */
    const uint64_t *parts;         /* [n_layers][4] of the open segment's full tile groups */
    const uint8_t *tails;          /* per layer: the piece behind the last whole sector, then the unfilled tile group */
    size_t tails_bytes;
} sl_commit;

/* Bytes of a layer's piece: of its full tile groups in the open segment's block, those behind the last whole sector. */
size_t sl_commit_piece_bytes(const sl_geom *geom, uint32_t layer, uint64_t n_tokens);
/* Bytes of all layers' pieces and unfilled tile groups. */
size_t sl_commit_tails_bytes(const sl_geom *geom, uint64_t n_tokens);
/* Bytes of the record, before padding to whole sectors. */
size_t sl_commit_record_bytes(const sl_geom *geom, uint64_t n_tokens);
/* Where the tails stand in it. */
size_t sl_commit_tails_off(const sl_geom *geom, uint64_t n_tokens);
/* buf [record bytes]. The tails may stand in buf already: commit->tails is then that place. */
void sl_commit_encode(uint8_t *buf, const sl_geom *geom, const sl_commit *commit);
/* size: what was read of the copy's room. As sl_record_decode. SL_FAILED (not damaged) with an empty text when the copy
 * is all zero in its first sector: there is none. */
sl_status sl_commit_decode(uint8_t *buf, size_t size, const sl_geom *geom, uint64_t superblock, sl_commit *out,
                           sl_err *err) SL_CHECK;

/* ---- end record ---- */

/* Of a finished file. */
typedef struct sl_end {
    uint64_t n_tokens;
    uint64_t last;       /* checksum of the last segment's record */
    uint64_t superblock; /* as in sl_record */
} sl_end;

void sl_end_encode(uint8_t *buf, const sl_end *end); /* buf [SL_FORMAT_END_BYTES] */
/* As sl_record_decode. */
sl_status sl_end_decode(const uint8_t *buf, uint64_t superblock, sl_end *out, sl_err *err) SL_CHECK;

#endif
