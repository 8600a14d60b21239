/* sluice: language models over contexts larger than memory. The KV cache lies on flash, streams through a small ring
 * by direct I/O, and attention over it is exact.
 *
 *   sl_engine     a model file opened for computing: weights, tokenizer, threads, the memory budget
 *   sl_context    one text: fed, then continued; or a conversation: fed, continued, fed again, taken back
 *
 * Every fallible function returns sl_status and fills `err` (may be NULL) with one line. The library prints nothing
 * and never exits. Sizes in bytes unless the name says tokens. Callbacks run on the calling thread.
 * Thread rule: an engine and all its contexts are driven by one thread at a time; it uses its own pool inside. */
#ifndef SLUICE_SLUICE_H
#define SLUICE_SLUICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sluice/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SL_VERSION "0.1.0"
/* Version of the arithmetic: a change of any rule that can move a bit raises it. */
#define SL_ARITHMETIC_VERSION 1

/* ---------------------------------------------------------------------------------------------------- the engine */

typedef struct sl_engine sl_engine;

typedef struct sl_engine_options {
    const char *model_path;
    uint64_t ram_bytes; /* ceiling of the process's peak resident set; 0: half of what is free now */
    uint32_t n_threads; /* 0: as many as processors */
    bool vocab_only;    /* tokenizer and metadata alone: no weights, no contexts */
    bool plan_only;     /* weights are counted, not loaded: for sl_engine_plan */
    /* A second, smaller model with the same tokens, to draft with (SL_DRAFT_WITH_MODEL); refused where a token differs,
     * naming the first. Read by sl_engine_open. NULL: none. */
    const char *draft_model_path;
    /* The chat template, by its family's name, instead of the model file's own (NULL); SL_USAGE lists the names. */
    const char *chat_template;
    const char *trace_path; /* Chrome trace of everything the engine does; NULL: none */
    /* One line of text: `warning` false = information. NULL: silent. */
    void (*log)(void *arg, bool warning, const char *text);
    /* Loading; false cancels. NULL: none. */
    bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *arg; /* of both; used until the engine is closed */
} sl_engine_options;

/* Errors: SL_FAILED, SL_USAGE, SL_REFUSED (budget, unknown architecture, type or tokenizer), SL_DAMAGED. */
sl_status sl_engine_open(const sl_engine_options *options, sl_engine **out, sl_err *err);
void sl_engine_close(sl_engine *engine); /* after all its contexts */
/* Ends the trace, after all contexts; SL_FAILED when the file is not whole. Closing does it too, with a warning. */
sl_status sl_engine_end_trace(sl_engine *engine, sl_err *err);

typedef struct sl_engine_info {
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, n_embd, n_vocab;
    uint32_t n_ctx_train; /* tokens */
    /* Layers whose rows see themselves and the span - 1 tokens before them; 0: every layer's see all before them. */
    uint32_t n_sliding_layers, sliding_span;
    uint64_t weight_bytes;
    uint64_t ram_bytes; /* the ceiling in force */
    uint32_t n_threads;
    const char *cpu_level; /* static */
} sl_engine_info;
void sl_engine_get_info(const sl_engine *engine, sl_engine_info *out);
/* What entry i of the kernel table runs at; NULL past the last. For --verbose. */
const char *sl_engine_kernel(const sl_engine *engine, size_t i, const char **level);

/* A list of token ids; start from {0}; owned by caller, freed by sl_tokens_free. */
typedef struct sl_tokens {
    int32_t *ids;
    size_t n, cap;
} sl_tokens;
void sl_tokens_free(sl_engine *engine, sl_tokens *tokens);

/* Appends the tokens of UTF-8 text; behind text that out holds already it goes on, behind nothing or a control token it
 * begins (which matters to tokenizers that put a space in front of texts). special: control tokens spelt out in the
 * text become themselves. *n_dropped (may be NULL) += bytes that the vocabulary cannot spell. */
sl_status sl_engine_tokenize(sl_engine *engine, const char *text, size_t size, bool special, sl_tokens *out,
                             uint64_t *n_dropped, sl_err *err);

