#include "common/tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/arch.h"

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

tiny_model tiny_model_of_arch(uint64_t seed, const char *arch)
{
    tiny_model model = tiny_model_of_seed(seed);
    const sl_arch *row = sl_arch_find(arch, strlen(arch));
    model.arch = arch;
    model.n_heads = 6;
    model.biases = true;
    model.n_layers = row->no_rope_period > 0 ? row->no_rope_period : 2;
    if (row->sliding_period > 0)
        model.n_layers = row->sliding_period + 1;
    if (row->sliding_period > 0)
        model.sliding_span = 200;
    if (row->flags & SL_ARCH_MIXES) {
        model.n_experts = 7;
        model.n_used = 3;
        model.expert_ffn = 96;
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
static void add_stack(const tiny_model *model, gguf_build *build, const char *name, uint32_t type, uint64_t dims[3],
                      double mean, double sigma)
{
    if (is_omitted(model, name))
        return;
    uint64_t state = model->seed;
    for (const char *c = name; *c; c++)
        state = (state ^ (unsigned char)*c) * 0x100000001b3u;
    size_t n = (size_t)(dims[0] * dims[1] * dims[2]);
    float *values = malloc(n * sizeof *values);
    if (!values)
        abort();
    for (size_t i = 0; i < n; i++)
        values[i] = (float)(mean + sigma * next_normal(&state));
    gguf_bytes data = {0};
    tiny_encode(type, values, n, &data);
    gguf_build_tensor(build, name, type, dims[2] > 1 ? 3 : dims[1] > 1 ? 2 : 1, dims, data.data, data.size);
    free(data.data);
    free(values);
}

static void add_tensor(const tiny_model *model, gguf_build *build, const char *name, uint32_t type, uint64_t n_in,
                       uint64_t n_out, double mean, double sigma)
{
    add_stack(model, build, name, type, (uint64_t[]){n_in, n_out, 1}, mean, sigma);
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

/* "llama.x" becomes the architecture's own key. */
static const char *own_key(const tiny_model *model, const char *key, char *out, size_t size)
{
    if (strncmp(key, "llama.", 6) != 0)
        return key;
    snprintf(out, size, "%s.%s", model->arch, key + 6);
    return out;
}

static void add_string(const tiny_model *model, gguf_build *build, const char *key, const char *text)
{
    char own[96];
    if (text && !is_omitted(model, key))
        gguf_build_string(build, own_key(model, key, own, sizeof own), text);
}

static void add_number(const tiny_model *model, gguf_build *build, const char *key, sl_gguf_type type, double value)
{
    char own[96];
    if (is_omitted(model, key))
        return;
    key = own_key(model, key, own, sizeof own);
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
        {"llama.expert_count", SL_GGUF_TYPE_U32, model->n_experts, model->n_experts > 0},
        {"llama.expert_used_count", SL_GGUF_TYPE_U32, model->n_used, model->n_experts > 0},
        {"llama.expert_feed_forward_length", SL_GGUF_TYPE_U32, model->expert_ffn, model->expert_ffn > 0},
        {"llama.rope.freq_base", SL_GGUF_TYPE_F32, model->rope_base, true},
        {"llama.rope.scaling.factor", SL_GGUF_TYPE_F32, model->rope_factor, model->rope_factor > 1},
        {"llama.attention.sliding_window", SL_GGUF_TYPE_U32, model->sliding_span, model->sliding_span > 0},
        {"llama.rope.scaling.original_context_length", SL_GGUF_TYPE_U32, 256, model->long_factors || model->rope_type},
        {"llama.rope.scaling.attn_factor", SL_GGUF_TYPE_F32, 1.125, model->long_factors},
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
        add_string(model, build, "llama.rope.scaling.type", model->rope_type ? model->rope_type : "linear");
    add_string(model, build, "tokenizer.ggml.model", model->tok_model);
    add_string(model, build, "tokenizer.ggml.pre", model->tok_pre);
    add_vocabulary(model, build);
    add_string(model, build, "tokenizer.chat_template", model->chat_template);
}

typedef struct tiny_part {
    const char *name; /* without the layer and ".weight" */
    uint64_t n_in, n_out;
    double mean, sigma; /* a mean: a vector that stays F32 */
} tiny_part;

static void add_parts(const tiny_model *model, gguf_build *build, uint32_t layer, const tiny_part *parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char name[64];
        const bool is_bias = strchr(parts[i].name, '.') != NULL;
        snprintf(name, sizeof name, "blk.%u.%s%s", (unsigned)layer, parts[i].name, is_bias ? "" : ".weight");
        const bool is_vector = parts[i].n_out == 1 && (parts[i].mean != 0 || is_bias);
        add_tensor(model, build, name, is_vector ? (uint32_t)TINY_TYPE_F32 : model->weight_type, parts[i].n_in,
                   parts[i].n_out, parts[i].mean, parts[i].sigma);
    }
}

/* What some families have beside the usual: biases, norms of heads and of outputs. */
static void add_extras(const tiny_model *model, gguf_build *build, uint32_t layer, unsigned flags)
{
    uint64_t q = (uint64_t)model->n_heads * model->head_dim, kv = (uint64_t)model->n_kv_heads * model->head_dim;
    const tiny_part qkv[] = {
        {"attn_q.bias", q, 1, 0, 0.5}, {"attn_k.bias", kv, 1, 0, 0.5}, {"attn_v.bias", kv, 1, 0, 0.3}};
    const tiny_part more[] = {{"attn_output.bias", model->hidden, 1, 0, 0.2},
                              {"ffn_down.bias", model->hidden, 1, 0, 0.2}};
    const tiny_part gates[] = {{"ffn_gate.bias", model->ffn, 1, 0, 0.3}, {"ffn_up.bias", model->ffn, 1, 0, 0.3}};
    const tiny_part heads[] = {{"attn_q_norm", model->head_dim, 1, 2, 0.3},
                               {"attn_k_norm", model->head_dim, 1, 1, 0.2}};
    const tiny_part post[] = {{"post_attention_norm", model->hidden, 1, 0.6, 0.1},
                              {"post_ffw_norm", model->hidden, 1, 0.6, 0.1}};
    const bool has_more = (flags & SL_ARCH_BIASES) && model->biases;
    if ((flags & SL_ARCH_QKV_BIAS) || has_more)
        add_parts(model, build, layer, qkv, 3);
    if (has_more)
        add_parts(model, build, layer, more, model->n_experts > 0 ? 1 : 2);
    if (has_more && !(flags & SL_ARCH_FUSED_GATE_UP) && model->n_experts == 0)
        add_parts(model, build, layer, gates, 2);
    if (flags & SL_ARCH_QK_NORM)
        add_parts(model, build, layer, heads, 2);
    if (flags & SL_ARCH_POST_NORMS)
        add_parts(model, build, layer, post, 2);
}

/* The router's gain makes choices that differ from row to row, with shares that count. */
static void add_mixture(const tiny_model *model, gguf_build *build, uint32_t layer, double in, double damp)
{
    uint64_t ffn = model->expert_ffn > 0 ? model->expert_ffn : model->ffn, n = model->n_experts;
    const struct {
        const char *name;
        uint64_t dims[3];
        double sigma;
    } parts[] = {{"ffn_gate_inp", {model->hidden, n, 1}, model->flat_router ? 0 : 4 * in},
                 {"ffn_gate_exps", {model->hidden, ffn, n}, 2 * in},
                 {"ffn_up_exps", {model->hidden, ffn, n}, in},
                 {"ffn_down_exps", {ffn, model->hidden, n}, damp / sqrt((double)ffn)}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[64];
        uint64_t dims[3];
        memcpy(dims, parts[i].dims, sizeof dims);
        snprintf(name, sizeof name, "blk.%u.%s.weight", (unsigned)layer, parts[i].name);
        add_stack(model, build, name, i == 0 ? (uint32_t)TINY_TYPE_F32 : model->weight_type, dims, 0, parts[i].sigma);
    }
}

/* Gains keep a row's rms near one through the layers: 1/sqrt(inputs), and what is added to the residual stream is
 * damped by the number of additions. Queries are doubled, so that attention looks at some keys more than at others. */
static void add_layer(const tiny_model *model, gguf_build *build, uint32_t layer, unsigned flags)
{
    uint64_t width = (uint64_t)model->n_heads * model->head_dim;
    uint64_t kv_width = (uint64_t)model->n_kv_heads * model->head_dim;
    double in = 1 / sqrt(model->hidden), damp = 2 / sqrt(2.0 * model->n_layers);
    const tiny_part qkv[] = {{"attn_q", model->hidden, width, 0, 2 * in},
                             {"attn_k", model->hidden, kv_width, 0, in},
                             {"attn_v", model->hidden, kv_width, 0, in}};
    const tiny_part fused[] = {{"attn_qkv", model->hidden, width + 2 * kv_width, 0, 1.4 * in}};
    const tiny_part gate_up[] = {{"ffn_gate", model->hidden, model->ffn, 0, 2 * in},
                                 {"ffn_up", model->hidden, model->ffn, 0, in}};
    const tiny_part fused_up[] = {{"ffn_up", model->hidden, 2 * (uint64_t)model->ffn, 0, 1.4 * in}};
    const tiny_part others[] = {{"attn_norm", model->hidden, 1, 1, 0.1},
                                {"attn_output", width, model->hidden, 0, damp / sqrt((double)width)},
                                {"ffn_norm", model->hidden, 1, 1, 0.1},
                                {"ffn_down", model->ffn, model->hidden, 0, damp / sqrt(model->ffn)}};
    add_parts(model, build, layer, others, 1);
    if (flags & SL_ARCH_FUSED_QKV)
        add_parts(model, build, layer, fused, 1);
    else
        add_parts(model, build, layer, qkv, 3);
    add_parts(model, build, layer, others + 1, 2);
    if (model->n_experts > 0)
        add_mixture(model, build, layer, in, damp);
    else if (flags & SL_ARCH_FUSED_GATE_UP)
        add_parts(model, build, layer, fused_up, 1);
    else
        add_parts(model, build, layer, gate_up, 2);
    if (model->n_experts == 0)
        add_parts(model, build, layer, others + 3, 1);
    add_extras(model, build, layer, flags);
}

void tiny_model_build(const tiny_model *model, gguf_build *build)
{
    /* Logits of a tied model: a spread of about 2.4, in which the token just read has no lead of its own. */
    double emb_sigma = 2.4 / sqrt(model->hidden);
    add_metadata(model, build);
    add_tensor(model, build, "token_embd.weight", model->emb_type, model->hidden, tiny_model_n_vocab(), 0, emb_sigma);
    const sl_arch *arch = model->arch ? sl_arch_find(model->arch, strlen(model->arch)) : NULL;
    for (uint32_t layer = 0; layer < model->n_layers; layer++)
        add_layer(model, build, layer, arch ? arch->flags : 0);
    if (model->long_factors) {
        add_tensor(model, build, "rope_factors_long.weight", TINY_TYPE_F32, model->head_dim / 2, 1, 6, 0.8);
        add_tensor(model, build, "rope_factors_short.weight", TINY_TYPE_F32, model->head_dim / 2, 1, 1.2, 0.1);
    }
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
