#include "chat_talk.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chat_lines.h"
#include "draft_report.h"

enum { ROOM_TOKENS = 16384, LEAST_ROOM_TOKENS = 64 };

/* ----------------------------------------------------------------------------------------------------------- start */

/* What the trained context leaves, and no more than one conversation is likely to take: room costs disk and tables. */
static size_t default_room(const chat_talk *t, const cli_machine *machine, const sl_store_info *stored)
{
    sl_engine_info info;
    sl_engine_get_info(t->engine, &info);
    double scale = stored->rope_scale > 1.0 ? stored->rope_scale : machine->rope_scale;
    double trained = (double)info.n_ctx_train * (scale > 1.0 ? scale : 1.0);
    double left = trained - (double)stored->n_tokens;
    if (machine->force_context || left >= ROOM_TOKENS)
        return ROOM_TOKENS;
    return left > LEAST_ROOM_TOKENS ? (size_t)left : LEAST_ROOM_TOKENS;
}

static sl_status find_questions(chat_talk *t, const sl_store_info *stored, sl_err *err)
{
    size_t n = (size_t)stored->n_tokens;
    sl_status status = sl_engine_chat_questions(t->engine, stored->ids, n, NULL, 0, &t->n_questions, err);
    if (status != SL_OK)
        return status;
    t->questions_cap = t->n_questions + 16;
    t->questions = calloc(t->questions_cap, sizeof *t->questions);
    if (!t->questions)
        return sl_text_error(err, SL_FAILED, "out of memory: questions");
    return sl_engine_chat_questions(t->engine, stored->ids, n, t->questions, t->n_questions, &t->n_questions, err);
}

sl_status chat_talk_start(chat_talk *t, const cli_machine *machine, size_t room_tokens, sl_err *err)
{
    sl_store_info stored = {0};
    if (t->store)
        sl_store_get_info(t->store, &stored);
    sl_status status = find_questions(t, &stored, err);
    if (status != SL_OK)
        return status;
    size_t room = room_tokens ? room_tokens : default_room(t, machine, &stored);
    if (t->draw.predict_tokens >= room)
        t->draw.predict_tokens = room - 1;
    t->read_rate = (uint64_t)machine->read_rate;
    sl_context_options options = cli_context_options(machine, room - t->draw.predict_tokens);
    options.predict_tokens = t->draw.predict_tokens;
    cli_draft_context(t->draft, &options);
    cli_draft_draw(t->draft, &t->draw);
    options.talk = true;
    options.store_chat = true;
    options.stop = chat_stop;
    if (t->store)
        cli_use_store(machine, t->store, &options);
    return cli_make_context(t->c, t->engine, &options, &t->context, err);
}

void chat_talk_end(chat_talk *t)
{
    sl_context_destroy(t->context);
    free(t->questions);
    cli_answer_free(&t->answer);
}

size_t chat_talk_room(const chat_talk *t)
{
    sl_plan plan;
    sl_context_get_plan(t->context, &plan);
    size_t n = sl_context_n_tokens(t->context);
    return plan.max_tokens > n ? plan.max_tokens - n : 0;
}

/* ------------------------------------------------------------------------------------------------------------- ask */

static bool on_token(void *arg, int32_t id, const char *text, size_t size)
{
    chat_talk *t = arg;
    if (size > 0) {
        t->has_text = text[size - 1] != '\n';
        fwrite(text, 1, size, t->text_out);
        fflush(t->text_out);
    }
    return (!t->is_json || cli_answer_add(&t->answer, id, text, size)) && !chat_stop(NULL);
}

static sl_status write_prompt(const chat_talk *t, const char *message, size_t size, sl_tokens *out, sl_err *err)
{
    const sl_prompt prompt = {
        .question = message,
        .question_size = size,
        .chat = true,
        .stored = true,
        .stored_ids = sl_context_ids(t->context),
        .n_stored = sl_context_n_tokens(t->context),
        .system = t->system,
        .system_size = t->system ? strlen(t->system) : 0,
    };
    return sl_engine_prompt(t->engine, &prompt, out, err);
}

static sl_status note_question(chat_talk *t, sl_err *err)
{
    if (t->n_questions == t->questions_cap) {
        size_t cap = 2 * t->questions_cap;
        size_t *grown = realloc(t->questions, cap * sizeof *grown);
        if (!grown)
            return sl_text_error(err, SL_FAILED, "out of memory: questions");
        t->questions = grown;
        t->questions_cap = cap;
    }
    t->questions[t->n_questions] = sl_context_n_tokens(t->context);
    return SL_OK;
}

