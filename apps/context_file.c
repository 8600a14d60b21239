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

/* ------------------------------------------------------------------------------------------------------- its text */

enum { END_BYTES = 160, END_TOKENS = 6 };

/* The two ends of a text that goes by. */
typedef struct text_ends {
    char head[END_BYTES], tail[2 * END_BYTES];
    size_t n_head, n_tail;
    bool is_known;
} text_ends;

static bool take_ends(void *arg, const char *bytes, size_t size)
{
    text_ends *e = arg;
    size_t n = size < sizeof e->head - e->n_head ? size : sizeof e->head - e->n_head;
    memcpy(e->head + e->n_head, bytes, n);
    e->n_head += n;
    for (size_t i = 0; i < size; i++) {
        if (e->n_tail == sizeof e->tail) {
            memmove(e->tail, e->tail + END_BYTES, END_BYTES);
            e->n_tail = END_BYTES;
        }
        e->tail[e->n_tail++] = bytes[i];
    }
    return !cli_interrupted(NULL);
}

/* Whole characters alone, where it is a text. */
static void cut_ends(text_ends *e)
{
    size_t skip = e->n_tail > END_BYTES ? e->n_tail - END_BYTES : 0;
    while (skip > 0 && skip < e->n_tail && ((unsigned char)e->tail[skip] & 0xc0) == 0x80)
        skip++;
    memmove(e->tail, e->tail + skip, e->n_tail - skip);
    e->n_tail -= skip;
    size_t good = sl_text_utf8_prefix(e->head, e->n_head);
    if (e->n_head == sizeof e->head && e->n_head - good < 4)
        e->n_head = good;
}

const char *cli_show_excerpt(const cli_excerpt *e, char *out, size_t room)
{
    size_t used = 0;
    for (size_t i = e->first; i < e->end && used + 1 < room;) {
        size_t whole = 1;
        while (i + whole < e->n && ((unsigned char)e->bytes[i + whole] & 0xc0) == 0x80)
            whole++;
        bool is_good = sl_text_utf8_prefix(e->bytes + i, whole) == whole && used + whole < room;
        bool is_control = (unsigned char)e->bytes[i] < ' ' || e->bytes[i] == 0x7f;
        if (is_good && !is_control)
            memcpy(out + used, e->bytes + i, whole);
        else
            out[used] = is_control ? ' ' : '?';
        used += is_good && !is_control ? whole : 1;
        i += whole;
    }
    out[used] = '\0';
    return out;
}

static void print_ids(const sl_store_info *s)
{
    size_t n = (size_t)s->n_tokens, head = n < END_TOKENS ? n : END_TOKENS;
    size_t tail = n - head < END_TOKENS ? n - head : END_TOKENS;
    if (n == 0)
        return;
    printf("  token ids    ");
    for (size_t i = 0; i < head; i++)
        printf(" %ld", (long)s->ids[i]);
    if (head + tail < n)
        printf(" ...");
    for (size_t i = n - tail; i < n; i++)
        printf(" %ld", (long)s->ids[i]);
    printf(" (-m MODEL.gguf shows the text)\n");
}

static void print_ends(const text_ends *e)
{
    char shown[2 * END_BYTES];
    const cli_excerpt head = {e->head, e->n_head, 0, e->n_head}, tail = {e->tail, e->n_tail, 0, e->n_tail};
    printf("  begins        \"%s\"\n", cli_show_excerpt(&head, shown, sizeof shown));
    printf("  ends          \"%s\"\n", cli_show_excerpt(&tail, shown, sizeof shown));
}

/* ------------------------------------------------------------------------------------------------------- the file */

static bool has_one_geometry(const sl_store *store, uint32_t n_layers)
{
    sl_store_layer first = sl_store_get_layer(store, 0);
    for (uint32_t i = 1; i < n_layers; i++) {
        sl_store_layer layer = sl_store_get_layer(store, i);
        if (layer.n_kv_heads != first.n_kv_heads || layer.head_dim != first.head_dim)
            return false;
    }
    return true;
}

/* Where layers slide. */
static void print_spans(const sl_store *store, uint32_t n_layers)
{
    uint32_t n = 0, least = 0, most = 0;
    for (uint32_t i = 0; i < n_layers; i++) {
        const uint32_t span = sl_store_get_layer(store, i).span;
        least = span > 0 && (n == 0 || span < least) ? span : least;
        most = span > most ? span : most;
        n += span > 0;
    }
    if (n > 0 && least == most)
        printf("  sliding       %u of %u layers, rows see %u tokens\n", n, n_layers, most);
    else if (n > 0)
        printf("  sliding       %u of %u layers, rows see %u to %u tokens\n", n, n_layers, least, most);
}

static void print_layers(const sl_store *store, const sl_store_info *s)
{
    if (has_one_geometry(store, s->n_layers)) {
        printf("  layers        %u, %u KV heads of %u\n", s->n_layers, s->n_kv_heads, s->head_dim);
        return;
    }
    printf("  layers        %u, KV heads of each:", s->n_layers);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        sl_store_layer layer = sl_store_get_layer(store, i);
        printf(" %ux%u", layer.n_kv_heads, layer.head_dim);
    }
    putchar('\n');
}

static void print_tokens(const sl_store_info *s)
{
    const unsigned long long n = s->n_tokens, wanted = s->intended_tokens;
    if (s->is_finished)
        printf("  tokens        %llu, finished\n", n);
    else if (n > 0 && n == wanted)
        printf("  tokens        %llu of %llu: a writer was stopped, the next --append or prefill finishes it\n", n,
               wanted);
    else
        printf("  tokens        %llu of %llu: unfinished, 'sluice prefill' with the same texts goes on\n", n, wanted);
}

