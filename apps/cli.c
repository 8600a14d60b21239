#include "cli.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;

/* The first Ctrl-C asks; a second one, by SA_RESETHAND, ends the process at once. */
static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

void cli_init(cli *c)
{
    memset(c, 0, sizeof *c);
    sl_progress_init(&c->progress, stderr, isatty(STDERR_FILENO) == 1);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = (int)SA_RESETHAND;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* A file size limit is an error of the write, to be named like any other. */
    action.sa_handler = SIG_IGN;
    action.sa_flags = 0;
    sigaction(SIGXFSZ, &action, NULL);
}

double cli_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

bool cli_interrupted(void *arg)
{
    (void)arg;
    return interrupted != 0;
}

sl_status cli_open_store(sl_engine *engine, const char *path, bool chat, sl_store **out, sl_err *err)
{
    const sl_store_options options = {.path = path};
    return cli_open_store_with(engine, &options, chat, out, err);
}

void cli_tell_unfinished(const char *prefix, const char *path, const sl_store_info *s)
{
    const unsigned long long n = s->n_tokens, wanted = s->intended_tokens;
    if (s->is_finished)
        return;
    if (n > 0 && n == wanted)
        fprintf(stderr, "sluice: %s%s: a writer was stopped; all %llu tokens are there, the next --append or prefill "
                "finishes it\n", prefix, path, n);
    else
        fprintf(stderr, "sluice: %s%s is unfinished: %llu of %llu tokens\n", prefix, path, n, wanted);
}

sl_status cli_open_store_of(sl_engine *engine, const sl_store_options *options, sl_store **out, sl_err *err)
{
    sl_status status = sl_store_open(engine, options, out, err);
    if (status != SL_OK)
        return status;
    sl_store_info info;
    sl_store_get_info(*out, &info);
    cli_tell_unfinished("warning: ", options->path, &info);
    if (info.note)
        fprintf(stderr, "sluice: warning: %s: %s\n", options->path, info.note);
    return info.n_tokens > 0 ? SL_OK : sl_text_error(err, SL_REFUSED, "%s: it holds no tokens yet", options->path);
}

sl_status cli_open_store_with(sl_engine *engine, const sl_store_options *options, bool chat, sl_store **out,
                              sl_err *err)
{
    sl_status status = cli_open_store_of(engine, options, out, err);
    if (status != SL_OK)
        return status;
    sl_store_info info;
    sl_store_get_info(*out, &info);
    if (chat == info.is_chat)
        return SL_OK;
    return sl_text_error(err, SL_REFUSED,
                         chat ? "%s: made without --chat, its text is not in a chat template ('sluice prefill --chat' "
                                "makes one that is)"
                              : "%s: made with --chat: ask it with --chat, too",
                         options->path);
}

void cli_count(void *arg, size_t done_tokens, size_t total_tokens)
{
    cli *c = arg;
    const sl_progress_state state = {c->phase, "tokens", done_tokens, total_tokens};
    sl_progress_update(&c->progress, &state, cli_seconds());
}

static bool count_bytes(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    cli *c = arg;
    const sl_progress_state state = {"loading", "MiB", done_bytes >> 20, total_bytes >> 20};
    sl_progress_update(&c->progress, &state, cli_seconds());
    return !interrupted;
}

static void log_line(void *arg, bool warning, const char *text)
{
    cli *c = arg;
    if (!warning && !c->verbose)
        return;
    sl_progress_clear(&c->progress);
    fprintf(stderr, "sluice: %s%s\n", warning ? "warning: " : "", text);
}

static void print_engine(const sl_engine *engine)
{
    sl_engine_info info;
    char ram[SL_TEXT_NUMBER_BYTES], weights[SL_TEXT_NUMBER_BYTES];
    sl_engine_get_info(engine, &info);
    fprintf(stderr, "sluice: %u threads, %s kernels, memory budget %s, weights %s\n", info.n_threads, info.cpu_level,
            sl_text_format_size(info.ram_bytes, ram), sl_text_format_size(info.weight_bytes, weights));
    const char *name, *level;
    for (size_t i = 0; (name = sl_engine_kernel(engine, i, &level)) != NULL; i++)
        fprintf(stderr, "sluice: kernel %-14s %s\n", name, level);
}

sl_status cli_read_text(const char *path, uint64_t limit, char **out, size_t *out_bytes, sl_err *err)
{
    sl_status status = sl_text_read(path, limit, cli_interrupted, out, out_bytes, err);
    return status != SL_OK && interrupted ? sl_text_error(err, SL_CANCELLED, "interrupted") : status;
}

