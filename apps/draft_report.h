/* What drafting did: for tables and JSON of run and chat. Owns nothing. Thread rule: one thread. */
#ifndef SL_DRAFT_REPORT_H
#define SL_DRAFT_REPORT_H

#include "cli.h"

/* The disk's best, bytes a second: as measured on its own, as seen in this run, or the rate that it was held to (limit;
 * 0: none). 0: nothing was read. */
double cli_best_read_rate(const sl_stats *stats, const sl_estimate *estimate, uint64_t limit);

/* What a pass of the answer takes from the disk at its best: of the cache, as far as `limit` lets it, and of weights
 * that are read from the model's file. */
double cli_pass_disk_s(const sl_stats *s, const sl_estimate *estimate, uint64_t limit);

/* The least that one row's pass takes over the cache as it was walked: seconds for its bytes at that rate, and to
 * compute it (0: not measured). one_row: sl_context_estimate of one row. */
typedef struct cli_plain_floor {
    double disk_s, compute_s;
} cli_plain_floor;
cli_plain_floor cli_plain_floor_of(const sl_stats *stats, const sl_estimate *one_row, uint64_t limit);

/* Lines on stderr: nothing where nothing was drafted. */
void cli_print_drafting(const sl_stats *stats, cli_plain_floor floor);
/* Members of an object. */
void cli_json_drafting(sl_json *json, const sl_stats *stats, cli_plain_floor floor);
/* What `now` has of drafting more than `before`, in *now. */
void cli_drafting_since(sl_stats *now, const sl_stats *before);

#endif