/* Token ids back to bytes, piece by piece, in order, less the space that the tokenizer itself puts in front of a text -
 * the first id's, and behind control tokens; special: control tokens' spelling too; ids that the
 * vocabulary lacks are nothing. `take` returns false to cancel. */
sl_status sl_engine_detokenize(const sl_engine *engine, const int32_t *ids, size_t n, bool special,
                               bool (*take)(void *arg, const char *bytes, size_t size), void *arg, sl_err *err);

/* The prompt: BOS if the model file says so, template head, document, blank line and question, template tail, each
 * tokenised apart; special tokens come from the template only. NULL document or question: absent. */
typedef struct sl_prompt {
    const char *document;
    size_t document_size;
    const char *question;
    size_t question_size;
    bool chat; /* one user message in the model's chat template */
    /* with chat: the message that the conversation begins with. NULL: the template's own, if it has one. SL_REFUSED:
     * the template has no place for one, or the stored conversation begins otherwise. */
    const char *system;
    size_t system_size;
    bool open; /* the document of a context file: questions follow later, so no template tail */
    bool stored; /* the context holds a text already; this goes on behind it */
    /* with stored and chat: all the tokens that the context holds (sl_store_info.ids, sl_context_ids). They tell where
     * the conversation stands: the question joins a user message that is open (a document behind the template's
     * head), else it is a new one, behind the end of the answer, which is added where the answer has none. None: as if
     * not stored. SL_REFUSED: they are no text in this template. So each turn of a talk is this prompt over the
     * context's own tokens, a feed and a generate. */
    const int32_t *stored_ids; /* borrowed for the call */
    size_t n_stored;
    bool whole; /* a text with its end, not one to be continued: EOS too, if the model file says so */
} sl_prompt;
/* SL_USAGE when nothing is left after tokenising. */
sl_status sl_engine_prompt(sl_engine *engine, const sl_prompt *prompt, sl_tokens *out, sl_err *err);
/* The questions of a conversation in the model's chat template that can be taken back by sl_context_rewind: user
 * messages, whole ones, behind an answer. (The first may begin with a document; whoever asked it knows where.)
 * offs [cap] (may be NULL with 0): how many tokens stand before each, the first ones. *n_questions: of all.
 * SL_REFUSED: ids are no text in this template. */
sl_status sl_engine_chat_questions(sl_engine *engine, const int32_t *ids, size_t n, size_t *offs, size_t cap,
                                   size_t *n_questions, sl_err *err);

/* --------------------------------------------------------------------------------------------------- the context */

typedef struct sl_context sl_context;

typedef enum sl_cache { SL_CACHE_Q8_0, SL_CACHE_F16 } sl_cache; /* stored type of K and V */

typedef enum sl_io { SL_IO_AUTO, SL_IO_URING, SL_IO_POOL, SL_IO_BUFFERED } sl_io; /* how flash is read */

typedef struct sl_store sl_store; /* a context file: below */

/* What drafts: proposes the tokens that a burst verifies. Drafts change the speed, never the text. */
enum {
    SL_DRAFT_WITH_NGRAM = 1, /* what followed the places where the text's end occurred before */
    SL_DRAFT_WITH_SELF = 2,  /* the model itself, over the hot part of its cache */
    SL_DRAFT_WITH_MODEL = 4  /* the engine's draft model */
};

/* How positions are stretched beyond the context that the model was first trained with. */
typedef enum sl_rope_scaling {
    SL_ROPE_SCALING_MODEL, /* as the file says */
    SL_ROPE_SCALING_NONE,
    SL_ROPE_SCALING_LINEAR,
    SL_ROPE_SCALING_YARN,
    SL_ROPE_SCALING_LLAMA3
} sl_rope_scaling;

/* Of a model with LongRoPE. AUTO: the long set where prompt_tokens and predict_tokens are more than the original
 * length; what goes on from a file goes on with its set. */
typedef enum sl_rope_set { SL_ROPE_SET_AUTO, SL_ROPE_SET_SHORT, SL_ROPE_SET_LONG } sl_rope_set;