static sl_status feed(chat_talk *t, const sl_tokens *prompt, sl_err *err)
{
    size_t room = chat_talk_room(t);
    if (prompt->n >= room)
        return sl_text_error(err, SL_REFUSED,
                             "the room is full: it has %zu tokens left, the message takes %zu and its answer at least "
                             "one; /rewind takes questions back, or /save NAME.kv and go on with more --room",
                             room, prompt->n);
    t->c->phase = "reading";
    sl_progress_init(&t->c->progress, stderr, isatty(STDERR_FILENO) == 1);
    sl_status status = sl_context_feed(t->context, prompt->ids, prompt->n, cli_count, t->c, err);
    sl_progress_clear(&t->c->progress);
    return status;
}

static double per(double amount, double seconds)
{
    return seconds > 0.0 ? amount / seconds : 0.0;
}

static cli_plain_floor plain_floor(const chat_talk *t, const sl_stats *s)
{
    sl_estimate one_row;
    sl_context_estimate(t->context, 1, &one_row);
    return cli_plain_floor_of(s, &one_row, t->read_rate);
}

static sl_status print_json(const chat_talk *t, const sl_draw_result *result, const sl_stats *before, sl_err *err)
{
    sl_stats s;
    sl_context_get_stats(t->context, &s);
    sl_json j;
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    cli_answer_json(&j, &t->answer, t->engine, result->reason);
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        {"prompt_tokens", s.prompt_tokens - before->prompt_tokens}, {"context_tokens", sl_context_n_tokens(t->context)},
        {"stored_tokens", s.stored_tokens}, {"room_tokens", chat_talk_room(t)}, {"kv_bytes", s.kv_bytes},
        {"resident_bytes", s.resident_bytes}, {"bytes_read", s.bytes_read - before->bytes_read},
        {"bytes_written", s.bytes_written - before->bytes_written}, {"passes", s.n_passes - before->n_passes},
        {"rows", s.n_rows - before->n_rows}, {"drafted", s.n_drafted - before->n_drafted},
        {"accepted", s.n_accepted - before->n_accepted}, {"peak_rss_bytes", s.peak_rss_bytes},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        sl_json_key(&j, counts[i].key);
        sl_json_uint(&j, counts[i].value);
    }
    sl_json_key(&j, "prefill_s");
    sl_json_double(&j, s.prefill_s - before->prefill_s);
    sl_json_key(&j, "decode_s");
    sl_json_double(&j, s.decode_s - before->decode_s);
    s.n_passes -= before->n_passes;
    s.decode_bytes_read -= before->decode_bytes_read;
    s.n_tokens -= before->n_tokens;
    cli_drafting_since(&s, before);
    cli_json_drafting(&j, &s, plain_floor(t, &s));
    sl_json_object_end(&j);
    return sl_json_finish(&j, err);
}

sl_status chat_talk_json_error(const sl_err *why, sl_err *err)
{
    sl_json j;
    sl_json_init(&j, stdout);
    sl_json_object_start(&j);
    sl_json_key(&j, "error");
    sl_json_string(&j, why->text);
    sl_json_key(&j, "code");
    sl_json_int(&j, (int)why->status);
    sl_json_object_end(&j);
    return sl_json_finish(&j, err);
}

static void explain_end(const chat_talk *t, const sl_draw_result *result)
{
    if (result->reason == SL_FINISH_REASON_CONTEXT)
        fprintf(stderr, "sluice: the room is full: /rewind takes questions back, or /save NAME.kv and go on with more "
                        "--room\n");
    else if (result->reason == SL_FINISH_REASON_LENGTH && t->is_terminal)
        fprintf(stderr, "sluice: cut after %zu tokens (-n)\n", t->draw.predict_tokens);
    else if (result->reason == SL_FINISH_REASON_CANCELLED && t->is_terminal)
        fprintf(stderr, "sluice: stopped; what was answered is part of the conversation (/rewind takes it back)\n");
}

static sl_status answer(chat_talk *t, const sl_stats *before, sl_err *err)
{
    sl_draw_options draw = t->draw;
    sl_draw_result result = {SL_FINISH_REASON_STOP, 0};
    draw.token = on_token;
    draw.arg = t;
    cli_answer_clear(&t->answer);
    t->has_text = false;
    sl_status status = sl_context_generate(t->context, &draw, &result, err);
    if (t->has_text || !t->is_json) {
        fputc('\n', t->text_out);
        fflush(t->text_out);
    }
    if (status == SL_OK && t->answer.out_of_memory)
        status = sl_text_error(err, SL_FAILED, "out of memory: answer");
    if (status != SL_OK)
        return status;
    explain_end(t, &result);
    return t->is_json ? print_json(t, &result, before, err) : SL_OK;
}

