#include "api/estimate.h"

#include <math.h>
#include <string.h>

#include "model/graph.h"
#include "store/geom.h"

const size_t sl_attn_point_rows[SL_ATTN_POINTS] = {1, 4, 16, 64, 256};
const size_t sl_gemm_point_rows[SL_GEMM_POINTS] = {1, 16, 128};

enum { MAX_ROWS = 256 };

static double max_double(double a, double b)
{
    return a > b ? a : b;
}

/* A time per count of rows, read between its points. More rows never take less: what says so is noise. */
static double read_curve(const size_t *rows_at, const double *seconds, size_t n, double rows)
{
    double before = seconds[0];
    if (rows <= (double)rows_at[0])
        return before;
    for (size_t i = 1; i < n; i++) {
        double here = max_double(seconds[i], before), width = (double)(rows_at[i] - rows_at[i - 1]);
        if (rows <= (double)rows_at[i])
            return before + (here - before) * (rows - (double)rows_at[i - 1]) / width;
        before = here;
    }
    return before * rows / (double)rows_at[n - 1];
}

double sl_estimate_attn_s(const double rates[SL_ATTN_POINTS], double keys, double rows)
{
    double seconds[SL_ATTN_POINTS];
    for (size_t i = 0; i < SL_ATTN_POINTS; i++) {
        if (rates[i] <= 0.0)
            return 0.0;
        seconds[i] = keys / rates[i];
    }
    return read_curve(sl_attn_point_rows, seconds, SL_ATTN_POINTS, rows);
}

double sl_estimate_madds_s(const double rates[SL_GEMM_POINTS], double madds, double rows)
{
    double seconds[SL_GEMM_POINTS];
    for (size_t i = 0; i < SL_GEMM_POINTS; i++) {
        if (rates[i] <= 0.0)
            return 0.0;
        seconds[i] = madds * (double)sl_gemm_point_rows[i] / rates[i];
    }
    return read_curve(sl_gemm_point_rows, seconds, SL_GEMM_POINTS, rows);
}

/* Windows never cross a segment's end, so that each segment is cut alike: at 0, W, 2W, ... */
uint64_t sl_estimate_stored_tokens(uint64_t prompt_tokens, uint64_t window_tokens)
{
    uint64_t window = window_tokens < SL_SEGMENT_TOKENS ? window_tokens : SL_SEGMENT_TOKENS;
    if (prompt_tokens > UINT64_C(1) << 32) { /* the exact sum would wrap; nobody will see its end */
        double sum = (double)prompt_tokens * (double)prompt_tokens / 2 / (double)window;
        return sum < 0x1p63 ? (uint64_t)sum : UINT64_MAX;
    }
    uint64_t n_segments = prompt_tokens / SL_SEGMENT_TOKENS, rest = prompt_tokens % SL_SEGMENT_TOKENS;
    uint64_t n_windows = (SL_SEGMENT_TOKENS + window - 1) / window; /* of a segment */
    uint64_t sum = n_segments * (n_windows * (n_windows - 1) / 2 * window);
    if (n_segments > 0)
        sum += n_windows * SL_SEGMENT_TOKENS * (n_segments * (n_segments - 1) / 2);
    for (uint64_t at = 0; at < rest; at += window)
        sum += n_segments * SL_SEGMENT_TOKENS + at;
    return sum;
}

/* What the windows of tokens [first, first + n) of a segment walk. */
static uint64_t slid_segment(uint64_t first, uint64_t n, uint64_t window, uint64_t span)
{
    const sl_kv_layer layer = {1, SL_TILE, span};
    uint64_t sum = 0;
    for (uint64_t at = 0; at < n; at += window)
        sum += first + at - sl_geom_first_part(&layer, first + at) * SL_PART_TOKENS;
    return sum;
}

/* Segments that lie wholly within the first span are as in a layer that sees all, and once a segment begins behind it
 * all are alike. */
