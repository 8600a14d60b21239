#include "common/tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char chat_template[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/* "." stands for U+0120, the byte-level spelling of a space. Every part is a byte or an earlier merge. */
static const char *const merges[] = {
    ". t", "h e", ".t he", ". a", "i n", "r e", "o n",  "e r",  ". s",  "a t",  ". o",   "e n", ". c", "i t",
    "e s", ". w", "n d",   "o r", ". f", ". b", ". i",  "in g", ".t o", ".o f", ".a nd", "i s", "a n", "a l",
    "o u", ". p", ". .",   "l l", "v e", "w h", ".i n", "l e",  "s t",  ".t h", ".. ..", "c h", "k e"};

enum { N_MERGES = sizeof merges / sizeof *merges, N_CONTROL = 3, WORD_BYTES = 32 };

tiny_model tiny_model_of_seed(uint64_t seed)
{
    return (tiny_model){.seed = seed,
                        .n_layers = 2,
                        .n_heads = 4,
                        .n_kv_heads = 2,
                        .head_dim = 32,
                        .hidden = 128,
                        .ffn = 192,
                        .n_context = 8192,
                        .rope_base = 10000,
                        .norm_eps = 1e-5,
                        .rope_factor = 1,
                        .weight_type = TINY_TYPE_F32,
                        .emb_type = TINY_TYPE_F32,
                        .arch = "llama",
                        .tok_model = "gpt2",
                        .tok_pre = "smollm",
                        .chat_template = chat_template};
}

tiny_model tiny_model_of_type(uint64_t seed, uint32_t type)
{
    tiny_model model = tiny_model_of_seed(seed);
    model.weight_type = model.emb_type = type;
    if (type >= TINY_TYPE_Q4_K && type <= TINY_TYPE_Q6_K) {
        model.n_heads = 8;
        model.hidden = model.ffn = 256;
    }
    return model;
}

size_t tiny_model_n_vocab(void)
{
    return N_CONTROL + 256 + N_MERGES;
}

static bool is_omitted(const tiny_model *model, const char *name)
{
    for (size_t i = 0; i < TINY_OMIT_MAX; i++)
        if (model->omit[i] && strcmp(model->omit[i], name) == 0)
            return true;
    return false;
}

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* About normal, variance 1: the sum of three uniforms in [-1, 1), exact in binary64. */
static double next_normal(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 3; i++)
        sum += (double)(next_random(state) >> 40) * 0x1p-23 - 1.0;
    return sum;
}

/* Values mean + sigma * normal. They depend on seed and name alone, not on what else the model has. */
static void add_tensor(const tiny_model *model, gguf_build *build, const char *name, uint32_t type, uint64_t n_in,
                       uint64_t n_out, double mean, double sigma)
{
    if (is_omitted(model, name))
        return;
    uint64_t state = model->seed;
    for (const char *c = name; *c; c++)
        state = (state ^ (unsigned char)*c) * 0x100000001b3u;
    size_t n = (size_t)(n_in * n_out);
    float *values = malloc(n * sizeof *values);
    if (!values)
        abort();
    for (size_t i = 0; i < n; i++)
        values[i] = (float)(mean + sigma * next_normal(&state));
    gguf_bytes data = {0};
    tiny_encode(type, values, n, &data);
    gguf_build_tensor(build, name, type, n_out > 1 ? 2 : 1, (uint64_t[]){n_in, n_out}, data.data, data.size);
    free(data.data);
    free(values);
}

/* GPT-2's spelling of a byte as a character: printable ones stand for themselves, the others for U+0100 and up, in
 * order. Writes UTF-8; returns its length. */
static size_t spell_byte(unsigned byte, char *out)
{
    unsigned code = 0, n_odd = 0;
    for (unsigned b = 0; b <= byte; b++) {
        bool plain = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        code = plain ? b : 256 + n_odd;
        n_odd += !plain;
    }
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
}