/* All part of a context's identity; 0: the model's own. */
typedef struct sl_rope_options {
    sl_rope_scaling scaling;
    sl_rope_set set;
    double base;
    double original; /* length of the context before it was stretched, tokens */
    /* YaRN (arXiv 2309.00071): share of the unscaled frequencies, more than 0 to 1; factor of turned queries and keys,
     * beside YaRN's own, 0.001 to 1000; turns over the original length from which on a frequency is kept, and up to
     * which it is divided in full, 0.001 to 1e6. */
    double yarn_extrapolate, yarn_magnitude, yarn_fast, yarn_slow;
} sl_rope_options;

typedef struct sl_context_options {
    sl_cache cache;
    const char *kv_dir;     /* NULL: $SLUICE_KV_DIR, else /var/tmp */
    bool allow_ram_dir;     /* accept a memory file system */
    size_t prompt_tokens;   /* that will be fed */
    size_t predict_tokens;  /* the most that will be generated; 0: none will */
    size_t score_best;      /* candidates that sl_context_score will report */
    size_t window_tokens;   /* prefill window: a multiple of 64; 0: chosen from the budget */
    uint64_t ring_bytes;    /* all slots together; 0: chosen from the budget */
    uint64_t read_rate;     /* bytes a second that reading the cache may take; 0: all there is */
    sl_io io;
    bool io_probe;          /* measure the disk anew, two seconds, whatever is remembered of it */
    bool all_logits;        /* sl_context_score will follow: for the estimate */
    size_t max_drafts;      /* 0 to 255: rows of a burst less one, at most; memory is planned for it */
    /* max_drafts is less where memory is short: sl_plan.max_drafts says what it is then. */
    bool draft_auto;
    /* SL_DRAFT_WITH_*, any of them together; what each burst takes is chosen by what they yield. 0: n-gram, the draft
     * model if the engine has one, and self where the context is long and memory allows. */
    unsigned drafters;
    size_t hot_tokens; /* of each layer and KV head, kept for SL_DRAFT_WITH_SELF; 0: 4096, less for want of memory */
    bool no_trees;     /* drafts never branch, which takes a little less memory */
    double rope_scale;      /* the rule's factor, extends the trained context; 0: the model's own */
    sl_rope_options rope;   /* zeros: the model's own rule of positions */
    bool force_context;     /* allow positions beyond the trained context */
    /* A context file whose tokens the context starts with; prompt_tokens then come on top. Borrowed: closed after the
     * context. NULL: none. keep: for sl_context_keep; else the file stays as it is;
     * for sl_engine_plan also without a store: of a file that is yet to be made. */
    sl_store *store;
    size_t store_tokens; /* of the file's, only the first so many; 0: all. Not with keep */
    bool keep;
    /* Feeding and generating may alternate, and sl_context_rewind takes back. prompt_tokens is then all that will be
     * fed and predict_tokens the most of one answer; together they are what the context may grow by, as far as the
     * model was trained for it. Memory is planned for both: what the window uses does not pass to resident parts. */
    bool talk;
    bool store_chat;        /* the file's text is a chat template's head and a document (part of its identity) */
    double commit_seconds;  /* of work between two commits at most; 0: 60 */
    size_t commit_tokens;   /* likewise; 0: 4096 */
    bool (*stop)(void *arg); /* asked between layers and parts; true cancels. NULL: never */
    void *arg;
} sl_context_options;

