/* A small SentencePiece vocabulary made in the test: <unk>, <s>, </s>, the 256 bytes, then the given pieces. */
#ifndef TESTS_TOK_PIECES_H
#define TESTS_TOK_PIECES_H

#include <stdio.h>
#include <string.h>

#include "tok/tok.h"

typedef struct tok_piece {
    const char *text; /* a space is U+2581 */
    int kind;
    double score;
} tok_piece;

enum { TOK_PIECES_BOS = 1, TOK_PIECES_EOS = 2, TOK_PIECES_BYTES = 3, TOK_PIECES_FIRST = 259 };

typedef struct tok_pieces {
    const tok_piece *pieces;
    size_t n_pieces;
    size_t at_token, at_kind, at_score; /* where the three walks stand */
    char spelling[8];
} tok_pieces;

static inline const tok_piece *tok_pieces_at(const tok_pieces *p, size_t i)
{
    static const tok_piece first[] = {{"<unk>", SL_TOK_KIND_UNKNOWN, 0},
                                      {"<s>", SL_TOK_KIND_CONTROL, 0},
                                      {"</s>", SL_TOK_KIND_CONTROL, 0}};
    static const tok_piece byte = {NULL, SL_TOK_KIND_BYTE, 0};
    if (i < TOK_PIECES_BYTES)
        return &first[i];
    if (i < TOK_PIECES_FIRST)
        return &byte;
    return i - TOK_PIECES_FIRST < p->n_pieces ? &p->pieces[i - TOK_PIECES_FIRST] : NULL;
}

static inline bool tok_pieces_token(void *arg, sl_tok_text *out)
{
    tok_pieces *p = arg;
    size_t i = p->at_token++;
    const tok_piece *piece = tok_pieces_at(p, i);
    if (!piece)
        return false;
    if (!piece->text)
        snprintf(p->spelling, sizeof p->spelling, "<0x%02X>", (unsigned)(i - TOK_PIECES_BYTES) & 255u);
    *out = (sl_tok_text){piece->text ? piece->text : p->spelling, piece->text ? strlen(piece->text) : 6};
    return true;
}

static inline bool tok_pieces_kind(void *arg, int *out)
{
    tok_pieces *p = arg;
    const tok_piece *piece = tok_pieces_at(p, p->at_kind++);
    *out = piece ? piece->kind : 0;
    return piece != NULL;
}

static inline bool tok_pieces_score(void *arg, double *out)
{
    tok_pieces *p = arg;
    const tok_piece *piece = tok_pieces_at(p, p->at_score++);
    *out = piece ? piece->score : 0;
    return piece != NULL;
}

/* `p` must outlive the call of sl_tok_create. */
static inline sl_tok_source tok_pieces_source(tok_pieces *p)
{
    p->at_token = p->at_kind = p->at_score = 0;
    return (sl_tok_source){.model = {"llama", 5},
                           .pattern = {"default", 7},
                           .n_tokens = TOK_PIECES_FIRST + p->n_pieces,
                           .next_token = tok_pieces_token,
                           .next_kind = tok_pieces_kind,
                           .next_score = tok_pieces_score,
                           .arg = p,
                           .bos_id = TOK_PIECES_BOS,
                           .eos_id = TOK_PIECES_EOS,
                           .eot_id = -1,
                           .add_bos = true,
                           .add_space_prefix = true};
}

#endif
