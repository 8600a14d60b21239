/* sluice inspect on a context file; damaged things of one in words and JSON. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"

/* Where the first copy of the superblock begins otherwise, the second may not: it stands at some sector. */
bool cli_is_context(const char *path)
{
    enum { SECTOR = 4096, MOST_SECTORS = 258 };
    struct stat info;
    bool is_context = false;
    FILE *file = stat(path, &info) == 0 && S_ISREG(info.st_mode) ? fopen(path, "rb") : NULL;
    for (long i = 0; file && !is_context && i < MOST_SECTORS; i++) {
        char magic[8];
        is_context = fseek(file, i * SECTOR, SEEK_SET) == 0 && fread(magic, 1, sizeof magic, file) == sizeof magic &&
                     memcmp(magic, "SLUICEKV", sizeof magic) == 0;
    }
    if (file)
        fclose(file);
    return is_context;
}

static void print_text(const char *path, const sl_store_info *s)
{
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES];
    printf("%s: context of %s\n", path, s->model_name);
    if (s->is_finished)
        printf("  tokens        %llu, finished\n", (unsigned long long)s->n_tokens);
    else
        printf("  tokens        %llu of %llu: unfinished, 'sluice prefill' with the same texts goes on\n",
               (unsigned long long)s->n_tokens, (unsigned long long)s->intended_tokens);
    printf("  text          %s\n",
           s->is_chat ? "a chat template's head and documents (ask it with --chat)" : "documents");
    printf("  cache         %s, %s a token, %s in all\n", s->cache == SL_CACHE_F16 ? "f16" : "q8_0",
           sl_text_format_size(s->token_bytes, a), sl_text_format_size(s->n_tokens * s->token_bytes, b));
    printf("  layers        %u, %u KV heads of %u\n", s->n_layers, s->n_kv_heads, s->head_dim);
    printf("  RoPE          base %g, scale %g\n", s->rope_base, s->rope_scale);
    printf("  model         %016llx%016llx, vocabulary of %u, %016llx\n", (unsigned long long)s->model[1],
           (unsigned long long)s->model[0], s->n_vocab, (unsigned long long)s->tokenizer);
    printf("  versions      format %u, arithmetic %u\n", s->format_version, s->arithmetic_version);
    if (s->note)
        printf("  damage        %s\n", s->note);
}

static sl_status print_json(const sl_store_info *s, sl_err *err)
{
    sl_json j;
    char mark[33];
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {{"tokens", s->n_tokens}, {"intended_tokens", s->intended_tokens},
                  {"token_bytes", s->token_bytes}, {"layers", s->n_layers}, {"kv_heads", s->n_kv_heads},
                  {"head_dim", s->head_dim}, {"vocabulary", s->n_vocab}, {"format_version", s->format_version},
                  {"arithmetic_version", s->arithmetic_version}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        sl_json_key(&j, counts[i].key);
        sl_json_uint(&j, counts[i].value);
    }
    sl_json_key(&j, "finished");
    sl_json_bool(&j, s->is_finished);
    sl_json_key(&j, "chat");
    sl_json_bool(&j, s->is_chat);
    sl_json_key(&j, "cache");
    sl_json_string(&j, s->cache == SL_CACHE_F16 ? "f16" : "q8_0");
    sl_json_key(&j, "model_name");
    sl_json_string(&j, s->model_name);
    snprintf(mark, sizeof mark, "%016llx%016llx", (unsigned long long)s->model[1], (unsigned long long)s->model[0]);
    sl_json_key(&j, "model");
    sl_json_string(&j, mark);
    sl_json_key(&j, "rope_base");
    sl_json_double(&j, s->rope_base);
    sl_json_key(&j, "rope_scale");
    sl_json_double(&j, s->rope_scale);
    sl_json_key(&j, "damage");
    if (s->note)
        sl_json_string(&j, s->note);
    else
        sl_json_null(&j);
    sl_json_object_end(&j);
    return sl_json_finish(&j, err);
}

sl_status cli_inspect_context(const char *path, bool json, sl_err *err)
{
    const sl_store_options options = {.path = path};
    sl_store *store = NULL;
    sl_status status = sl_store_open(NULL, &options, &store, err);
    if (status != SL_OK)
        return status;
    sl_store_info info;
    sl_store_get_info(store, &info);
    if (json)
        status = print_json(&info, err);
    else
        print_text(path, &info);
    sl_store_close(store);
    return status;
}

void cli_print_damage(const sl_store_damage *d)
{
    printf("%s", d->what);
    if (d->copy >= 0)
        printf(" (copy %d)", d->copy + 1);
    if (d->layer >= 0)
        printf(", layer %lld", (long long)d->layer);
    if (d->segment >= 0)
        printf(", segment %lld", (long long)d->segment);
    printf(", offset %llu (%llu bytes)\n", (unsigned long long)d->off, (unsigned long long)d->bytes);
}

void cli_json_damage(sl_json *j, const sl_store_damage *d)
{
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = {{"copy", d->copy}, {"layer", d->layer}, {"segment", d->segment}};
    sl_json_key(j, "what");
    sl_json_string(j, d->what);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        sl_json_key(j, numbers[i].key);
        if (numbers[i].value < 0)
            sl_json_null(j);
        else
            sl_json_int(j, numbers[i].value);
    }
    sl_json_key(j, "offset");
    sl_json_uint(j, d->off);
    sl_json_key(j, "bytes");
    sl_json_uint(j, d->bytes);
}
