/* The published figures, as quoted: parsing and matching. The build makes the text itself from m4-telemetry.csv. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "bench/bench.h"

enum { N_COLUMNS = 9, CELL_BYTES = 32 };

static const char header[] =
    "context_tokens,mode,kv_type,rows,end_to_end_s,compute_s,read_gb_per_s,throughput_per_s,peak_memory_mb";

/* Cuts a line into cells; false: not N_COLUMNS of them, or one too long. */
static bool cut(const char *line, size_t length, char cells[N_COLUMNS][CELL_BYTES])
{
    size_t n = 0, used = 0;
    for (size_t i = 0; i <= length; i++) {
        if (i < length && line[i] != ',') {
            if (n >= N_COLUMNS || used + 1 >= CELL_BYTES)
                return false;
            cells[n][used++] = line[i];
            continue;
        }
        if (n >= N_COLUMNS)
            return false;
        cells[n++][used] = '\0';
        used = 0;
    }
    return n == N_COLUMNS;
}

/* An empty cell is a figure that was not told. */
static bool number(const char *cell, double *out)
{
    char *end = NULL;
    *out = *cell ? strtod(cell, &end) : -1;
    return !*cell || (*end == '\0' && *out >= 0 && *out < 1e15);
}

static bool take(char cells[N_COLUMNS][CELL_BYTES], sl_bench_published *out)
{
    double tokens, rows;
    if (!number(cells[0], &tokens) || !number(cells[3], &rows) || tokens < 1 || rows < 1)
        return false;
    if (strlen(cells[1]) >= sizeof out->mode || strlen(cells[2]) >= sizeof out->kv_type || !*cells[1] || !*cells[2])
        return false;
    memset(out, 0, sizeof *out);
    out->context_tokens = (uint64_t)tokens;
    out->rows = (uint64_t)rows;
    memcpy(out->mode, cells[1], strlen(cells[1]));
    memcpy(out->kv_type, cells[2], strlen(cells[2]));
    return number(cells[4], &out->end_to_end_s) && number(cells[5], &out->compute_s) &&
           number(cells[6], &out->read_gb_per_s) && number(cells[7], &out->throughput_per_s) &&
           number(cells[8], &out->peak_memory_mb);
}

sl_status sl_bench_published_parse(const char *text, sl_bench_published *out, size_t capacity, size_t *n, sl_err *err)
{
    bool has_header = false;
    *n = 0;
    for (size_t line_number = 1; *text; line_number++) {
        size_t length = strcspn(text, "\n");
        const char *line = text;
        text += length + (text[length] == '\n');
        if (length == 0 || line[0] == '#')
            continue;
        if (!has_header) {
            has_header = length == sizeof header - 1 && memcmp(line, header, length) == 0;
            if (!has_header)
                return sl_err_set(err, SL_DAMAGED, "published figures, line %zu: expected the columns %s", line_number,
                                  header);
            continue;
        }
        char cells[N_COLUMNS][CELL_BYTES];
        if (*n == capacity || !cut(line, length, cells) || !take(cells, &out[*n]))
            return sl_err_set(err, SL_DAMAGED, "published figures, line %zu: %.*s", line_number,
                              (int)(length < 200 ? length : 200), line);
        ++*n;
    }
    return SL_OK;
}

void sl_bench_published_match(const sl_bench_published *table, size_t n, sl_bench_row *row)
{
    for (size_t i = 0; i < n; i++)
        if (table[i].context_tokens == row->context_tokens && table[i].rows == row->rows &&
            strcmp(table[i].mode, row->mode) == 0 && strcmp(table[i].kv_type, row->kv_type) == 0) {
            row->published = table[i];
            row->has_published = true;
        }
}