/* What will happen, by part; bytes. */
typedef struct sl_plan {
    uint64_t ram_bytes, program_bytes, weight_bytes, table_bytes, ring_bytes, window_bytes, resident_bytes;
    uint64_t decode_resident_bytes; /* with what the window leaves when the answer begins */
    uint64_t needed_bytes; /* the least that could work, */
    uint64_t whole_bytes;  /* and that could with all weights in memory */
    uint64_t kv_bytes, kv_token_bytes, disk_bytes;
    uint64_t kept_bytes; /* of kv_bytes, in whole tiles, what there is at once: sliding layers keep their window */
    /* Of the cache, what a pass at the context's end reads, from memory or flash: where layers slide less than all of
     * it. What the rows of the answer see of it between them: memory holds that before anything else. */
    uint64_t walked_bytes, answer_bytes;
    uint64_t disk_free_bytes; /* UINT64_MAX: the file system does not count them */
    size_t window_tokens, max_tokens;
    uint32_t n_slots;
    size_t max_drafts;    /* of a burst */
    unsigned drafters;    /* SL_DRAFT_WITH_*: those that there will be */
    size_t hot_tokens;    /* 0: without SL_DRAFT_WITH_SELF */
    const char *no_self;  /* why a choice left to us leaves it out; NULL: it does not. Lives as long as the program */
    uint64_t draft_bytes; /* of the draft model: weights, cache, working memory; other drafters are in window_bytes */
    /* Where the budget cannot hold the weights: weight_bytes are of those that stay in memory, file_weight_bytes of
     * all. The others are read from the model file, at most so many bytes for each pass, for the logits of each eight
     * rows of it (of a prompt: of its last one), and for each row; one layer more may be read ahead at the end. All 0:
     * they all stay. weight_room_bytes: what the weights may take. */
    uint64_t file_weight_bytes, weight_buffer_bytes, weight_room_bytes;
    uint64_t weight_pass_bytes, weight_logit_bytes, weight_row_bytes;
} sl_plan;

/* How long it will take: floors from rates measured on this machine, with these kernels, threads and disk. A rate that
 * was not measured is 0, and so is what needs it; a sum then leaves the disk's share out. Seconds. */
typedef struct sl_estimate {
    double disk_read_rate, disk_write_rate, memory_rate; /* bytes a second */
    bool disk_remembered;                                /* the disk's were measured by an earlier run */
    size_t read_bytes, in_flight_bytes;                  /* of the reader */
    double prefill_compute_s, prefill_read_s, prefill_write_s, prefill_s;
    double first_token_s; /* prefill and the first row's logits */
    /* one pass over the whole context for `rows` rows: */
    size_t rows;
    /* Read from flash. A part that is open when the answer begins joins memory that it is meant for when it is full:
     * until then, less than a part of each layer is read on top. */
    uint64_t pass_bytes;
    uint64_t weight_bytes; /* of the model file, for such a pass, at most: not in pass_bytes, but in pass_disk_s */
    double pass_disk_s, pass_memory_s, pass_compute_s, pass_s; /* floors, and the largest of them */
    /* the least number of rows with which computing outlasts the disk; 0: none up to 256 does, or a rate is missing */
    size_t crossover_rows;
    uint64_t read_bytes_prefill, written_bytes;
    uint64_t weight_bytes_prefill; /* likewise, for all windows */
    double weight_pass_s;          /* of pass_disk_s; a row's share is this by `rows` */
} sl_estimate;

/* The plan and the times of a context that is not made. `rows`: of a pass, 1 to 256. The engine may be plan_only; then
 * positions beyond the trained context are not refused, and a disk of which nothing is known is measured. estimate
 * NULL: nothing else is measured; else kernels and memory are, once an engine, in half a second.
 * SL_REFUSED as sl_context_create would; plan and estimate are then filled in as far as they were known. */
sl_status sl_engine_plan(sl_engine *engine, const sl_context_options *options, size_t rows, sl_plan *plan,
                         sl_estimate *estimate, sl_err *err);

/* Plans, checks memory and disk, makes a context:
 *
 *   feed once or more, then generate once
 *   score once
 *   with `keep`:  keep;  or feed and generate as often as wanted, then keep
 *   with `talk`:  feed, generate, feed, generate ... with settle and rewind between them
 *
 * Calls out of this order are SL_USAGE and change nothing; after any other error a context can only be destroyed,
 * except with talk, where it says so. SL_REFUSED names what is too small, with the numbers. */
sl_status sl_context_create(sl_engine *engine, const sl_context_options *options, sl_context **out, sl_err *err);
void sl_context_destroy(sl_context *context);
void sl_context_get_plan(const sl_context *context, sl_plan *out);
/* From what the engine has measured so far (sl_engine_plan measures). rows: of a pass; 0: as many as a burst has. */
void sl_context_estimate(const sl_context *context, size_t rows, sl_estimate *out);