uint64_t sl_estimate_slid_tokens(uint64_t prompt_tokens, uint64_t window_tokens, uint64_t span)
{
    uint64_t n_segments = prompt_tokens / SL_SEGMENT_TOKENS, rest = prompt_tokens % SL_SEGMENT_TOKENS;
    uint64_t window = window_tokens < SL_SEGMENT_TOKENS ? window_tokens : SL_SEGMENT_TOKENS;
    uint64_t n_before = span / SL_SEGMENT_TOKENS;
    if (span == 0 || n_before >= n_segments + (rest > 0))
        return sl_estimate_stored_tokens(prompt_tokens, window_tokens);
    double sum = (double)sl_estimate_stored_tokens(n_before * SL_SEGMENT_TOKENS, window);
    for (uint64_t i = n_before; i < n_segments && i <= n_before + 1; i++) {
        double n_alike = i == n_before ? 1.0 : (double)(n_segments - i);
        sum += n_alike * (double)slid_segment(i * SL_SEGMENT_TOKENS, SL_SEGMENT_TOKENS, window, span);
    }
    sum += (double)slid_segment(n_segments * SL_SEGMENT_TOKENS, rest, window, span);
    return sum < 0x1p63 ? (uint64_t)sum : UINT64_MAX;
}

/* ------------------------------------------------------------------------------------------------------- computing */

static double all_madds_s(const sl_estimate_input *in, double rows)
{
    double seconds = 0.0;
    for (size_t type = 0; type < SL_WTYPE_COUNT; type++)
        seconds += sl_estimate_madds_s(in->rates->madds[type], in->work->madds[type], rows);
    return seconds;
}

/* Logits are made a few rows at a time. */
static double logits_s(const sl_estimate_input *in, double rows)
{
    const double *rates = in->rates->madds[in->work->logit_type];
    double at_once = SL_GRAPH_LOGIT_ROWS, whole = (double)(uint64_t)(rows / at_once);
    double rest = rows - whole * at_once;
    double seconds = whole * sl_estimate_madds_s(rates, in->work->logit_madds, at_once);
    return seconds + (rest > 0.0 ? sl_estimate_madds_s(rates, in->work->logit_madds, rest) : 0.0);
}

static bool has_rates(const sl_estimate_input *in)
{
    for (size_t type = 0; type < SL_WTYPE_COUNT; type++)
        if ((in->work->madds[type] > 0.0 || type == in->work->logit_type) && in->rates->madds[type][0] <= 0.0)
            return false;
    return in->rates->keys[in->type][0] > 0.0;
}

static double min_double(double a, double b)
{
    return a < b ? a : b;
}

/* Keys that the rows before `end` see in a layer, all together; span 0: all before them. */
static double seen_keys(double end, double span)
{
    double growing = span > 0.0 ? min_double(end, span) : end;
    return growing * (growing + 1.0) / 2.0 + (end - growing) * span;
}

/* Row i of the prompt sees what was stored and i + 1 keys, or of these its span; a tile that the diagonal or the span's
 * beginning cuts is computed whole, half of it in vain. */
static double prefill_attn_s(const sl_estimate_input *in, double span, double rows)
{
    double n = (double)in->prompt_tokens, stored = (double)in->stored_tokens;
    double n_slid = span > 0.0 ? n - min_double(n, max_double(span - stored, 0.0)) : 0.0;
    double seen = seen_keys(stored + n, span) - seen_keys(stored, span) + (n + n_slid) * (SL_TILE / 2.0);
    return sl_estimate_attn_s(in->rates->keys[in->type], seen / rows, rows);
}

static double prefill_compute_s(const sl_estimate_input *in)
{
    double n = (double)in->prompt_tokens, rows = min_double(n, (double)in->plan->window_tokens);
    double n_sliding = (double)sl_hparams_n_sliding(in->hp), n_whole = (double)in->hp->n_layers - n_sliding;
    double attention = prefill_attn_s(in, 0.0, rows) * n_whole;
    if (n_sliding > 0.0)
        attention += prefill_attn_s(in, (double)in->hp->sliding_span, rows) * n_sliding;
    double projections = all_madds_s(in, rows) * n / rows;
    return attention + projections + (in->all_logits ? logits_s(in, n) : 0.0);
}