static void print_text(const char *path, const sl_store *store, const sl_store_info *s, const text_ends *ends)
{
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES];
    printf("%s: context of %s\n", path, s->model_name);
    print_tokens(s);
    printf("  text          %s\n",
           s->is_chat ? "a chat template's head and documents (ask it with --chat)" : "documents");
    if (ends->is_known)
        print_ends(ends);
    else
        print_ids(s);
    printf("  cache         %s, %s a token, %s in all\n", s->cache == SL_CACHE_F16 ? "f16" : "q8_0",
           sl_text_format_size(s->token_bytes, a), sl_text_format_size(s->n_tokens * s->token_bytes, b));
    print_layers(store, s);
    print_spans(store, s->n_layers);
    printf("  RoPE          %s, base %g, scale %g, of %u dimensions\n", s->rope_kind, s->rope_base, s->rope_scale,
           s->rope_dims);
    printf("  model         %016llx%016llx, vocabulary of %u, %016llx\n", (unsigned long long)s->model[1],
           (unsigned long long)s->model[0], s->n_vocab, (unsigned long long)s->tokenizer);
    printf("  versions      format %u, arithmetic %u\n", s->format_version, s->arithmetic_version);
    if (s->note)
        printf("  damage        %s\n", s->note);
}

static void json_text(sl_json *j, const char *key, const char *bytes, size_t size, bool is_known)
{
    sl_json_key(j, key);
    if (is_known)
        sl_json_bytes(j, bytes, size);
    else
        sl_json_null(j);
}

static void json_ids(sl_json *j, const char *key, const int32_t *ids, size_t n)
{
    sl_json_key(j, key);
    sl_json_array_start(j);
    for (size_t i = 0; i < n; i++)
        sl_json_int(j, ids[i]);
    sl_json_array_end(j);
}

static void json_geometry(sl_json *j, const sl_store *store, uint32_t n_layers)
{
    sl_json_key(j, "geometry");
    sl_json_array_start(j);
    for (uint32_t i = 0; i < n_layers; i++) {
        sl_store_layer layer = sl_store_get_layer(store, i);
        sl_json_object_start(j);
        sl_json_key(j, "kv_heads");
        sl_json_uint(j, layer.n_kv_heads);
        sl_json_key(j, "head_dim");
        sl_json_uint(j, layer.head_dim);
        sl_json_key(j, "span");
        sl_json_uint(j, layer.span);
        sl_json_object_end(j);
    }
    sl_json_array_end(j);
}

static void json_marks(sl_json *j, const sl_store_info *s)
{
    char mark[33];
    snprintf(mark, sizeof mark, "%016llx%016llx", (unsigned long long)s->model[1], (unsigned long long)s->model[0]);
    sl_json_key(j, "model");
    sl_json_string(j, mark);
    snprintf(mark, sizeof mark, "%016llx", (unsigned long long)s->tokenizer);
    sl_json_key(j, "tokenizer");
    sl_json_string(j, mark);
    sl_json_key(j, "rope_kind");
    sl_json_string(j, s->rope_kind);
    sl_json_key(j, "rope_base");
    sl_json_double(j, s->rope_base);
    sl_json_key(j, "rope_scale");
    sl_json_double(j, s->rope_scale);
}

static sl_status print_json(const sl_store *store, const sl_store_info *s, const text_ends *e, sl_err *err)
{
    sl_json j;
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {{"tokens", s->n_tokens}, {"intended_tokens", s->intended_tokens},
                  {"token_bytes", s->token_bytes}, {"layers", s->n_layers}, {"kv_heads", s->n_kv_heads},
                  {"head_dim", s->head_dim}, {"vocabulary", s->n_vocab}, {"rope_dims", s->rope_dims},
                  {"format_version", s->format_version}, {"arithmetic_version", s->arithmetic_version}};
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
    json_marks(&j, s);
    json_geometry(&j, store, s->n_layers);
    size_t n = (size_t)s->n_tokens, shown = n < END_TOKENS ? n : END_TOKENS;
    json_ids(&j, "first_ids", s->ids, shown);
    json_ids(&j, "last_ids", shown > 0 ? s->ids + (n - shown) : s->ids, shown);
    json_text(&j, "text_head", e->head, e->n_head, e->is_known);
    json_text(&j, "text_tail", e->tail, e->n_tail, e->is_known);
    json_text(&j, "damage", s->note, s->note ? strlen(s->note) : 0, s->note != NULL);
    sl_json_object_end(&j);
    return sl_json_finish(&j, err);
}

sl_status cli_inspect_context(const char *path, const char *model, bool json, sl_err *err)
{
    const sl_store_options options = {.path = path};
    const cli_engine_options vocabulary = {.model = model, .vocab_only = true};
    text_ends ends = {.is_known = model != NULL};
    cli c;
    cli_init(&c);
    sl_engine *engine = NULL;
    sl_store *store = NULL;
    sl_status status = model ? cli_open(&c, &vocabulary, &engine, err) : SL_OK;
    if (status == SL_OK)
        status = sl_store_open(engine, &options, &store, err);
    if (status == SL_OK && model)
        status = sl_store_get_text(store, true, take_ends, &ends, err);
    if (status == SL_OK) {
        sl_store_info info;
        sl_store_get_info(store, &info);
        cut_ends(&ends);
        if (json)
            status = print_json(store, &info, &ends, err);
        else
            print_text(path, store, &info, &ends);
    }
    sl_store_close(store);
    sl_engine_close(engine);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- damage */

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
