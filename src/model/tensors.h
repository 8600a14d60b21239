/* Which tensors a model file must and may have, and where each goes. Private to this folder. */
#ifndef SL_TENSORS_H
#define SL_TENSORS_H

#include "model/weights.h"

enum { SL_TENSOR_WANTS_MAX = 32 };

/* A matrix or a vector of floats; a matrix may be some rows of a tensor that holds several. */
typedef struct sl_tensor_want {
    char name[64];
    size_t n_out; /* 0: a vector */
    size_t n_in;
    size_t first_out, tensor_out; /* the first of its rows in the tensor; the tensor's rows */
    size_t n_stacked;             /* matrices in the tensor's third dimension */
    bool optional;
    size_t off; /* of the sl_matrix or of the float pointer in its owner */
} sl_tensor_want;

typedef struct sl_tensor_wants {
    size_t n;
    sl_tensor_want items[SL_TENSOR_WANTS_MAX];
} sl_tensor_wants;

void sl_tensor_wants_of_model(const sl_hparams *hp, sl_tensor_wants *out);                 /* owner: sl_weights */
void sl_tensor_wants_of_layer(const sl_hparams *hp, uint32_t layer, sl_tensor_wants *out); /* sl_layer_weights */

/* Finds the wanted tensor and checks type and shape. *out = NULL when it is optional and absent. */
sl_status sl_tensor_want_find(const sl_gguf *gguf, const sl_tensor_want *want, const sl_gguf_tensor **out,
                              sl_wtype *type, sl_err *err) SL_CHECK;

#endif