/* "." to U+0120; `joined` also drops the space between the parts. */
static void spell_merge(const char *merge, bool joined, char out[WORD_BYTES])
{
    size_t n = 0;
    for (const char *c = merge; *c; c++) {
        if (*c == '.')
            n += spell_byte(' ', out + n);
        else if (*c != ' ' || !joined)
            out[n++] = *c;
    }
    out[n] = '\0';
}

static void add_vocabulary(const tiny_model *model, gguf_build *build)
{
    static const char *const control[N_CONTROL] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    static char words[N_CONTROL + 256 + N_MERGES][WORD_BYTES], rules[N_MERGES][WORD_BYTES];
    const char *texts[N_CONTROL + 256 + N_MERGES], *rule_texts[N_MERGES];
    gguf_bytes kinds = {0};
    for (size_t i = 0; i < tiny_model_n_vocab(); i++) {
        memset(words[i], 0, WORD_BYTES);
        if (i < N_CONTROL)
            memcpy(words[i], control[i], strlen(control[i]));
        else if (i < N_CONTROL + 256)
            spell_byte((unsigned)(i - N_CONTROL), words[i]);
        else
            spell_merge(merges[i - N_CONTROL - 256], true, words[i]);
        texts[i] = words[i];
        gguf_bytes_uint(&kinds, i < N_CONTROL ? 3 : 1, 4);
    }
    for (size_t i = 0; i < N_MERGES; i++) {
        spell_merge(merges[i], false, rules[i]);
        rule_texts[i] = rules[i];
    }
    if (!is_omitted(model, "tokenizer.ggml.tokens"))
        gguf_build_strings(build, "tokenizer.ggml.tokens", tiny_model_n_vocab(), texts);
    if (!is_omitted(model, "tokenizer.ggml.token_type"))
        gguf_build_array(build, "tokenizer.ggml.token_type", SL_GGUF_TYPE_I32, tiny_model_n_vocab(), kinds.data,
                         kinds.size);
    if (!is_omitted(model, "tokenizer.ggml.merges"))
        gguf_build_strings(build, "tokenizer.ggml.merges", N_MERGES, rule_texts);
    free(kinds.data);
}

static void add_string(const tiny_model *model, gguf_build *build, const char *key, const char *text)
{
    if (text && !is_omitted(model, key))
        gguf_build_string(build, key, text);
}

static void add_number(const tiny_model *model, gguf_build *build, const char *key, sl_gguf_type type, double value)
{
    if (is_omitted(model, key))
        return;
    if (type == SL_GGUF_TYPE_F32)
        gguf_build_float(build, key, type, value);
    else
        gguf_build_uint(build, key, type, (uint64_t)value);
}

static void add_metadata(const tiny_model *model, gguf_build *build)
{
    const struct {
        const char *key;
        sl_gguf_type type;
        double value;
        bool wanted;
    } numbers[] = {
        {"llama.block_count", SL_GGUF_TYPE_U32, model->n_layers, true},
        {"llama.context_length", SL_GGUF_TYPE_U32, model->n_context, true},
        {"llama.embedding_length", SL_GGUF_TYPE_U32, model->hidden, true},
        {"llama.feed_forward_length", SL_GGUF_TYPE_U32, model->ffn, true},
        {"llama.attention.head_count", SL_GGUF_TYPE_U32, model->n_heads, true},
        {"llama.attention.head_count_kv", SL_GGUF_TYPE_U32, model->n_kv_heads, true},
        {"llama.attention.key_length", SL_GGUF_TYPE_U32, model->head_dim,
         model->head_dim * model->n_heads != model->hidden},
        {"llama.attention.value_length", SL_GGUF_TYPE_U32, model->head_dim,
         model->head_dim * model->n_heads != model->hidden},
        {"llama.rope.freq_base", SL_GGUF_TYPE_F32, model->rope_base, true},
        {"llama.rope.scaling.factor", SL_GGUF_TYPE_F32, model->rope_factor, model->rope_factor > 1},
        {"llama.attention.layer_norm_rms_epsilon", SL_GGUF_TYPE_F32, model->norm_eps, true},
        {"llama.vocab_size", SL_GGUF_TYPE_U32, (double)tiny_model_n_vocab(), true},
        {"llama.rope.dimension_count", SL_GGUF_TYPE_U32, model->head_dim, true},
        {"tokenizer.ggml.add_bos_token", SL_GGUF_TYPE_BOOL, model->add_bos, true},
        {"tokenizer.ggml.bos_token_id", SL_GGUF_TYPE_U32, TINY_TOK_IM_START, true},
        {"tokenizer.ggml.eos_token_id", SL_GGUF_TYPE_U32, TINY_TOK_IM_END, true},
        {"tokenizer.ggml.unknown_token_id", SL_GGUF_TYPE_U32, TINY_TOK_END, true},
        {"general.quantization_version", SL_GGUF_TYPE_U32, 2, true},
    };
    add_string(model, build, "general.architecture", model->arch);
    add_string(model, build, "general.name", "tiny");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].wanted)
            add_number(model, build, numbers[i].key, numbers[i].type, numbers[i].value);
    if (model->rope_factor > 1)
        add_string(model, build, "llama.rope.scaling.type", "linear");
    add_string(model, build, "tokenizer.ggml.model", model->tok_model);
    add_string(model, build, "tokenizer.ggml.pre", model->tok_pre);
    add_vocabulary(model, build);
    add_string(model, build, "tokenizer.chat_template", model->chat_template);
}

