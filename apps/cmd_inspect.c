/* sluice inspect: what a model file holds. */
#include <string.h>

#include "cli.h"

static void print_value(void *arg, const char *key, size_t key_size, const char *type, const char *text)
{
    (void)arg;
    printf("  %-44.*s %-9s %s\n", (int)key_size, key, type, text);
}

static void print_tensor(void *arg, const char *name, size_t name_size, const char *type, const uint64_t dims[4],
                         uint64_t bytes)
{
    (void)arg;
    char shape[96];
    int n = 4;
    while (n > 1 && dims[n - 1] == 1)
        n--;
    size_t used = 0;
    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%llu", i ? " x " : "",
                                 (unsigned long long)dims[i]);
    printf("  %-44.*s %-9s %-24s %llu\n", (int)name_size, name, type, shape, (unsigned long long)bytes);
}

static void print_summary(const sl_model_summary *s)
{
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES];
    printf("GGUF version %u, %s, %llu tensors, %llu parameters\n", s->gguf_version,
           sl_text_format_size(s->file_bytes, a), (unsigned long long)s->n_tensors,
           (unsigned long long)s->n_parameters);
    if (s->kv_token_bytes_f16 == 0) {
        printf("cannot be run here: %s\n", s->problem);
        return;
    }
    printf("KV bytes per token: f16 %llu", (unsigned long long)s->kv_token_bytes_f16);
    if (s->kv_token_bytes_q8_0 > 0)
        printf(", q8_0 %llu", (unsigned long long)s->kv_token_bytes_q8_0);
    printf("\ntrained context: %u tokens", s->n_ctx_train);
    uint64_t full = (s->kv_token_bytes_q8_0 ? s->kv_token_bytes_q8_0 : s->kv_token_bytes_f16) * s->n_ctx_train;
    printf(" (%s of %s cache)\n", sl_text_format_size(full, a), s->kv_token_bytes_q8_0 ? "q8_0" : "f16");
    if (s->n_sliding_layers > 0)
        printf("sliding layers: %u of %u, rows see %u tokens (of that context a run keeps %s, a pass at its end reads "
               "%s)\n",
               s->n_sliding_layers, s->n_layers, s->sliding_span,
               sl_text_format_size(s->kv_token_bytes_q8_0 ? s->kv_kept_bytes_q8_0 : s->kv_kept_bytes_f16, a),
               sl_text_format_size(s->kv_token_bytes_q8_0 ? s->kv_walked_bytes_q8_0 : s->kv_walked_bytes_f16, b));
}

static void json_value(void *arg, const char *key, size_t key_size, const char *type, const char *text)
{
    sl_json *j = arg;
    sl_json_object_start(j);
    sl_json_key(j, "key");
    sl_json_bytes(j, key, key_size);
    sl_json_key(j, "type");
    sl_json_string(j, type);
    sl_json_key(j, "value");
    sl_json_string(j, text);
    sl_json_object_end(j);
}

static void json_tensor(void *arg, const char *name, size_t name_size, const char *type, const uint64_t dims[4],
                        uint64_t bytes)
{
    sl_json *j = arg;
    sl_json_object_start(j);
    sl_json_key(j, "name");
    sl_json_bytes(j, name, name_size);
    sl_json_key(j, "type");
    sl_json_string(j, type);
    sl_json_key(j, "dims");
    sl_json_array_start(j);
    for (int i = 0; i < 4; i++)
        sl_json_uint(j, dims[i]);
    sl_json_array_end(j);
    sl_json_key(j, "bytes");
    sl_json_uint(j, bytes);
    sl_json_object_end(j);
}

static void json_layer(void *arg, uint32_t layer, uint64_t span)
{
    (void)layer;
    sl_json_uint(arg, span);
}