/* Prefill: n > 0 tokens. progress may be NULL. What an answer drew and the context has not stored yet (its last token,
 * an end token too) is read before them. With talk an error, a cancelled feed too, leaves the context as it was before,
 * but without logits: the next call is a feed again. SL_REFUSED when it would hold more than was planned. */
sl_status sl_context_feed(sl_context *context, const int32_t *ids, size_t n,
                          void (*progress)(void *arg, size_t done_tokens, size_t total_tokens), void *arg,
                          sl_err *err);

/* With `keep`: reads n more tokens into the file, committing as it goes, and finishes it; n may be 0. What was fed and
 * drawn before becomes part of the file by the first commit here: until then, whatever happens, the file opened again
 * holds what it held, and after that what was committed. SL_CANCELLED: of the n tokens those that whole windows had
 * stored are committed before it returns. After this a context can only be destroyed. */
sl_status sl_context_keep(sl_context *context, const int32_t *ids, size_t n,
                          void (*progress)(void *arg, size_t done_tokens, size_t total_tokens), void *arg,
                          sl_err *err);

typedef enum sl_finish_reason {
    SL_FINISH_REASON_STOP,     /* the model ended its text, or a stop string did */
    SL_FINISH_REASON_LENGTH,   /* predict_tokens drawn */
    SL_FINISH_REASON_CONTEXT,  /* the trained context is full */
    SL_FINISH_REASON_CANCELLED /* `stop` or the callback */
} sl_finish_reason;

#define SL_LOGPROBS_MAX 100

/* How likely a drawn token was, by the logits as the model gives them: before penalties, biases and temperature. */
typedef struct sl_token_logprobs {
    int32_t id;
    float logprob;
    const int32_t *best; /* [n_best] ids in falling order of logit, the lower one first among equals */
    const float *best_logprobs;
    size_t n_best;
} sl_token_logprobs;

/* What is drawn is a function of the logits, the tokens before, these options and the position alone. Penalties and
 * biases change a copy of the logits, in this order: a token that stands c > 0 times among the last penalty_last_n,
 * prompt included, has its logit divided by repeat_penalty, or multiplied if it is not positive; then
 * c * frequency_penalty + presence_penalty is taken off; then its biases are added. */
/* Whether drafts may branch: TREE yes; AUTO with draft_auto alone, where it pays; CHAIN never. */
typedef enum sl_draft_shape { SL_DRAFT_SHAPE_AUTO, SL_DRAFT_SHAPE_CHAIN, SL_DRAFT_SHAPE_TREE } sl_draft_shape;

typedef struct sl_draw_options {
    float temp;     /* 0: greedy */
    uint32_t top_k; /* 0: all */
    float top_p;    /* 1: all */
    float min_p;    /* 0: all */
    uint64_t seed;
    int64_t penalty_last_n;                    /* 0: no penalties; -1: all tokens */
    float repeat_penalty;                      /* 0.01 to 100; 1 or 0: none */
    float presence_penalty, frequency_penalty; /* -1000 to 1000; 0: none */
    const int32_t *bias_ids;                   /* [n_bias] borrowed for the call, as values and stops */
    const float *bias_values;                  /* -1e6 to 1e6; -INFINITY bans the token */
    size_t n_bias;
    /* [n_stops] UTF-8. The answer ends where its text first holds one of them, wherever tokens begin and end; that
     * string and what is behind it are not handed out. What may be the beginning of one is handed out when it is known
     * not to be. The context keeps the tokens up to the one that completed the string, that one included. */
    const char *const *stops;
    size_t n_stops;
    size_t predict_tokens; /* at most the context's */
    size_t max_drafts;     /* of a burst: at most the context's; with draft_auto what is more is the context's */
    /* How many, and in what shape, is chosen burst by burst from what they cost and yield; max_drafts is the most.
     * False: max_drafts, wherever there are so many. */
    bool draft_auto;
    sl_draft_shape draft_shape;
    size_t n_logprobs;     /* candidates that `logprobs` is given; at most SL_LOGPROBS_MAX */
    /* Before each `token` with an id. NULL: nothing is computed for it. */
    void (*logprobs)(void *arg, const sl_token_logprobs *token);
    /* A drawn token and the text that became whole with it (whole UTF-8 characters; may be empty; id -1: the rest at
     * the end). Return false to stop. */
    bool (*token)(void *arg, int32_t id, const char *text, size_t size);
    void *arg;
} sl_draw_options;