sl_status chat_talk_ask(chat_talk *t, const char *message, size_t size, sl_err *err)
{
    sl_stats before;
    sl_tokens prompt = {0};
    sl_context_get_stats(t->context, &before);
    sl_status status = write_prompt(t, message, size, &prompt, err);
    if (status == SL_OK)
        status = note_question(t, err);
    if (status == SL_OK)
        status = feed(t, &prompt, err);
    sl_tokens_free(t->engine, &prompt);
    if (status != SL_OK)
        return status;
    t->n_questions++;
    t->n_asked++;
    return answer(t, &before, err);
}

/* -------------------------------------------------------------------------------------------------------- commands */

sl_status chat_talk_rewind(chat_talk *t, size_t n_questions, sl_err *err)
{
    if (n_questions > t->n_questions)
        return sl_text_error(err, SL_REFUSED, "there %s %zu question%s to take back%s",
                             t->n_questions == 1 ? "is" : "are", t->n_questions, t->n_questions == 1 ? "" : "s",
                             t->store ? " (a file's first message stays)" : "");
    size_t n_tokens = t->questions[t->n_questions - n_questions];
    /* of an empty conversation one token stays: the template goes on from there */
    sl_status status = sl_context_rewind(t->context, n_tokens ? n_tokens : 1, err);
    if (status != SL_OK)
        return status;
    t->n_questions -= n_questions;
    fprintf(stderr, "sluice: %zu question%s taken back; room for %zu tokens\n", n_questions,
            n_questions == 1 ? "" : "s", chat_talk_room(t));
    size_t n_again = sl_context_n_tokens(t->context) - sl_context_n_stored(t->context);
    if (n_again > 1)
        fprintf(stderr,
                "sluice: sliding layers keep only what was said lately: %zu tokens are computed again before the next "
                "answer\n",
                n_again);
    return SL_OK;
}

static bool count_bytes(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    cli *c = arg;
    const sl_progress_state state = {"saving", "MiB", done_bytes >> 20, total_bytes >> 20};
    sl_progress_update(&c->progress, &state, cli_seconds());
    return !chat_stop(NULL);
}

/* As a shell takes it for one word. */
static void print_word(const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789%+,-./:=@_";
    bool is_plain = word[0] != '\0' && word[strspn(word, plain)] == '\0';
    if (is_plain) {
        fputs(word, stderr);
        return;
    }
    fputc('\'', stderr);
    for (; *word; word++)
        fputs(*word == '\'' ? "'\\''" : (const char[]){*word, '\0'}, stderr);
    fputc('\'', stderr);
}

sl_status chat_talk_save(chat_talk *t, const char *path, sl_err *err)
{
    if (sl_context_n_tokens(t->context) == 0)
        return sl_text_error(err, SL_REFUSED, "nothing was said yet: there is nothing to save");
    sl_progress_init(&t->c->progress, stderr, isatty(STDERR_FILENO) == 1);
    sl_status status = sl_context_save(t->context, path, count_bytes, t->c, err);
    sl_progress_clear(&t->c->progress);
    if (status == SL_OK) {
        fprintf(stderr, "sluice: %zu tokens saved: sluice chat -c ", sl_context_n_tokens(t->context));
        print_word(path);
        fputs(" goes on from here\n", stderr);
    }
    return status;
}

void chat_talk_print_stats(const chat_talk *t)
{
    sl_stats s;
    char a[SL_TEXT_NUMBER_BYTES], b[SL_TEXT_NUMBER_BYTES], c[SL_TEXT_NUMBER_BYTES];
    sl_context_get_stats(t->context, &s);
    fprintf(stderr, "  context     %zu tokens", sl_context_n_tokens(t->context));
    if (t->store)
        fprintf(stderr, ", %zu of %s", s.stored_tokens, t->path);
    fprintf(stderr, "; room for %zu\n", chat_talk_room(t));
    fprintf(stderr, "  questions   %zu asked, %zu can be taken back\n", t->n_asked, t->n_questions);
    fprintf(stderr, "  reading     %zu tokens in %s, %.1f tokens/s\n", s.prompt_tokens,
            sl_text_format_time(s.prefill_s, a), per((double)s.prompt_tokens, s.prefill_s));
    fprintf(stderr, "  answers     %zu tokens in %s, %.1f accepted tokens/s, %.1f verified rows/s\n", s.n_tokens,
            sl_text_format_time(s.decode_s, a), per((double)s.n_tokens, s.decode_s), per((double)s.n_rows, s.decode_s));
    cli_print_drafting(&s, plain_floor(t, &s));
    fprintf(stderr, "  flash       %s of cache, %s of it in memory; %s read, ", sl_text_format_size(s.kv_bytes, a),
            sl_text_format_size(s.resident_bytes, b), sl_text_format_size(s.bytes_read, c));
    fprintf(stderr, "%s written\n", sl_text_format_size(s.bytes_written, a));
    fprintf(stderr, "  memory      peak %s\n", sl_text_format_size(s.peak_rss_bytes, a));
}