static double pass_compute_s(const sl_estimate_input *in, double rows)
{
    const double *rates = in->rates->keys[in->type], keys = (double)in->plan->max_tokens;
    double n_sliding = (double)sl_hparams_n_sliding(in->hp), n_whole = (double)in->hp->n_layers - n_sliding;
    double attention = sl_estimate_attn_s(rates, keys, rows) * n_whole;
    if (n_sliding > 0.0)
        attention += sl_estimate_attn_s(rates, min_double(keys, (double)in->hp->sliding_span + SL_TILE), rows) *
                     n_sliding;
    return attention + all_madds_s(in, rows) + logits_s(in, rows);
}

static size_t find_crossover(const sl_estimate_input *in, const sl_estimate *out)
{
    if (out->pass_bytes + out->weight_bytes > 0 && out->disk_read_rate <= 0.0)
        return 0;
    for (size_t rows = 1; rows <= MAX_ROWS; rows++)
        if (pass_compute_s(in, (double)rows) >= out->pass_disk_s)
            return rows;
    return 0;
}

/* -------------------------------------------------------------------------------------------------------- the whole */

static double seconds_for(uint64_t bytes, double rate)
{
    return rate > 0.0 ? (double)bytes / rate : 0.0;
}

static uint64_t less(uint64_t bytes, uint64_t taken)
{
    return bytes > taken ? bytes - taken : 0;
}

/* Unfilled tiles never leave memory. On top of a file's tokens the last, open part of them is written once more: into
 * the file that lies over theirs. */
static uint64_t written_bytes(const sl_estimate_input *in, double on_flash)
{
    const sl_plan *plan = in->plan;
    if (in->keeps)
        return in->prompt_tokens * plan->kv_token_bytes;
    uint64_t tiles = plan->max_tokens / SL_TILE * SL_TILE;
    uint64_t there = in->stored_tokens / SL_PART_TOKENS * SL_PART_TOKENS;
    bool drops = plan->kept_bytes < tiles * plan->kv_token_bytes; /* then resident slots take more than their bytes */
    if (there == 0 && !drops)
        return less(tiles * plan->kv_token_bytes, plan->resident_bytes);
    return (uint64_t)((double)(less(tiles, there) * plan->kv_token_bytes) * on_flash);
}

static double share_of(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0.0;
}

/* What the windows of a prefill read again. Resident parts are spread evenly over every prefix: of those that the
 * answer sees first, then of the others, which only sliding layers have. */
static double read_again(const sl_estimate_input *in, uint64_t tile_bytes)
{
    const sl_plan *plan = in->plan;
    double seen_on_flash = share_of(less(plan->answer_bytes, plan->resident_bytes), plan->answer_bytes);
    double n_windows = ceil((double)in->prompt_tokens / (double)plan->window_tokens);
    double stored = (double)sl_estimate_stored_tokens(in->prompt_tokens, plan->window_tokens);
    double layer_bytes = (double)plan->kv_token_bytes / (double)in->hp->n_layers;
    double n_sliding = (double)sl_hparams_n_sliding(in->hp), n_whole = (double)in->hp->n_layers - n_sliding;
    double bytes = (stored + n_windows * (double)in->stored_tokens) * layer_bytes * n_whole * seen_on_flash;
    if (n_sliding == 0.0)
        return bytes;
    uint64_t other = less(tile_bytes, plan->answer_bytes), end = in->stored_tokens + in->prompt_tokens;
    uint64_t other_held = less(plan->resident_bytes, plan->answer_bytes);
    double on_flash = other > 0 ? share_of(less(other, other_held), other) : seen_on_flash;
    stored = (double)sl_estimate_slid_tokens(end, plan->window_tokens, in->hp->sliding_span) -
             (double)sl_estimate_slid_tokens(in->stored_tokens, plan->window_tokens, in->hp->sliding_span);
    return bytes + stored * layer_bytes * n_sliding * on_flash;
}

static uint64_t pass_bytes(const sl_plan *plan)
{
    uint64_t on_flash = less(plan->answer_bytes, plan->decode_resident_bytes);
    if (plan->walked_bytes == plan->answer_bytes)
        return on_flash;
    return (uint64_t)((double)plan->walked_bytes * share_of(on_flash, plan->answer_bytes));
}