typedef struct sl_draw_result {
    sl_finish_reason reason;
    size_t n_tokens; /* drawn, an end token included */
} sl_draw_result;

/* SL_USAGE names what sl_context_generate would refuse of these options with this model; predict_tokens and max_drafts
 * are a context's business. */
sl_status sl_engine_check_draw(const sl_engine *engine, const sl_draw_options *options, sl_err *err);

/* After a feed (or a settle). Without talk or keep once. A cancelled answer is no error: what was drawn is part of the
 * context. With talk after an error, too, and the next call is a feed. */
sl_status sl_context_generate(sl_context *context, const sl_draw_options *options, sl_draw_result *out, sl_err *err);

/* All tokens of the context: stored, fed and drawn. Borrowed until the next call that changes it. */
size_t sl_context_n_tokens(const sl_context *context);
const int32_t *sl_context_ids(const sl_context *context); /* [n_tokens] */
/* Of these, the tokens whose keys and values are there; the next feed (or settle) computes the others first. */
size_t sl_context_n_stored(const sl_context *context);

/* With talk or keep: what was drawn but is not stored yet is read, so that the context's keys and values are those of
 * all its tokens; nothing when there is nothing. The next call may be generate, too. Errors as feed's. */
sl_status sl_context_settle(sl_context *context, sl_err *err);

/* With talk, not with keep: the context is as after its first n_tokens, 1 to as many as it has; below a file's own, too
 * (the file stays as it is). The bits afterwards are those of a context that never had more. It has no logits then: the
 * next call is a feed. Of sliding layers a context keeps what rows lately saw: after a longer way back fewer tokens are
 * stored (sl_context_n_stored), and the next feed computes the others again. To draw again from token n on: rewind to
 * n - 1, feed the token that was at n - 1. */
sl_status sl_context_rewind(sl_context *context, size_t n_tokens, sl_err *err);

/* All tokens of the context in a new context file of their own, finished: as prefill would have made it. Between calls;
 * tokens that are not stored yet are read first (as sl_context_settle, errors too). Whole segments of the file that the
 * context started from are shared where the file system can. The file has its name when it is whole; after an error or
 * SL_CANCELLED (progress, which may be NULL, said false) there is none. SL_REFUSED when the name is taken. The context
 * goes on unchanged. Where it has dropped old parts of sliding layers, which a file holds, its text is computed again:
 * that takes as long as feeding it did, and what was computed when it is cancelled the next feed makes up for. */
sl_status sl_context_save(sl_context *context, const char *path,
                          bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes), void *arg,
                          sl_err *err);

/* One position of a scored text. */
typedef struct sl_score {
    uint64_t position;
    int32_t id;           /* the token at this position */
    bool has_next;        /* false at the last position */
    float next_logprob;   /* of the token that follows */
    const float *logits;  /* [n_vocab] the prediction made here; borrowed for the call */
    const int32_t *best;  /* [n_best] ids in falling order of logit */
    const float *best_logprobs;
    size_t n_best;
} sl_score;

typedef struct sl_score_options {
    size_t n_best; /* candidates reported at each position; at most score_best */
    bool (*row)(void *arg, const sl_score *score); /* false stops (SL_CANCELLED) */
    void (*progress)(void *arg, size_t done_tokens, size_t total_tokens); /* NULL: none */
    void *arg; /* of both */
} sl_score_options;

/* Feeds ids into a fresh context and reports every position; with a store they go on from its tokens, and positions
 * start behind them. *perplexity: over n - 1 tokens; NaN for one. */
sl_status sl_context_score(sl_context *context, const int32_t *ids, size_t n, const sl_score_options *options,
                           double *perplexity, sl_err *err);

enum { SL_STATS_DRAFTERS = 8, SL_STATS_DEPTHS = 16 };

