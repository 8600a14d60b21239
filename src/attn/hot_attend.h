/* A draft's attention: over the hot set, the text's last tokens and the draft's own. The same tiles and kernels as the
 * text's, but with keys left out: what comes of it is a guess, and no token of the text is ever made from it.
 *
 * Owns: query blocks and states of a few rows. Refuses: nothing. Thread rule: one thread drives it; the pool works. */
#ifndef SL_HOT_ATTEND_H
#define SL_HOT_ATTEND_H

#include "attn/attn.h"

typedef struct sl_hot_attend sl_hot_attend;

/* options->trace and hot are not used. max_rows: of a call; with at most 256 queries to a KV head. */
sl_status sl_hot_attend_create(const sl_attn_options *options, sl_hot_attend **out, sl_err *err) SL_CHECK;
void sl_hot_attend_destroy(sl_hot_attend *attend);
uint64_t sl_hot_attend_bytes(const sl_attn_options *options); /* for the plan */

/* rows: consecutive, as attention has them. groups: tile groups from the one at groups_pos (a multiple of SL_TILE) on,
 * up to the last row's: the keys that the hot set lacks, rows' own among them; of the hot set what lies before counts.
 */
void sl_hot_attend_run(sl_hot_attend *attend, const sl_hot *hot, const sl_attn_rows *rows, const uint8_t *groups,
                       uint64_t groups_pos);

#endif