/* What the model file is read for: a pass for the rows that were asked about, and a prompt's windows, whose rows have
 * logits only where all do, but for the last one. */
static void fill_weights(const sl_estimate_input *in, sl_estimate *out)
{
    const sl_plan *plan = in->plan;
    const uint64_t rows = in->rows, n = in->prompt_tokens, at_once = SL_GRAPH_LOGIT_ROWS;
    const uint64_t n_windows = (n + plan->window_tokens - 1) / plan->window_tokens;
    const uint64_t n_logits = in->all_logits ? (n + at_once - 1) / at_once : 1;
    out->weight_bytes = plan->weight_pass_bytes + (rows + at_once - 1) / at_once * plan->weight_logit_bytes +
                        rows * plan->weight_row_bytes;
    out->weight_bytes_prefill = n_windows * plan->weight_pass_bytes + n_logits * plan->weight_logit_bytes +
                                n * plan->weight_row_bytes;
}

/* What of the cache goes by way of the disk, and how fast that is; weights are taken to be on the same. */
static void fill_disk(const sl_estimate_input *in, sl_estimate *out)
{
    const sl_plan *plan = in->plan;
    if (in->io) {
        out->disk_read_rate = in->io->read_rate;
        out->disk_write_rate = in->io->write_rate;
        out->read_bytes = in->io->read_bytes;
        out->in_flight_bytes = sl_io_profile_flight(in->io);
    }
    double cap = (double)in->read_rate;
    if (cap > 0.0 && (out->disk_read_rate <= 0.0 || cap < out->disk_read_rate))
        out->disk_read_rate = cap;
    double on_flash = share_of(less(plan->kept_bytes, plan->resident_bytes), plan->kept_bytes);
    double token_on_flash = (double)plan->kv_token_bytes * on_flash;
    double again = read_again(in, plan->kept_bytes);
    out->read_bytes_prefill = again < 0x1p63 ? (uint64_t)again : UINT64_MAX;
    out->written_bytes = written_bytes(in, on_flash);
    out->pass_bytes = pass_bytes(plan);
    fill_weights(in, out);
    out->prefill_read_s = seconds_for(out->read_bytes_prefill + out->weight_bytes_prefill, out->disk_read_rate);
    double written = (double)in->prompt_tokens * (in->keeps ? (double)plan->kv_token_bytes : token_on_flash);
    out->prefill_write_s = seconds_for((uint64_t)written, out->disk_write_rate);
    out->weight_pass_s = seconds_for(out->weight_bytes, out->disk_read_rate);
    out->pass_disk_s = seconds_for(out->pass_bytes + out->weight_bytes, out->disk_read_rate);
}

/* Of weights; rows are taken to choose experts of their own as long as there are some. */
static uint64_t weights_read(const sl_model_work *work, double rows)
{
    double share = rows * work->experts_of_row;
    return work->pass_bytes + (uint64_t)((share < 1.0 ? share : 1.0) * (double)work->expert_bytes);
}

void sl_estimate_make(const sl_estimate_input *in, sl_estimate *out)
{
    memset(out, 0, sizeof *out);
    out->rows = in->rows;
    out->memory_rate = in->rates->memory;
    if (in->plan->window_tokens == 0)
        return;
    fill_disk(in, out);
    out->pass_memory_s =
        seconds_for(in->plan->walked_bytes + weights_read(in->work, (double)in->rows), out->memory_rate);
    if (has_rates(in)) {
        out->prefill_compute_s = prefill_compute_s(in);
        out->prefill_s = max_double(out->prefill_compute_s, out->prefill_read_s) + out->prefill_write_s;
        out->first_token_s = out->prefill_s + logits_s(in, 1.0);
        out->pass_compute_s = pass_compute_s(in, (double)in->rows);
        out->crossover_rows = find_crossover(in, out);
    }
    out->pass_s = max_double(max_double(out->pass_disk_s, out->pass_memory_s), out->pass_compute_s);
}