/* What came of a drafter's proposals. [depth]: 0 follows the text's last token; the last stands for all deeper ones. A
 * draft of several drafters counts for each. */
typedef struct sl_drafter_stats {
    const char *name; /* "n-gram", "self", "model"; static */
    size_t n_verified[SL_STATS_DEPTHS], n_accepted[SL_STATS_DEPTHS];
    size_t n_asked; /* proposals */
    double seconds; /* in it */
} sl_drafter_stats;

/* Measured in this run. */
typedef struct sl_stats {
    size_t prompt_tokens;
    double prefill_s, decode_s;
    double wait_s;    /* the computing thread waited for flash */
    double compute_s; /* prefill and decode less waiting and writing */
    double read_s; /* at least one read was in flight */
    double write_s;
    uint64_t kv_bytes;       /* of the tokens now stored */
    uint64_t resident_bytes; /* of them, held in memory */
    uint64_t bytes_read, bytes_written;
    uint64_t bytes_visited; /* stored on flash, walked by the passes, not held in memory */
    uint64_t decode_bytes_read;
    uint64_t weight_bytes_read; /* of the model file, by this context's passes */
    double weight_wait_s;       /* the computing thread waited for them */
    double decode_read_s;
    size_t n_windows, n_passes; /* prefill windows; decode passes */
    size_t n_rows, n_drafted, n_accepted, n_tokens; /* of decoding: rows verified, drafts, drafts kept, tokens drawn */
    size_t n_drafters;
    sl_drafter_stats drafters[SL_STATS_DRAFTERS];
    double draft_s, pass_s, accept_s; /* of decode_s: proposing; passes; logits, drawing and keeping */
    size_t n_tree_passes;             /* of n_passes: whose rows branched */
    uint64_t peak_rss_bytes;
    int64_t page_cache_growth_bytes; /* of the context's file; -1 unknown */
    const char *io_mode;   /* "direct", "buffered" or "memory" */
    const char *io_engine; /* "io_uring", "io_uring, unregistered buffers", "pread pool", "dispatch", "none" */
    size_t read_bytes, in_flight_bytes; /* of the reader, in force */
    size_t stored_tokens;  /* that the context started with */
    size_t n_commits;      /* of a kept context */
} sl_stats;
void sl_context_get_stats(const sl_context *context, sl_stats *out);

/* --------------------------------------------------------------------------------------------------- looking inside */

/* Walks a GGUF file's metadata and tensors without loading it. Texts are borrowed for the call; not terminated keys
 * and names come with their size. Any callback may be NULL. */
typedef struct sl_model_visitor {
    void (*value)(void *arg, const char *key, size_t key_size, const char *type, const char *text);
    void (*tensor)(void *arg, const char *name, size_t name_size, const char *type, const uint64_t dims[4],
                   uint64_t bytes);
    /* In order; not of a model with a `problem`. span: tokens that a row sees, its own included; 0: all before it. */
    void (*layer)(void *arg, uint32_t layer, uint64_t span);
    void *arg;
} sl_model_visitor;

typedef struct sl_model_summary {
    uint32_t gguf_version;
    uint64_t file_bytes, n_tensors, n_parameters, tensor_bytes;
    /* 0 when the architecture is unknown to this program; then `problem` says what it would be refused for. */
    uint64_t kv_token_bytes_f16, kv_token_bytes_q8_0;
    /* Of a cache of n_ctx_train tokens, what a pass at its end reads. */
    uint64_t kv_walked_bytes_f16, kv_walked_bytes_q8_0;
    /* Of that cache, what a run keeps at once: of sliding layers the end. (A context file keeps all.) */
    uint64_t kv_kept_bytes_f16, kv_kept_bytes_q8_0;
    uint32_t n_ctx_train, n_layers, n_sliding_layers, sliding_span; /* as in sl_engine_info */
    char problem[512];
} sl_model_summary;

sl_status sl_model_inspect(const char *path, const sl_model_visitor *visitor, sl_model_summary *out, sl_err *err);

#ifdef __cplusplus
}
#endif

#include <sluice/contexts.h>

#endif