/* Four walks: the summary first, so that a broken file prints nothing but its error. */
static sl_status print_json(const char *path, const sl_model_summary *s, sl_err *err)
{
    sl_json j;
    sl_model_summary unused;
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {{"gguf_version", s->gguf_version}, {"file_bytes", s->file_bytes},
                  {"n_tensors", s->n_tensors}, {"n_parameters", s->n_parameters},
                  {"tensor_bytes", s->tensor_bytes}, {"kv_token_bytes_f16", s->kv_token_bytes_f16},
                  {"kv_token_bytes_q8_0", s->kv_token_bytes_q8_0},
                  {"kv_walked_bytes_f16", s->kv_walked_bytes_f16}, {"kv_walked_bytes_q8_0", s->kv_walked_bytes_q8_0},
                  {"kv_kept_bytes_f16", s->kv_kept_bytes_f16}, {"kv_kept_bytes_q8_0", s->kv_kept_bytes_q8_0},
                  {"n_ctx_train", s->n_ctx_train}, {"n_layers", s->n_layers},
                  {"n_sliding_layers", s->n_sliding_layers}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        sl_json_key(&j, counts[i].key);
        sl_json_uint(&j, counts[i].value);
    }
    sl_json_key(&j, "problem");
    if (s->problem[0])
        sl_json_string(&j, s->problem);
    else
        sl_json_null(&j);
    sl_json_key(&j, "layer_spans");
    sl_json_array_start(&j);
    const sl_model_visitor layers = {.layer = json_layer, .arg = &j};
    sl_status status = sl_model_inspect(path, &layers, &unused, err);
    sl_json_array_end(&j);
    sl_json_key(&j, "metadata");
    sl_json_array_start(&j);
    const sl_model_visitor values = {.value = json_value, .arg = &j};
    if (status == SL_OK)
        status = sl_model_inspect(path, &values, &unused, err);
    sl_json_array_end(&j);
    sl_json_key(&j, "tensors");
    sl_json_array_start(&j);
    const sl_model_visitor tensors = {.tensor = json_tensor, .arg = &j};
    if (status == SL_OK)
        status = sl_model_inspect(path, &tensors, &unused, err);
    sl_json_array_end(&j);
    sl_json_object_end(&j);
    return status == SL_OK ? sl_json_finish(&j, err) : status;
}

int cmd_inspect(int argc, char **argv, sl_err *err)
{
    bool json = false;
    const char *model = NULL;
    const sl_arg options[] = {
        {.name = "model", .letter = 'm', .kind = SL_ARG_KIND_STRING, .out = &model, .metavar = "MODEL.gguf",
         .group = "Input", .help = "of a context file, the model that it was made with: shows its text's two ends"},
        {.name = "json", .kind = SL_ARG_KIND_FLAG, .out = &json, .group = "Output",
         .help = "one JSON object on stdout"},
    };
    const sl_args_table table = {
        .usage = "sluice inspect MODEL.gguf|[-m MODEL.gguf] BOOK.kv [--json]",
        .about = "Prints a model's metadata, tensors and KV bytes per token, or what a context file holds.",
        .options = options,
        .n_options = sizeof options / sizeof options[0],
        .min_words = 1,
        .max_words = 1,
        .words_name = "MODEL.gguf or BOOK.kv",
    };
    sl_args_result result;
    int code = SL_OK;
    if (!cli_parse(&table, argc, argv, &result, &code, err))
        return code;
    const char *path = result.words[0];
    if (cli_is_context(path))
        return (int)cli_inspect_context(path, model, json, err);
    const sl_model_visitor nothing = {0};
    sl_model_summary summary;
    sl_status status = sl_model_inspect(path, &nothing, &summary, err);
    if (status != SL_OK)
        return (int)status;
    if (json)
        return (int)print_json(path, &summary, err);
    print_summary(&summary);
    printf("\nmetadata\n");
    const sl_model_visitor values = {.value = print_value};
    status = sl_model_inspect(path, &values, &summary, err);
    printf("\ntensors\n");
    const sl_model_visitor tensors = {.tensor = print_tensor};
    return status == SL_OK ? (int)sl_model_inspect(path, &tensors, &summary, err) : (int)status;
}