sl_status cli_read_document(const char *path, const cli_engine_options *options, char **out, size_t *out_bytes,
                            sl_err *err)
{
    /* A budget that is smaller than any model is refused by the engine, with better words. */
    uint64_t least = UINT64_C(64) << 20, limit = (uint64_t)options->ram_bytes;
    if (limit == 0)
        limit = UINT64_C(1) << 40;
    if (cli_expect_other_file("--trace", options->trace, path, err) != SL_OK)
        return SL_USAGE;
    return cli_read_text(path, limit > least ? limit : least, out, out_bytes, err);
}

char *cli_folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

sl_status cli_expect_other_file(const char *option, const char *output, const char *input, sl_err *err)
{
    struct stat out, in;
    if (!output || stat(output, &out) != 0 || stat(input, &in) != 0 || in.st_dev != out.st_dev ||
        in.st_ino != out.st_ino)
        return SL_OK;
    return sl_text_error(err, SL_USAGE, "%s %s is the same file as %s", option, output, input);
}

sl_status cli_expect_other_output(const char *trace, sl_err *err)
{
    struct stat out, in;
    if (!trace || stat(trace, &in) != 0 || fstat(STDOUT_FILENO, &out) != 0 || in.st_dev != out.st_dev ||
        in.st_ino != out.st_ino)
        return SL_OK;
    if (S_ISCHR(out.st_mode) && !isatty(STDOUT_FILENO)) /* /dev/null takes both */
        return SL_OK;
    return sl_text_error(err, SL_USAGE, "--trace %s is the standard output: the results go there", trace);
}

int cli_close(sl_engine *engine, int code, sl_err *err)
{
    if (engine && code == (int)SL_OK)
        code = (int)sl_engine_end_trace(engine, err);
    sl_engine_close(engine);
    return code;
}

sl_status cli_open(cli *c, const cli_engine_options *options, sl_engine **out, sl_err *err)
{
    const sl_engine_options engine_options = {
        .model_path = options->model,
        .ram_bytes = (uint64_t)options->ram_bytes,
        .n_threads = (uint32_t)options->threads,
        .vocab_only = options->vocab_only,
        .plan_only = options->plan_only,
        .draft_model_path = options->draft_model,
        .chat_template = options->chat_template,
        .trace_path = options->trace,
        .log = log_line,
        .progress = count_bytes,
        .arg = c,
    };
    sl_status status = cli_expect_other_file("--trace", options->trace, options->model, err);
    if (status == SL_OK)
        status = cli_expect_other_output(options->trace, err);
    if (status == SL_OK)
        status = sl_engine_open(&engine_options, out, err);
    sl_progress_clear(&c->progress);
    if (status == SL_OK && c->verbose)
        print_engine(*out);
    return status;
}

bool cli_parse(const sl_args_table *table, int argc, char **argv, sl_args_result *result, int *exit_code, sl_err *err)
{
    *exit_code = (int)sl_args_parse(table, argc, argv, result, err);
    if (*exit_code != SL_OK)
        return false;
    if (!result->help)
        return true;
    sl_args_print_help(table, stdout);
    return false;
}

size_t cli_put_options(sl_arg *out, const sl_arg *options, size_t n)
{
    memcpy(out, options, n * sizeof *options);
    return n;
}

size_t cli_model_options(cli_machine *m, sl_arg *out)
{
    const sl_arg options[CLI_MODEL_OPTIONS] = {
        {.name = "model", .letter = 'm', .kind = SL_ARG_KIND_STRING, .out = &m->engine.model, .required = true,
         .metavar = "MODEL.gguf", .group = "Input", .help = "model file (GGUF; of a split one the first)"},
    };
    return cli_put_options(out, options, CLI_MODEL_OPTIONS);
}

size_t cli_template_options(cli_machine *m, const char **system, sl_arg *out)
{
    const sl_arg options[CLI_TEMPLATE_OPTIONS] = {
        {.name = "system", .kind = SL_ARG_KIND_STRING, .out = system, .allow_empty = true, .metavar = "TEXT",
         .help = "the system message that a conversation begins with", .default_text = "the template's own"},
        {.name = "chat-template", .kind = SL_ARG_KIND_STRING, .out = &m->engine.chat_template, .metavar = "NAME",
         .help = "a template known here in place of the model file's; a wrong name lists them"},
    };
    return cli_put_options(out, options, CLI_TEMPLATE_OPTIONS);
}

sl_status cli_template_check(const cli_machine *m, const char *system, bool chat, sl_err *err)
{
    const char *name = system ? "--system" : m->engine.chat_template ? "--chat-template" : NULL;
    if (chat || !name)
        return SL_OK;
    return sl_text_error(err, SL_USAGE, "%s is about a conversation: it needs --chat", name);
}