/* Gains keep a row's rms near one through the layers: 1/sqrt(inputs), and what is added to the residual stream is
 * damped by the number of additions. Queries are doubled, so that attention looks at some keys more than at others. */
static void add_layer(const tiny_model *model, gguf_build *build, uint32_t layer)
{
    uint64_t width = (uint64_t)model->n_heads * model->head_dim;
    uint64_t kv_width = (uint64_t)model->n_kv_heads * model->head_dim;
    double in = 1 / sqrt(model->hidden), damp = 2 / sqrt(2.0 * model->n_layers);
    const struct {
        const char *name;
        uint64_t n_in, n_out;
        double mean, sigma;
    } parts[] = {
        {"attn_norm", model->hidden, 1, 1, 0.1},
        {"attn_q", model->hidden, width, 0, 2 * in},
        {"attn_k", model->hidden, kv_width, 0, in},
        {"attn_v", model->hidden, kv_width, 0, in},
        {"attn_output", width, model->hidden, 0, damp / sqrt((double)width)},
        {"ffn_norm", model->hidden, 1, 1, 0.1},
        {"ffn_gate", model->hidden, model->ffn, 0, 2 * in},
        {"ffn_up", model->hidden, model->ffn, 0, in},
        {"ffn_down", model->ffn, model->hidden, 0, damp / sqrt(model->ffn)},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s.weight", (unsigned)layer, parts[i].name);
        bool is_norm = parts[i].n_out == 1 && parts[i].mean != 0;
        add_tensor(model, build, name, is_norm ? (uint32_t)TINY_TYPE_F32 : model->weight_type, parts[i].n_in,
                   parts[i].n_out, parts[i].mean, parts[i].sigma);
    }
}

void tiny_model_build(const tiny_model *model, gguf_build *build)
{
    /* Logits of a tied model: a spread of about 2.4, in which the token just read has no lead of its own. */
    double emb_sigma = 2.4 / sqrt(model->hidden);
    add_metadata(model, build);
    add_tensor(model, build, "token_embd.weight", model->emb_type, model->hidden, tiny_model_n_vocab(), 0, emb_sigma);
    for (uint32_t layer = 0; layer < model->n_layers; layer++)
        add_layer(model, build, layer);
    add_tensor(model, build, "output_norm.weight", TINY_TYPE_F32, model->hidden, 1, 1, 0.1);
    if (model->separate_output)
        add_tensor(model, build, "output.weight", model->emb_type, model->hidden, tiny_model_n_vocab(), 0, emb_sigma);
}

bool tiny_model_write(const tiny_model *model, const char *path)
{
    gguf_build build;
    gguf_build_init(&build);
    tiny_model_build(model, &build);
    bool ok = gguf_build_write(&build, path);
    gguf_build_deinit(&build);
    return ok;
}
