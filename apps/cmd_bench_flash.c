/* sluice bench flash: options and reports. */
#include <math.h>
#include <string.h>

#include "cmd_bench.h"

static sl_status flash_json(const bench_cmd *b, const sl_bench_reader *readers, sl_err *err)
{
    sl_json j;
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    sl_json_key(&j, "file_bytes");
    sl_json_int(&j, b->file_size);
    sl_json_key(&j, "readers");
    sl_json_array_start(&j);
    for (int i = 0; i < SL_BENCH_READERS; i++) {
        const sl_bench_reader *r = &readers[i];
        const struct {
            const char *key;
            double value;
        } rates[] = {{"gb_per_s", r->rate.median / 1e9}, {"min_gb_per_s", r->rate.least / 1e9},
                     {"max_gb_per_s", r->rate.most / 1e9}, {"share_of_fio", r->share}};
        sl_json_object_start(&j);
        sl_json_key(&j, "name");
        sl_json_string(&j, r->name);
        for (size_t k = 0; k < sizeof rates / sizeof rates[0]; k++) {
            sl_json_key(&j, rates[k].key);
            sl_json_double(&j, rates[k].value > 0 ? rates[k].value : (double)NAN);
        }
        sl_json_key(&j, "note");
        sl_json_string(&j, r->text);
        sl_json_object_end(&j);
    }
    sl_json_array_end(&j);
    sl_json_object_end(&j);
    return sl_json_finish(&j, err);
}

static void print_share(const sl_bench_reader *r, const char *format, const char *absent)
{
    if (r->share > 0)
        printf(format, r->share);
    else
        fputs(absent, stdout);
}

static void flash_table(const bench_cmd *b, const sl_bench_reader *readers)
{
    if (b->csv)
        puts("reader,gb_per_s,min_gb_per_s,max_gb_per_s,share_of_fio,note");
    else
        printf("%-22s %8s %8s %8s %8s\n", "reader", "GB/s", "min", "max", "of fio");
    for (int i = 0; i < SL_BENCH_READERS; i++) {
        const sl_bench_reader *r = &readers[i];
        const char *format = b->csv ? "\"%s\",%.4f,%.4f,%.4f," : "%-22s %8.3f %8.3f %8.3f ";
        printf(format, r->name, r->rate.median / 1e9, r->rate.least / 1e9, r->rate.most / 1e9);
        print_share(r, b->csv ? "%.4f" : "%8.3f", b->csv ? "" : "       -");
        printf(b->csv ? ",\"%s\"\n" : "  %s\n", r->text);
    }
}

sl_status bench_flash_run(bench_cmd *b, sl_err *err)
{
    sl_bench_reader readers[SL_BENCH_READERS];
    sl_status status = bench_cmd_fill(b, err);
    b->o.ram_bytes = b->o.ram_bytes ? b->o.ram_bytes : BENCH_CMD_RAM;
    if (status == SL_OK)
        status = sl_bench_flash(&b->o, (uint64_t)b->file_size, readers, err);
    sl_progress_clear(&b->c.progress);
    if (status != SL_OK)
        return status;
    if (b->m.json)
        return flash_json(b, readers, err);
    flash_table(b, readers);
    return SL_OK;
}

size_t bench_flash_options(bench_cmd *b, sl_arg *out)
{
    const sl_arg options[] = {
        {.name = "file-size", .kind = SL_ARG_KIND_SIZE, .out = &b->file_size, .min = 1, .max = INT64_C(1) << 50,
         .group = "Work", .help = "bytes written, then read by every reader", .default_text = "4G"},
        {.name = "repeat", .kind = SL_ARG_KIND_INT, .out = &b->repeat, .min = 1, .max = 32, .help = "rounds",
         .default_text = "5"},
        {.name = "csv", .kind = SL_ARG_KIND_FLAG, .out = &b->csv, .group = "Output", .help = "CSV on stdout"},
    };
    memcpy(out, options, sizeof options);
    return sizeof options / sizeof options[0];
}