size_t cli_compute_options(cli_machine *m, sl_arg *out)
{
    static const char *const kv_choices[] = {"q8_0", "f16", NULL};
    m->kv = -1;
    const sl_arg options[CLI_COMPUTE_OPTIONS] = {
        {.name = "ram", .kind = SL_ARG_KIND_SIZE, .out = &m->engine.ram_bytes, .min = 1, .max = INT64_MAX,
         .group = "Machine", .help = "ceiling of the memory in use, weights included",
         .default_text = "half of what is free"},
        {.name = "kv", .kind = SL_ARG_KIND_CHOICE, .out = &m->kv, .choices = kv_choices,
         .help = "stored type of the cache", .default_text = "a context file's, else q8_0"},
        {.name = "threads", .kind = SL_ARG_KIND_INT, .out = &m->engine.threads, .min = 1, .max = 1024,
         .help = "computing threads", .default_text = "all processors"},
        {.name = "window", .kind = SL_ARG_KIND_TOKENS, .out = &m->window, .min = 64, .max = 1 << 20,
         .help = "tokens taken through the layers together, a multiple of 64", .default_text = "from the budget"},
        {.name = "ring", .kind = SL_ARG_KIND_SIZE, .out = &m->ring, .min = 1, .max = INT64_MAX,
         .help = "memory of the read buffers together", .default_text = "from the budget"},
    };
    return cli_put_options(out, options, CLI_COMPUTE_OPTIONS);
}

size_t cli_io_options(cli_machine *m, sl_arg *out)
{
    static const char *const io_choices[] = {
        [SL_IO_AUTO] = "auto", [SL_IO_URING] = "uring", [SL_IO_POOL] = "pool", [SL_IO_BUFFERED] = "buffered", NULL};
    const sl_arg options[CLI_IO_OPTIONS] = {
        {.name = "kv-dir", .kind = SL_ARG_KIND_STRING, .out = &m->kv_dir, .metavar = "DIR", .group = "Flash",
         .help = "where the cache lies (an unnamed file)", .default_text = "$SLUICE_KV_DIR, else /var/tmp"},
        {.name = "allow-ram-dir", .kind = SL_ARG_KIND_FLAG, .out = &m->allow_ram_dir,
         .help = "accept a memory file system there"},
        {.name = "io", .kind = SL_ARG_KIND_CHOICE, .out = &m->io, .choices = io_choices, .metavar = "HOW",
         .help = "how it is read: auto, uring, pool (of threads), buffered (no direct I/O)",
         .default_text = "auto"},
        {.name = "io-probe", .kind = SL_ARG_KIND_FLAG, .out = &m->io_probe,
         .help = "measure the disk anew, two seconds, and remember it"},
        {.name = "read-rate", .kind = SL_ARG_KIND_SIZE, .out = &m->read_rate, .metavar = "RATE", .min = 4096,
         .max = INT64_MAX,
         .help = "bytes a second that reading the cache may take", .default_text = "all there is"},
        {.name = "trace", .kind = SL_ARG_KIND_STRING, .out = &m->engine.trace, .metavar = "FILE",
         .help = "write what happened when, in the Chrome trace format (opens in Perfetto)"},
    };
    return cli_put_options(out, options, CLI_IO_OPTIONS);
}

