/* An answer as it came, kept for JSON and for what is told afterwards; the same for run and chat. Owns: text, ids,
 * log-probabilities. Thread rule: one thread. */
#ifndef SL_ANSWER_H
#define SL_ANSWER_H

#include "cli.h"

typedef struct cli_answer {
    char *text;
    size_t n_text, text_cap;
    int32_t *ids;
    size_t n_ids, ids_cap;
    size_t n_best;   /* of each token's candidates */
    float *logprobs; /* [n_logprobs][1 + n_best] each drawn token's own, then the best ones' */
    int32_t *best;   /* [n_logprobs][n_best] */
    size_t n_logprobs, logprobs_cap;
    bool has_logprobs, out_of_memory;
} cli_answer;

/* A token, or with id -1 text alone. False: out of memory, which it remembers. */
bool cli_answer_add(cli_answer *answer, int32_t id, const char *text, size_t size);
/* Its log-probabilities; the same number of candidates each time. */
void cli_answer_add_logprobs(cli_answer *answer, const sl_token_logprobs *token);
void cli_answer_clear(cli_answer *answer); /* for the next one */
void cli_answer_free(cli_answer *answer);  /* of zeros: nothing */

const char *cli_finish_reason(sl_finish_reason reason);
/* Members of an open object: text, tokens, logprobs where they were asked for, finish_reason. */
void cli_answer_json(sl_json *json, const cli_answer *answer, const sl_engine *engine, sl_finish_reason reason);
/* A line for each token on stderr. */
void cli_answer_print_logprobs(const cli_answer *answer, const sl_engine *engine);

#endif
