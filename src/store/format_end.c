/* End records: what tells a whole finished file from one that was cut off. */
#include <string.h>

#include "store/format_impl.h"

static const char END_MAGIC[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'E', 'N'};

void sl_end_encode(uint8_t *buf, const sl_end *end)
{
    memset(buf, 0, SL_FORMAT_END_BYTES);
    uint8_t *at = buf;
    memcpy(at, END_MAGIC, sizeof END_MAGIC);
    at += sizeof END_MAGIC;
    sl_format_put(&at, end->n_tokens, 8);
    sl_format_put(&at, end->last, 8);
    sl_format_put(&at, end->superblock, 8);
    (void)sl_format_seal(buf, SL_FORMAT_END_BYTES);
}

sl_status sl_end_decode(const uint8_t *buf, uint64_t superblock, sl_end *out, sl_err *err)
{
    *out = (sl_end){0};
    if (memcmp(buf, END_MAGIC, sizeof END_MAGIC) != 0)
        return sl_err_set(err, SL_DAMAGED, "end record: no magic");
    uint64_t checksum;
    sl_status status = sl_format_check(buf, SL_FORMAT_END_BYTES, "end record", &checksum, err);
    if (status != SL_OK)
        return status;
    sl_span span = sl_span_of(buf, SL_FORMAT_END_BYTES);
    (void)sl_span_take(&span, sizeof END_MAGIC);
    out->n_tokens = sl_span_u64(&span);
    out->last = sl_span_u64(&span);
    out->superblock = sl_span_u64(&span);
    if (out->superblock != superblock)
        return sl_err_set(err, SL_DAMAGED, "end record: of a context with mark %016" PRIx64, out->superblock);
    return SL_OK;
}