size_t cli_long_options(cli_machine *m, sl_arg *out)
{
    static const char *const scalings[] = {"model", "none", "linear", "yarn", "llama3", NULL};
    static const char *const sets[] = {"auto", "short", "long", NULL};
    const sl_arg options[CLI_LONG_OPTIONS] = {
        {.name = "rope-scale", .kind = SL_ARG_KIND_FLOAT, .out = &m->rope_scale, .low = 1, .high = 1e6,
         .group = "Long contexts", .help = "stretch positions by this factor, and the trained context with them"},
        {.name = "rope-scaling", .kind = SL_ARG_KIND_CHOICE, .out = &m->rope_scaling, .choices = scalings,
         .metavar = "RULE", .help = "how: none, linear, yarn, llama3, model (as the file says)",
         .default_text = "model"},
        {.name = "rope-base", .kind = SL_ARG_KIND_FLOAT, .out = &m->rope.base, .low = 1, .high = 1e15,
         .help = "base of the frequencies of rotary positions", .default_text = "the model's own"},
        {.name = "rope-set", .kind = SL_ARG_KIND_CHOICE, .out = &m->rope_set, .choices = sets, .metavar = "SET",
         .help = "factors of LongRoPE: short, long (for more than the original context), auto: by the tokens asked for",
         .default_text = "auto"},
        {.name = "yarn-orig-ctx", .kind = SL_ARG_KIND_FLOAT, .out = &m->rope.original, .low = 1, .high = 1e9,
         .metavar = "TOKENS", .help = "the context before it was stretched", .default_text = "the model's own"},
        {.name = "yarn-ext-factor", .kind = SL_ARG_KIND_FLOAT, .out = &m->rope.yarn_extrapolate, .low = 1e-6, .high = 1,
         .help = "share of the unscaled frequencies where YaRN mixes", .default_text = "the model's own"},
        {.name = "yarn-attn-factor", .kind = SL_ARG_KIND_FLOAT, .out = &m->rope.yarn_magnitude, .low = 1e-3,
         .high = 1e3, .help = "length of turned queries and keys, beside YaRN's",
         .default_text = "the model's own"},
        {.name = "yarn-beta-fast", .kind = SL_ARG_KIND_FLOAT, .out = &m->rope.yarn_fast, .low = 1e-3, .high = 1e6,
         .help = "turns from which on YaRN keeps a frequency", .default_text = "the model's own"},
        {.name = "yarn-beta-slow", .kind = SL_ARG_KIND_FLOAT, .out = &m->rope.yarn_slow, .low = 1e-3, .high = 1e6,
         .help = "turns up to which YaRN divides it in full", .default_text = "the model's own"},
        {.name = "force-context", .kind = SL_ARG_KIND_FLAG, .out = &m->force_context,
         .help = "go on beyond the trained context"},
    };
    return cli_put_options(out, options, CLI_LONG_OPTIONS);
}

size_t cli_output_options(cli_machine *m, sl_arg *out)
{
    const sl_arg options[CLI_OUTPUT_OPTIONS] = {
        {.name = "json", .kind = SL_ARG_KIND_FLAG, .out = &m->json, .group = "Output",
         .help = "one JSON object on stdout; text and progress go to stderr"},
        {.name = "verbose", .letter = 'v', .kind = SL_ARG_KIND_FLAG, .out = &m->verbose,
         .help = "plan, kernels and memory on stderr"},
    };
    return cli_put_options(out, options, CLI_OUTPUT_OPTIONS);
}

size_t cli_machine_table(cli_machine *m, const sl_arg *own, size_t n_own, sl_arg *out)
{
    const sl_arg file = {.name = "file", .letter = 'f', .kind = SL_ARG_KIND_STRING, .out = &m->file,
                         .metavar = "DOC.txt", .help = "the document; - reads standard input"};
    size_t n = cli_model_options(m, out);
    n += cli_put_options(out + n, &file, 1);
    n += cli_put_options(out + n, own, n_own);
    n += cli_compute_options(m, out + n);
    n += cli_io_options(m, out + n);
    n += cli_long_options(m, out + n);
    return n + cli_output_options(m, out + n);
}

static sl_rope_options rope_options(const cli_machine *m)
{
    sl_rope_options rope = m->rope;
    rope.scaling = (sl_rope_scaling)m->rope_scaling;
    rope.set = (sl_rope_set)m->rope_set;
    return rope;
}

static void put_own(double own, double *out)
{
    if (own != 0.0)
        *out = own;
}

void cli_use_store(const cli_machine *m, sl_store *store, sl_context_options *options)
{
    sl_store_info info;
    sl_store_get_info(store, &info);
    options->store = store;
    if (m->kv < 0)
        options->cache = info.cache;
    if (m->rope_scale > 0.0 || m->rope_scaling > 0 || m->rope_set > 0 || m->rope.base > 0.0)
        return;
    const sl_rope_options own = options->rope;
    options->rope_scale = info.rope_scale;
    options->rope = info.rope;
    put_own(own.original, &options->rope.original);
    put_own(own.yarn_magnitude, &options->rope.yarn_magnitude);
    put_own(own.yarn_extrapolate, &options->rope.yarn_extrapolate);
    put_own(own.yarn_fast, &options->rope.yarn_fast);
    put_own(own.yarn_slow, &options->rope.yarn_slow);
}

sl_context_options cli_context_options(const cli_machine *m, size_t prompt_tokens)
{
    return (sl_context_options){
        .cache = m->kv == 1 ? SL_CACHE_F16 : SL_CACHE_Q8_0,
        .kv_dir = m->kv_dir,
        .allow_ram_dir = m->allow_ram_dir,
        .prompt_tokens = prompt_tokens,
        .window_tokens = (size_t)m->window,
        .ring_bytes = (uint64_t)m->ring,
        .read_rate = (uint64_t)m->read_rate,
        .io = (sl_io)m->io,
        .io_probe = m->io_probe,
        .rope_scale = m->rope_scale,
        .rope = rope_options(m),
        .force_context = m->force_context,
        .stop = cli_interrupted,
    };
}
